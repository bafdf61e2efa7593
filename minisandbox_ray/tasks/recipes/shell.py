"""The tables' shell lines, as a build can run them: without apt, and so that /testbed is what is imported."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

_SEPARATOR = re.compile(r"\s*(?:&&\s*)+")
_SETUP_INSTALL = re.compile(r"^(?:python setup\.py build\s*;\s*)?python setup\.py (?:install|develop)$")
_PIP_HERE = re.compile(r"(?P<start>\bpip install\b(?:\s+-\S+)*?)\s+(?P<where>['\"]?\.(?:\[[^\]]*\])?['\"]?)(?=\s|$)")
_LOCALES = re.compile(r"/etc/locale\.gen|\blocale-gen\b")
_PLUGINS = "/venv/lib/graphviz"
_CONFIGURED = {
    "graphviz": (
        {"GVBINDIR": _PLUGINS},
        f"mkdir -p {_PLUGINS} && ln -s /usr/lib/*/graphviz/*.so* {_PLUGINS}/ && dot -c",
    )
}
"""What a package's maintainer scripts would have done, which are not run: variables and a command. Graphviz knows no
format until its plugins are listed beside them, and /usr is nobody's to write."""


@dataclass
class Steps:
    """Lines, sorted by what becomes of them."""

    commands: list[str] = field(default_factory=list)
    """Run at /testbed."""
    system_packages: list[str] = field(default_factory=list)
    """Debian packages that ``apt-get install`` lines name."""
    variables: dict[str, str] = field(default_factory=dict)
    """What those packages need besides."""
    notes: list[str] = field(default_factory=list)
    """What is left out."""


def read_steps(lines: Iterable[str]) -> Steps:
    """apt-get lines become packages, lines about locales go (C.UTF-8 is always there), and what would install a copy of
    the repository installs it editable: the tests are to see what is at /testbed."""
    steps = Steps()
    for line in lines:
        if "apt-get" in line:
            for part in _SEPARATOR.split(line):
                steps.system_packages += [each for each in _apt_packages(part) if each not in steps.system_packages]
                if "apt-get" not in part:
                    steps.notes.append(f"left out: {part}")
        elif _LOCALES.search(line):
            steps.notes.append(f"left out: {line} (the locale is C.UTF-8)")
        else:
            steps.commands.append(editable(line))
    for name in steps.system_packages:
        variables, command = _CONFIGURED.get(name, ({}, ""))
        steps.variables |= variables
        steps.commands += [command] if command else []
    return steps


def editable(line: str) -> str:
    """The line with an editable installation of the repository in place of a copying one."""
    if _SETUP_INSTALL.fullmatch(line.strip()):
        return "python -m pip install -e ."
    if re.search(r"\s(-e|--editable)\b", line):
        return line
    return _PIP_HERE.sub(lambda match: f"{match['start']} -e {match['where']}", line)


def settings(lines: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that ``export`` lines set, and the other lines. A locale becomes C.UTF-8."""
    variables: dict[str, str] = {}
    rest: list[str] = []
    for line in lines:
        match = re.fullmatch(r"\s*export\s+([A-Za-z_]\w*)=(.*)", line)
        if match is None:
            rest.append(line)
            continue
        value = " ".join(shlex.split(match[2]))
        if match[1] in {"LANG", "LC_ALL"}:
            value = "C.UTF-8"
        if match[1] != "LANGUAGE":
            variables[match[1]] = value
    return variables, rest


def _apt_packages(part: str) -> list[str]:
    words = [word for word in shlex.split(part) if "=" not in word and not word.startswith("-")]
    if words[:2] != ["apt-get", "install"]:
        return []
    return [word for word in words[2:] if word != "locales"]

"""What tox, nox, CI services and pytest's own settings say about running the tests."""

import ast
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

from minisandbox_ray.tasks.automatic.pyproject import Declared, toml_table
from minisandbox_ray.tasks.automatic.requirements import Lines, read_lines
from minisandbox_ray.tasks.automatic.setup_files import parse_ini
from minisandbox_ray.tasks.automatic.tree import SourceTree

_CI = (
    r"^(\.github/workflows/|\.circleci/|\.travis\.yml|\.gitlab-ci\.yml|azure-pipelines|appveyor\.yml|\.python-version)"
)


@dataclass
class PytestSettings:
    """pytest's configuration in the tree."""

    options: str = ""
    """addopts."""
    test_paths: list[str] = field(default_factory=list)
    settings_module: str = ""
    """DJANGO_SETTINGS_MODULE, for pytest-django."""
    text: str = ""
    """All of it, to look for words."""


def read_pytest(tree: SourceTree, declared: Declared) -> PytestSettings:
    """From the first file that pytest would take it from."""
    for path, section in (("pytest.ini", "pytest"), (".pytest.ini", "pytest")):
        if path in tree.texts:
            return _from_ini(tree, path, section)
    pytest = declared.tools.get("pytest")
    for path in ("pytest.toml", ".pytest.toml"):
        if path in tree.texts:
            pytest = toml_table(tree.text(path)).get("pytest", {})
            break
    if isinstance(pytest, dict):
        table = pytest.get("ini_options")
        table = table if isinstance(table, dict) else pytest
        options, paths = table.get("addopts", ""), table.get("testpaths", [])
        return PytestSettings(
            options=_joined(options),
            test_paths=paths.split() if isinstance(paths, str) else [str(path) for path in paths],
            settings_module=str(table.get("DJANGO_SETTINGS_MODULE", "")),
            text="\n".join(f"{name} = {_joined(value)}" for name, value in table.items()) or " ",
        )
    for path, section in (("tox.ini", "pytest"), ("setup.cfg", "tool:pytest"), ("setup.cfg", "pytest")):
        found = _from_ini(tree, path, section)
        if found.text:
            return found
    return PytestSettings()


def _from_ini(tree: SourceTree, path: str, section: str) -> PytestSettings:
    config = parse_ini(tree.text(path))
    if not config.has_section(section):
        return PytestSettings()
    values = {name: value or "" for name, value in config.items(section)}
    return PytestSettings(
        options=" ".join(values.get("addopts", "").split()),
        test_paths=values.get("testpaths", "").split(),
        settings_module=values.get("DJANGO_SETTINGS_MODULE", ""),
        text="\n".join(f"{name} = {value}" for name, value in values.items()) or " ",
    )


def _joined(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _tox_section(tree: SourceTree, declared: Declared) -> dict[str, str]:
    """What is said of every environment, else of those that are called after tests; from where tox would read it."""
    tox = declared.tools.get("tox")
    legacy = tox.get("legacy_tox_ini") if isinstance(tox, dict) else None
    for text, prefix in ((tree.text("tox.ini"), ""), (tree.text("setup.cfg"), "tox:"), (str(legacy or ""), "")):
        config = parse_ini(text)
        named = [each for each in config.sections() if re.fullmatch(rf"{prefix}testenv:.*(test|unit|py).*", each)]
        for section in [f"{prefix}testenv", *named]:
            values = {name: value or "" for name, value in config.items(section)} if config.has_section(section) else {}
            if any(values.get(key) for key in ("deps", "extras", "setenv", "set_env", "commands")):
                return values
    table = toml_table(tree.text("tox.toml")) or (tox if isinstance(tox, dict) else {})
    base = table.get("env_run_base")
    if not isinstance(base, dict):
        return {}
    variables = base.get("set_env")
    return {
        "deps": "\n".join(each for each in _list(base.get("deps")) if isinstance(each, str)),
        "extras": ",".join(each for each in _list(base.get("extras")) if isinstance(each, str)),
        "setenv": "\n".join(f"{name}={value}" for name, value in variables.items() if isinstance(value, str))
        if isinstance(variables, dict)
        else "",
    }


@dataclass
class Tox:
    """What tox does for every environment."""

    lines: Lines = field(default_factory=Lines)
    """What it installs."""
    variables: dict[str, str] = field(default_factory=dict)
    """What it sets."""
    words: list[str] = field(default_factory=list)
    """What its commands give pytest, paths among them."""


def read_tox(tree: SourceTree, declared: Declared) -> Tox:
    """Of its own file, setup.cfg or pyproject.toml."""
    values = _tox_section(tree, declared)
    # Lines of some environments only ("py36: mock") are left out: which of them goes with which Python is a puzzle.
    lines = [line for line in values.get("deps", "").splitlines() if not re.match(r"\s*[!\w.{},-]+:\s", line)]
    found = read_lines(tree, lines)
    found.extras += re.findall(r"[\w.-]+", values.get("extras", ""))
    variables = {}
    for line in (values.get("setenv") or values.get("set_env") or "").splitlines():
        match = re.match(r"\s*([A-Za-z_]\w*)\s*=\s*(.*?)\s*$", line)
        if match:
            value = match[2].replace("{toxinidir}", "/testbed").replace("{tox_root}", "/testbed")
            if "{" not in value:
                variables[match[1]] = value
    commands = re.sub(r"\\\n", " ", values.get("commands", ""))
    words = [word for given in re.findall(r"\bpy\.?test\s(.*)", commands) for word in re.findall(r"[\w./-]+", given)]
    return Tox(found, variables, words)


def read_nox(tree: SourceTree) -> Lines:
    """What noxfile.py's sessions for tests install: literal arguments of session.install(…)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(tree.text("noxfile.py"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Lines()
    words: list[str] = []
    for function in module.body:
        if isinstance(function, ast.FunctionDef) and re.search(r"test|unit", function.name):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "install":
                    given = [each.value for each in node.args if isinstance(each, ast.Constant)]
                    words += _lines([word for word in given if isinstance(word, str)])
    return read_lines(tree, words)


def _lines(words: list[str]) -> list[str]:
    """Arguments of pip as lines of a requirements file."""
    lines: list[str] = []
    for word in words:
        if lines and lines[-1] in {"-r", "-e", "--requirement", "--editable", "-c"}:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def tested_pythons(tree: SourceTree, classifiers: list[str]) -> list[str]:
    """The versions, "3.8", that classifiers, tox and CI name; ascending."""
    minors = {int(match[1]) for each in classifiers if (match := re.search(r"Python :: 3\.(\d{1,2})$", each))}
    envlist = parse_ini(tree.text("tox.ini"))
    listed = ""
    for option in ("envlist", "env_list"):
        if envlist.has_option("tox", option):
            listed += envlist.get("tox", option) or ""
    for match in re.finditer(r"py(?:thon)?3?\{?([\d.,]+)\}?", listed):
        for part in match[1].split(","):
            digits = part.removeprefix("3").lstrip(".") if "3{" not in match[0] else part
            if re.fullmatch(r"[0-9]{1,2}", digits):
                minors.add(int(digits))
    for path in tree.matching(_CI):
        for line in tree.text(path).splitlines():
            if re.search(r"python|^\s*- ['\"]?3\.|pyenv|toxenv", line, re.IGNORECASE):
                minors |= {int(digits) for digits in re.findall(r"(?<![\d.])3\.(\d{1,2})(?![\d])", line)}
    return [f"3.{minor}" for minor in sorted(minors) if 5 < minor < 30]

"""Requirements as text: read from files of many forms, cleaned, merged."""

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from minisandbox_ray.tasks.automatic.tree import SourceTree

NOT_FOR_TESTS = re.compile(
    r"black|blacken.*|flake8.*|pyflakes|pycodestyle|pep8.*|pydocstyle|pylint.*|ruff|isort|autoflake|autopep8|yapf"
    r"|mypy|mypy-extensions|pyright|pyre-check|pytype|types-.*|.*-stubs|bandit|safety|pip-audit|vulture|interrogate"
    r"|pre-commit.*|commitizen|codespell|check-manifest|pyroma|doc8|rstcheck|docutils-stubs"
    r"|sphinx.*|mkdocs.*|furo|myst-parser|pdoc3?|recommonmark|numpydoc|nbsphinx|.*-rtd-theme|alabaster"
    r"|tox.*|nox.*|invoke|twine|build|wheel|bump2?version|bumpversion|bump-my-version|towncrier|zest-releaser.*|hatch"
    r"|poetry|pdm|pipenv|pip|pip-tools|uv|flit|cibuildwheel|auditwheel|semver-.*|python-semantic-release|gitchangelog"
    r"|codecov|coveralls|python-coveralls|codacy-coverage|ipdb|pdbpp|pudb|ipython|jupyter|jupyterlab|notebook"
    r"|pytest-(flake8|black|mypy|isort|pylint|ruff|pep8|pycodestyle|codestyle|flakes|pydocstyle|checkdocs|enabler|cache"
    r"|sugar|perf|watch|testmon|parallel|clarity|pretty|github-actions-annotate-failures|codspeed)"
    r"|jaraco-(packaging|tidelift)|setuptools-scm|gitpython-stubs"
    r"|pyupgrade|djlint|djhtml|pyproject-fmt|validate-pyproject.*|check-wheel-contents|griffe.*|hf-doc-builder|mdformat.*"
    r"|yamllint|zizmor|pip-licenses|deptry|ty|basedpyright|import-linter|xenon|radon|mutmut|py-spy|memray|snakeviz"
    r"|line-profiler|asv|pycln|unimport|ufmt|usort|prek|lefthook|hatchling|copier|cookiecutter|commitlint|taskipy"
    r"|poethepoet|just-bin|git-cliff|python-dev-tools|devtools"
)
"""Linters, formatters, documentation, release tools and what only decorates a test run: no suite needs them to run, and
they bring pins that conflict. Where a suite does import one, it is found missing and comes back."""
_ARGUMENTS = re.compile(r"\s+--?[a-z][\w-]*(=|\s+)\S+")


def parse(text: str) -> Requirement | None:
    """A requirement that pip finds by name on an index; None for anything else (URLs, paths, nonsense)."""
    try:
        requirement = Requirement(text.strip())
    except (InvalidRequirement, ValueError, RecursionError):  # numbers of thousands of digits, nested parentheses
        return None
    return None if requirement.url else requirement


def name_of(text: str) -> str:
    """The normalised project name of a requirement; empty if it is none."""
    requirement = parse(text)
    return canonicalize_name(requirement.name) if requirement else ""


def merged(groups: Iterable[Iterable[str]], keep_all: bool = False) -> list[str]:
    """Requirements of several sources, each project as the first source says; without what no test needs."""
    found: dict[tuple[str, str], str] = {}
    owners: dict[str, int] = {}
    for number, group in enumerate(groups):
        for text in group:
            requirement = parse(text)
            if requirement is None:
                continue
            name = canonicalize_name(requirement.name)
            if not keep_all and NOT_FOR_TESTS.fullmatch(name):
                continue
            # One source may list a project several times, for different interpreters.
            if owners.setdefault(name, number) == number:
                found.setdefault((name, str(requirement.marker or "")), str(requirement))
    return list(found.values())


class Lines:
    """What requirement lines ask for."""

    def __init__(self) -> None:
        self.requirements: list[str] = []
        self.extras: list[str] = []
        """Of the project itself, as in `-e .[test]`."""


def read_lines(tree: SourceTree, lines: Iterable[str], folder: str = "", depth: int = 0) -> Lines:
    """Lines of a requirements file that lies in `folder`, files that it includes with -r too."""
    found = Lines()
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    for raw in joined.splitlines()[:2000]:
        line = re.sub(r"(^|\s)#.*", "", raw).strip().strip("'\"")
        include = re.match(r"(?:-r|--requirement)[\s=]*(\S+)", line)
        own = re.match(r"(?:(?:-e|--editable)[\s=]*)?\.(?:/|\b|$|(?=\[))(?:\[([\w\s,.-]+)\])?$", line)
        if include:
            path = posixpath.normpath(posixpath.join(folder, include[1].replace("{toxinidir}", ".")))
            if depth < 5 and path in tree.texts:
                inner = read_lines(tree, tree.text(path).splitlines(), posixpath.dirname(path), depth + 1)
                found.requirements += inner.requirements
                found.extras += inner.extras
        elif own:
            found.extras += [extra.strip() for extra in (own[1] or "").split(",") if extra.strip()]
        elif line and not line.startswith("-"):
            line = _ARGUMENTS.sub("", line)
            if parse(line):
                found.requirements.append(line)
    return found


def read_file(tree: SourceTree, path: str) -> Lines:
    """A requirements file of the tree."""
    return read_lines(tree, tree.text(path).splitlines(), posixpath.dirname(path))


def from_poetry(table: Mapping[str, Any]) -> list[str]:
    """Poetry's table of dependencies (its old form) as requirements; sources that are no index are left out."""
    found = []
    for name, value in table.items():
        if name.lower() == "python":
            continue
        entry = (
            next((each for each in value if isinstance(each, (str, dict))), "*") if isinstance(value, list) else value
        )
        extras, version, marker = "", entry, ""
        if isinstance(entry, dict):
            if not isinstance(entry.get("version"), str):
                continue
            version = entry["version"]
            extras = f"[{','.join(map(str, entry['extras']))}]" if entry.get("extras") else ""
            marker = f"; {entry['markers']}" if isinstance(entry.get("markers"), str) else ""
        if isinstance(version, str):
            text = f"{name}{extras}{poetry_specifier(version)}{marker}"
            found.append(text if parse(text) else f"{name}{extras}")
    return [text for text in found if parse(text)]


def poetry_specifier(constraint: str) -> str:
    """Poetry's ^1.2, ~1.2, 1.2.*, * and 1.2 as PEP 440 specifiers. Alternatives (||) become no limit at all."""
    if "|" in constraint:
        return ""
    parts = []
    for part in re.split(r"\s*,\s*|\s+(?=[<>=!~^])", constraint.strip()):
        match = re.fullmatch(r"(\^|~(?!=))\s*v?(\d{1,9}(?:\.\d{1,9})*)(\S*)", part)
        if match:
            numbers = [int(number) for number in match[2].split(".")]
            if match[1] == "^":
                index = next((i for i, number in enumerate(numbers) if number), len(numbers) - 1)
            else:
                index = min(1, len(numbers) - 1)
            upper = ".".join(map(str, [*numbers[:index], numbers[index] + 1]))
            parts.append(f">={match[2]}{match[3]},<{upper}")
        elif re.match(r"[<>=!~]", part):
            parts.append(re.sub(r"\s+", "", part))
        elif re.match(r"\d", part):
            parts.append(f"=={part}")
    return ",".join(parts)

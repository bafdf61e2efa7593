"""Requirement files of a repository, read from a commit and never from the web."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from minisandbox_ray.environments.repository import Commit
from minisandbox_ray.tasks.recipes.recipe import NoRecipeError

REPLACED = {"types-pkg_resources": "types-setuptools", "types-pkg-resources": "types-setuptools"}
"""Yanked from PyPI (swebench.harness.test_spec.python, REPLACE_REQ_PACKAGES)."""
_HERE = re.compile(r"(-e\s*|--editable[ =])?\.(\[.*\])?$")
_DEEPEST = 5
_PROJECT_FILE = re.compile(r"setup\.cfg|setup\.py|pyproject\.toml|(.*/)?[^/]*requirements[^/]*\.txt")
_CHANGED = re.compile(
    r"""(?P<sign>[+-])\s*["']?(?P<requirement>(?P<name>[A-Za-z][\w.-]*)(?:\[[\w, -]*\])?"""
    r"""\s*(?:[<>!~=]=|[<>])\s*\d[^"'#]*?)["']?,?\s*(?:\#.*)?"""
)


@dataclass
class Requirements:
    """What a requirement file and those that it names ask for."""

    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is left out."""


def read_requirements(commit: Commit, paths: Iterable[str]) -> Requirements:
    """Of the first of `paths` that the commit has. Raises NoRecipeError if it has none."""
    wanted = list(paths)
    for path in wanted:
        text = commit.read(path)
        if text is not None:
            found = Requirements()
            _add(commit, path, text.decode("utf-8-sig", "replace"), found, 0)
            return found
    raise NoRecipeError(f"{commit.name} has none of the requirement files {', '.join(wanted)}")


def added_requirements(patch: str) -> list[str]:
    """What a patch adds to the project's own requirements, with versions and without markers: not what it changes the
    version of."""
    found: dict[str, dict[str, str]] = {"+": {}, "-": {}}
    for part in re.split(r"^diff --git ", patch, flags=re.MULTILINE)[1:]:
        path = re.match(r"\S+ b/(.*)", part)
        if path and _PROJECT_FILE.fullmatch(path[1]):
            for line in part.splitlines():
                changed = _CHANGED.fullmatch(line)
                if changed:
                    found[changed["sign"]][changed["name"].lower()] = changed["requirement"]
    return [requirement for name, requirement in found["+"].items() if name not in found["-"]]


def _add(commit: Commit, path: str, text: str, found: Requirements, depth: int) -> None:
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", line)
        line = re.sub(r"\s--hash[= ]\S+", "", line).strip()
        if not line or _HERE.match(line):
            continue
        include = re.fullmatch(r"(?:-r|--requirement)[ =]?\s*(\S+)", line)
        if include:
            inner = _beside(path, include[1])
            content = commit.read(inner) if inner else None
            if content is None or depth == _DEEPEST:
                found.notes.append(f"left out: {line} of {path}, which the commit lacks")
            else:
                _add(commit, inner, content.decode("utf-8-sig", "replace"), found, depth + 1)
        elif line.startswith("-") or re.match(r"(git|hg|svn)\+|https?://|file:|\.", line):
            found.notes.append(f"left out: {line} of {path}")
        else:
            name = re.match(r"[A-Za-z0-9._-]*", line)
            replaced = REPLACED.get(name[0] if name else "")
            found.lines.append(replaced or line)


def _beside(path: str, other: str) -> str:
    """The path that a file names, from the repository's root; empty if it leads out of it."""
    parts: list[str] = list(PurePosixPath(path).parent.parts)
    for part in other.split("/"):
        if part == ".." and not parts:
            return ""
        if part == "..":
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)

"""Cuts an agent's diff down to what it may change: the code, never the tests or what decides how they run."""

import posixpath
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal

from minisandbox_ray.tasks.sections import MIXED
from minisandbox_ray.tasks.task import Task

Outcome = Literal[
    "applied", "cut_down", "empty", "nothing_left", "no_patch", "too_large", "refused_symlink", "conflict"
]
"""What became of a diff.

`applied`: all of it. `cut_down`: without the files that are not the agent's. `empty`: there was none. `nothing_left`:
all its files are not the agent's. `no_patch`: text that is no git patch, or broken in the middle. `too_large`: more
than LARGEST. `refused_symlink`: it makes a symbolic link out of the repository, or into what is not the agent's.
`conflict`: git could not apply it.
"""
REFUSED: frozenset[Outcome] = frozenset({"no_patch", "too_large", "refused_symlink"})
"""Outcomes without a test run."""

LARGEST = 32 << 20
"""Characters of a diff."""

CONFIGURATION = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "sitecustomize.py",
        "usercustomize.py",
        ".gitattributes",
        ".gitmodules",
        "pyvenv.cfg",
    }
)
"""Files that pytest, the interpreter or git load as configuration, in any directory."""

PATTERNS = ("test_*.py", "*_test.py", "*.pth", "*.pyc", "*.pyo", "conftest.*", "*.egg-link")
"""Names of pytest's default test files, path configuration, and compiled code that would shadow its source."""

DIRECTORIES = ("tests", ".git", "__pycache__", "*.egg-info", "*.dist-info", "*.egg", "sitecustomize", "usercustomize")
"""Directories whose content is never the agent's (a distribution's metadata can register pytest plugins)."""

SHADOWED = sys.stdlib_module_names | {
    *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "attr", "attrs"),
    *("minisandbox_witness", "minisandbox_runner", "minisandbox_core"),
    *("exceptiongroup", "tomli", "colorama", "pygments", "typing_extensions", "setuptools", "pkg_resources"),
    *("distutils", "imp", "asyncore", "asynchat", "mock"),
}
"""Modules that run the tests: a new one of that name where modules are looked for would be found instead."""

RUNNERS = {
    "swebench:django/django": ("tests/runtests.py",),
    "swebench:sympy/sympy": (
        "bin/test",
        *(f"sympy/{place}/{name}.py" for place in ("utilities", "testing") for name in ("runtests", "pytest")),
    ),
}
"""What runs the tests of a repository that has a runner of its own, by the parser of its logs."""


@dataclass(frozen=True)
class FilePatch:
    """The part of a git patch that is about one file."""

    text: str
    paths: frozenset[str]
    """Its old and its new name."""
    creates: bool
    """Whether the new name did not exist before."""
    changes: bool = True
    """Whether the file is there before and afterwards, under one name."""
    link: str | None = None
    """Where it leads, if it becomes a symbolic link; empty if that cannot be told."""
    is_whole: bool = True
    """Whether it holds what its headers announce and no more."""


@dataclass(frozen=True)
class CutDown:
    """What is left of a diff."""

    diff: str
    """The part that is applied."""
    outcome: Outcome
    dropped: list[str] = field(default_factory=list)
    """Files that are not the agent's, in order."""
    touched: frozenset[str] = frozenset()
    """Files of the part that is applied."""

    @property
    def mixed(self) -> list[str]:
        """Files of the part that is applied in which the tests' sections stay as they were."""
        return sorted(path for path in self.touched if PurePosixPath(path).name in MIXED)


def cut_down(task: Task, diff: str, installed: Collection[str] = frozenset()) -> CutDown:
    """`diff` (a git patch) without the files that the grader restores: see `Protection`."""
    if not diff.strip():
        return CutDown("", "empty")
    if len(diff) > LARGEST:
        return CutDown("", "too_large")
    parts = list(file_patches(diff))
    if not diff.startswith("diff --git ") or not all(part.is_whole for part in parts):
        return CutDown("", "no_patch")
    protection = Protection(task, installed)
    if any(part.link is not None and protection.refuses_link(part) for part in parts):
        return CutDown("", "refused_symlink")
    kept = [part for part in parts if not protection.refuses(part)]
    dropped = sorted({path for part in parts if protection.refuses(part) for path in part.paths})
    outcome: Outcome = "applied" if not dropped else "cut_down" if kept else "nothing_left"
    touched = frozenset(path for part in kept for path in part.paths)
    return CutDown("".join(part.text for part in kept), outcome, dropped, touched)


class Protection:
    """What of a task's repository is not the agent's to change.

    The files of the listed tests and all of the test directory they are in; those that only the grader brings;
    `task.test_files`; a repository's own runner of tests (RUNNERS); whatever matches CONFIGURATION, PATTERNS or
    DIRECTORIES; new modules that would shadow the test runner's own or one of `installed`.
    Of the files of MIXED, the tests' sections: these may be changed, but not made, removed or renamed.
    """

    def __init__(self, task: Task, installed: Collection[str] = frozenset()):
        placed = {path for part in file_patches(task.test_patch) for path in part.paths} | set(task.hidden_tests)
        self._listed = {*task.listed_files, *task.test_files, *placed, *RUNNERS.get(task.log_parser, ())}
        self._roots = tuple({root for file in self._listed if (root := _test_root(file))})
        self._above = {str(parent) for file in self._listed for parent in PurePosixPath(file).parents} - {"."}
        self._beside = {str(PurePosixPath(file).parent) for file in self._listed}
        self._shadowed = SHADOWED | frozenset(installed)

    def covers(self, path: str) -> bool:
        """Whether a file, relative to the repository, is restored."""
        *folders, name = PurePosixPath(path).parts or ("",)
        return (
            path in self._listed
            or path in self._above  # a link or a file in the place of a directory
            or path.startswith(self._roots)
            or name in CONFIGURATION
            or any(fnmatchcase(name, pattern) for pattern in PATTERNS)
            # The name too: a symbolic link can stand for a directory.
            or any(fnmatchcase(folder, pattern) for folder in [*folders, name] for pattern in DIRECTORIES)
        )

    def refuses(self, part: FilePatch) -> bool:
        """Whether a file's patch is dropped."""
        return any(
            self.covers(path)
            or (part.creates and self.shadows(path))
            or (not part.changes and PurePosixPath(path).name in MIXED)
            for path in part.paths
        )

    def refuses_link(self, part: FilePatch) -> bool:
        """Whether a link leads out of the repository, or to what is covered."""
        if not part.link or "\n" in part.link:
            return True
        for path in part.paths:
            target = posixpath.normpath(posixpath.join("/testbed", posixpath.dirname(path), part.link))
            if not target.startswith("/testbed/") or self.covers(target.removeprefix("/testbed/")):
                return True
        return False

    def shadows(self, path: str) -> bool:
        """Whether a new file would be imported instead of what runs the tests."""
        file = PurePosixPath(path)
        name = file.parent.name if file.name.startswith("__init__.") else file.name.split(".")[0]
        folder = file.parent.parent if file.name.startswith("__init__.") else file.parent
        is_searched = str(folder) in {".", "src", "lib"} | self._beside
        is_module = file.suffix in {".py", ".so", ".pyd", ""}
        return is_searched and is_module and name in self._shadowed

    def freezes(self, path: str) -> bool:
        """Whether nothing may write a file, relative to the repository, while the tests run.

        Not so the data of tests: honest ones write it.
        """
        file = PurePosixPath(path)
        if file.parent.name == "__pycache__":  # as frozen as what it is compiled from
            return self.freezes(str(file.parent.parent / f"{file.name.split('.')[0]}.py"))
        return (
            path in self._listed
            or path in self._above
            or f"{path}/" in self._roots
            or file.name in CONFIGURATION | MIXED
            or (file.suffix in {".py", ".so"} and self.covers(path))
            or self.shadows(path)
        )


def _test_root(file: str) -> str:
    """The outermost directory of a test file that is called test, tests or testing; else empty."""
    parents = PurePosixPath(file).parts[:-1]
    for depth, name in enumerate(parents, 1):
        if name in {"test", "tests", "testing"}:
            return "/".join(parents[:depth]) + "/"
    return ""


def file_patches(diff: str) -> Iterator[FilePatch]:
    """The files of a git patch, in order. Text before the first ``diff --git`` line is left out."""
    for text in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE):
        if text.startswith("diff --git "):
            # Line ends of an editor that changed them all; those of the content are a part of it.
            first = text.partition("\n")[0]
            yield _file_patch(text.replace("\r\n", "\n") if first.endswith("\r") else text)


def _file_patch(text: str) -> FilePatch:
    match = re.search(r"^(?:@@ |GIT binary patch)", text, flags=re.MULTILINE)
    header, body = (text[: match.start()], text[match.start() :]) if match else (text, "")
    lines = header.split("\n")
    creates = any(re.match(r"new file mode|rename to|copy to", line) for line in lines)
    deletes = any(re.match(r"deleted file mode|rename from|old mode 12|old mode 16", line) for line in lines)
    becomes_link = any(re.match(r"(new file mode|new mode) 120000|index \S+ 120000", line) for line in lines)
    link = "\n".join(line[1:] for line in body.split("\n") if line.startswith("+")) if becomes_link else None
    is_submodule = any(re.match(r"(new file mode|new mode) 160000|index \S+ 160000", line) for line in lines)
    is_whole = _is_whole(body) and not is_submodule and _is_header(lines)
    return FilePatch(text, frozenset(_paths(lines)), creates, not (creates or deletes), link, is_whole)


_HEADER = re.compile(
    r"diff --git |old mode |new mode |deleted file mode |new file mode |copy from |copy to |rename from |rename to |"
    r"similarity index |dissimilarity index |index |--- |\+\+\+ |Binary files |$"
)


def _is_header(lines: list[str]) -> bool:
    """Whether git reads nothing else there: one file's names, once."""
    return all(_HEADER.match(line) for line in lines) and sum(line.startswith("--- ") for line in lines) <= 1


def _is_whole(body: str) -> bool:
    """Whether hunks have as many lines as they say, and nothing follows that git might take for another file."""
    if body.startswith("GIT binary patch"):
        return re.search(r"^(---|\+\+\+|@@|diff) ", body, flags=re.MULTILINE) is None
    lines = body.split("\n")
    at = 0
    while at < len(lines) and lines[at].startswith("@@ "):
        match = re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", lines[at])
        if match is None:
            return False
        old, new = (1 if count is None else int(count) for count in match.groups())
        at += 1
        while old > 0 or new > 0:
            kind = lines[at][:1] if at < len(lines) else "?"
            if kind not in ("", " ", "+", "-", "\\"):
                return False
            old -= kind in ("", " ", "-")
            new -= kind in ("", " ", "+")
            at += 1
        if old or new:
            return False
        while at < len(lines) and lines[at].startswith("\\"):
            at += 1
    return not any(lines[at:])


def _paths(header: list[str]) -> set[str]:
    paths = set()
    for line in header[1:]:
        match = re.match(r"(---|\+\+\+|(?:rename|copy) (?:from|to)) (.*)", line)
        if match:
            name = _unquote(match[2].removesuffix("\t"))
            if match[1] in {"---", "+++"}:
                name = "" if name == "/dev/null" else name.partition("/")[2]
            paths.add(name)
    if not paths - {""}:
        # Only a mode, an empty or a binary file: both names are the same.
        names = header[0].removeprefix("diff --git ")
        half = names[(len(names) + 1) // 2 :]
        paths.add(_unquote(half).partition("/")[2])
    return {posixpath.normpath(path).lstrip("/") for path in paths - {""}}


def _unquote(name: str) -> str:
    """A path as git writes it: in double quotes with C escapes if it holds anything unusual."""
    if not (name.startswith('"') and name.endswith('"')):
        return name
    escapes = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}

    def replace(match: re.Match[bytes]) -> bytes:
        code = match[1].decode()
        return bytes([int(code, 8) if code.isdigit() else escapes[code]])

    raw = name[1:-1].encode("utf-8", "surrogateescape")
    return re.sub(rb'\\([0-7]{3}|[abtnvfr"\\])', replace, raw).decode("utf-8", "surrogateescape")

"""Cuts an agent's diff down to what it may change: the code, never the tests or what decides how they run."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from minisandbox_ray.tasks.task import Task

CONFIGURATION = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "sitecustomize.py",
        "usercustomize.py",
    }
)
"""Files that pytest or the interpreter load as configuration, in any directory."""

PATTERNS = ("test_*.py", "*_test.py", "*.pth", "*.pyc", "*.pyo")
"""Names of pytest's default test files, path configuration, and compiled code that would shadow its source."""

DIRECTORIES = ("tests", ".git", "__pycache__", "*.egg-info", "*.dist-info")
"""Directories whose content is never the agent's (a distribution's metadata can register pytest plugins)."""

SHADOWED = sys.stdlib_module_names | {
    *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "attr"),
    *("exceptiongroup", "tomli", "colorama", "pygments", "typing_extensions"),
}
"""Modules that run the tests: a new one of that name at the repository's top would be found instead."""


@dataclass(frozen=True)
class FilePatch:
    """The part of a git patch that is about one file."""

    text: str
    paths: frozenset[str]
    """Its old and its new name."""
    creates: bool
    """Whether the new name did not exist before."""


def cut_down(task: Task, diff: str) -> str:
    """`diff` (a git patch) without the files that the grader restores: see `Protection`."""
    protection = Protection(task)
    return "".join(part.text for part in file_patches(diff) if not protection.refuses(part))


class Protection:
    """What of a task's repository is not the agent's to change.

    The files of the listed tests and all of the test directory they are in; `task.test_files`; whatever matches
    CONFIGURATION, PATTERNS or DIRECTORIES; new modules that would shadow the test runner's own.
    """

    def __init__(self, task: Task):
        self._listed = {test.split("::")[0] for test in task.tests} | set(task.test_files)
        self._roots = tuple({root for file in self._listed if (root := _test_root(file))})

    def covers(self, path: str) -> bool:
        """Whether a file, relative to the repository, is restored."""
        *folders, name = PurePosixPath(path).parts or ("",)
        return (
            path in self._listed
            or path.startswith(self._roots)
            or name in CONFIGURATION
            or any(fnmatchcase(name, pattern) for pattern in PATTERNS)
            # The name too: a symbolic link can stand for a directory.
            or any(fnmatchcase(folder, pattern) for folder in [*folders, name] for pattern in DIRECTORIES)
        )

    def refuses(self, part: FilePatch) -> bool:
        """Whether a file's patch is dropped."""
        return any(self.covers(path) or (part.creates and _shadows(path)) for path in part.paths)


def _test_root(file: str) -> str:
    """The outermost directory of a test file that is called test, tests or testing; else empty."""
    parents = PurePosixPath(file).parts[:-1]
    for depth, name in enumerate(parents, 1):
        if name in {"test", "tests", "testing"}:
            return "/".join(parents[:depth]) + "/"
    return ""


def _shadows(path: str) -> bool:
    parts = PurePosixPath(path).parts
    if parts and parts[0] in {"src", "lib"}:
        parts = parts[1:]
    top_level = len(parts) == 1 or (len(parts) == 2 and parts[1].startswith("__init__."))
    return top_level and parts[0].split(".")[0] in SHADOWED


def file_patches(diff: str) -> Iterator[FilePatch]:
    """The files of a git patch, in order. Text before the first ``diff --git`` line is left out."""
    for text in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE):
        if text.startswith("diff --git "):
            header = re.split(r"^(?:@@ |GIT binary patch)", text, maxsplit=1, flags=re.MULTILINE)[0].split("\n")
            creates = any(re.match(r"new file mode|rename to|copy to", line) for line in header)
            yield FilePatch(text, frozenset(_paths(header)), creates)


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
    return paths - {""}


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

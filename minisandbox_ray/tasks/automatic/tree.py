"""The files of a source tree that tell how it is installed and tested: read, bounded, and never run.

Source distributions and exported commits are read as archives, so that nothing of them is on this machine's disk under
a name of theirs; of a directory no link is followed.
"""

import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO

from minisandbox_ray.errors import BuildError

MOST_FILES = 100_000
LARGEST_FILE = 1 << 20
"""Bytes of one file that is read; of larger ones only the name is known."""
LARGEST_TOTAL = 32 << 20
"""Bytes read of a whole tree."""
LARGEST_ARCHIVE = 4 << 30
"""Bytes that an archive may unpack to while it is looked through."""

_ROOT_FILES = re.compile(
    r"(pyproject\.toml|setup\.(py|cfg)|tox\.ini|pytest\.ini|\.pytest\.ini|\.?(pytest|hatch|tox)\.toml|PKG-INFO|noxfile\.py"
    r"|\.travis\.yml|\.gitlab-ci\.yml|azure-pipelines\.ya?ml|appveyor\.yml|Pipfile|manage\.py|conftest\.py"
    r"|\.python-version|environment\.ya?ml)"
)
_REQUIREMENTS = re.compile(r"[^/]*(requirements|require|reqs|deps|constraints|pip)[^/]*\.(txt|in|pip)$", re.IGNORECASE)
_TEST_FILE = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|tests?|conftest|runtests)\.py$")
_TEST_FOLDER = re.compile(r"(^|/)(tests?|testing)(/|$)")
_SETTINGS = re.compile(r"(^|/)[^/]*settings[^/]*(/__init__)?\.py$")


@dataclass(frozen=True)
class SourceTree:
    """What is known of a source tree. Paths are relative to its root, with slashes."""

    paths: frozenset[str] = frozenset()
    """All its files."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The content of those that matter here."""
    newest: datetime | None = None
    """When the youngest file was last changed; None where the archive's maker set all times alike."""

    def text(self, path: str) -> str:
        """A file's content, empty if there is none."""
        return self.texts.get(path, "")

    def has_folder(self, path: str) -> bool:
        """Whether any file lies below it."""
        return any(each.startswith(f"{path}/") for each in self.paths)

    def matching(self, pattern: str) -> list[str]:
        """The read files whose path matches a regular expression, in order."""
        return sorted(path for path in self.texts if re.search(pattern, path))


def is_test_file(path: str) -> bool:
    """Whether pytest would collect a file of this name."""
    return re.search(r"(^|/)(test_[^/]*|[^/]*_test)\.py$", path) is not None


def is_package(tree: SourceTree, name: str) -> bool:
    """Whether the tree has a package of this name to install."""
    return any(f"{place}{name}/__init__.py" in tree.paths for place in ("", "src/", "python/", "lib/", "py/"))


def is_below_tests(path: str) -> bool:
    """Whether a path leads through a directory of tests."""
    return _TEST_FOLDER.search(path) is not None


def matters(path: str) -> bool:
    """Whether a file may say how the tree is installed and tested."""
    folder, _, name = path.rpartition("/")
    depth = path.count("/")
    if depth == 0 and (
        _ROOT_FILES.fullmatch(name) or _TEST_FILE.search(name) or name.endswith((".txt", ".in", ".pip"))
    ):
        return True
    if folder.endswith(".egg-info") and name in {"requires.txt", "PKG-INFO", "top_level.txt"}:
        return True
    if folder in {".github/workflows", ".circleci"} and name.endswith((".yml", ".yaml")):
        return True
    if name.endswith((".txt", ".in", ".pip")):
        below = "requirements" in folder.lower() or _TEST_FOLDER.search(folder) is not None
        return depth <= 2 and (below or _REQUIREMENTS.search(name) is not None)
    if name in {"pytest.ini", "setup.cfg", "tox.ini"} and depth == 1:
        return True
    return name.endswith(".py") and bool(
        _TEST_FILE.search(path) or _TEST_FOLDER.search(folder) or _SETTINGS.search(path)
    )


class _Collector:
    """A tree as its files come in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paths: set[str] = set()
        self.texts: dict[str, str] = {}
        self.times: set[float] = set()
        self._read = 0

    def add(self, path: str, size: int, seconds: float, read: Callable[[], bytes]) -> None:
        self.paths.add(path)
        self.times.add(seconds)
        if len(self.paths) > MOST_FILES:
            raise BuildError(f"{self.name} has more than {MOST_FILES} files")
        if matters(path) and size <= LARGEST_FILE and self._read + size <= LARGEST_TOTAL:
            data = read()
            self._read += len(data)
            self.texts[path] = data.decode("utf-8", "replace")

    def tree(self) -> SourceTree:
        newest = max(self.times, default=0.0)
        now = datetime.now(UTC).timestamp()
        known = len(self.times) > 1 and 946_684_800 < newest <= now
        return SourceTree(
            frozenset(self.paths), dict(self.texts), datetime.fromtimestamp(newest, UTC) if known else None
        )


def read_sdist(path: Path) -> SourceTree:
    """A source distribution's tree, without the one directory at its top. Raises BuildError for what is none."""
    collector = _Collector(path.name)
    try:
        if path.suffix == ".zip":
            _read_zip(path, collector)
        else:
            with tarfile.open(path) as archive:
                _read_tar(archive, collector, strip=1)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
        raise BuildError(f"{path.name} can't be read as a source distribution: {error}") from None
    return collector.tree()


def read_export(path: Path, name: str) -> SourceTree:
    """The tree of a tar archive that `Commit.export` wrote."""
    collector = _Collector(name)
    with tarfile.open(path) as archive:
        _read_tar(archive, collector, strip=0)
    return collector.tree()


def read_folder(root: Path) -> SourceTree:
    """A directory's tree, without .git and caches."""
    collector = _Collector(str(root))
    for folder, folders, files, descriptor in os.fwalk(root):
        folders[:] = sorted(set(folders) - {".git", "__pycache__", ".tox", ".venv", "node_modules"})
        relative = PurePosixPath(folder).relative_to(PurePosixPath(root))
        for name in sorted(files):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):

                def read(name: str = name, at: int = descriptor) -> bytes:
                    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=at)
                    with os.fdopen(handle, "rb") as file:
                        return file.read(LARGEST_FILE)

                collector.add(str(relative / name), status.st_size, status.st_mtime, read)
    return collector.tree()


def _read_tar(archive: tarfile.TarFile, collector: _Collector, strip: int) -> None:
    total = 0
    for member in archive:
        total += max(member.size, 0) + 512
        if total > LARGEST_ARCHIVE:
            raise BuildError(f"{collector.name} unpacks to more than {LARGEST_ARCHIVE >> 30} GiB")
        path = _inside(member.name, strip)
        if path and member.isreg():

            def read(member: tarfile.TarInfo = member) -> bytes:
                file = archive.extractfile(member)
                return _bounded(file) if file else b""

            collector.add(path, member.size, float(member.mtime), read)


def _read_zip(path: Path, collector: _Collector) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            inside = _inside(member.filename, 1)
            if inside and not member.is_dir():

                def read(member: zipfile.ZipInfo = member) -> bytes:
                    with archive.open(member) as file:
                        return _bounded(file)

                seconds = datetime(*member.date_time, tzinfo=UTC).timestamp()
                collector.add(inside, member.file_size, seconds, read)


def _bounded(file: IO[bytes]) -> bytes:
    return file.read(LARGEST_FILE)


def _inside(name: str, strip: int) -> str:
    """A member's path below the root, empty for one that leads out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")][strip:]
    return "" if ".." in parts else "/".join(parts)


def walk_up(path: str) -> Iterator[str]:
    """The folders that a path lies in, innermost first, without the root."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path

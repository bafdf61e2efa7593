"""The one place on disk where this package keeps what may be made again, and the locks that guard it."""

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from minisandbox_ray.environments.room import disk_errors, writable_directory


def cache_root() -> Path:
    """The cache directory: ``$MINISANDBOX_CACHE``, else ``~/.cache/minisandbox_ray``.

    It holds ``archives/`` (built environments), ``store/`` (this node's materialised environments and interpreters),
    ``sdists/``, ``wheels/`` and ``apt/`` (downloads) and ``tasks/``. Deleting it while nothing runs costs only the time
    to build again.
    """
    chosen = os.environ.get("MINISANDBOX_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "minisandbox_ray"


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a flock on the file ``path`` (made if missing); yields False if ``wait`` is off and somebody holds it.

    Each call opens its own descriptor, so it excludes threads of one process as well as other processes, and the
    kernel lets go of it when the process dies. Raises ConfigError and StoreFullError where the file can't be made.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)


class Scratch:
    """Temporary directories beside the finished things, so that finishing is a rename.

    A directory is locked by its maker; one whose maker died is removed by whoever comes next.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._gate = root.parent / "locks" / "scratch"
        writable_directory(root)

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """A new empty directory, removed at the end with what is still in it."""
        path = self._new_path()
        with locked(self._gate), disk_errors(path):  # nobody may sweep between mkdir and flock
            path.mkdir()
            fd = _lock_directory(path)
        try:
            yield path
        finally:
            remove_tree(path)
            os.close(fd)

    def discard(self, tree: Path) -> None:
        """Make a directory of this disk vanish at once, then remove it. Needs no room, so it works on a full disk."""
        path = self._new_path()
        with locked(self._gate):
            tree.rename(path)
            fd = _lock_directory(path)
        try:
            remove_tree(path)
        finally:
            os.close(fd)

    def sweep(self) -> int:
        """Remove the directories of dead processes; returns how many."""
        removed = 0
        with locked(self._gate):
            for path in self.root.iterdir():
                try:
                    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # its maker has just removed it
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(path)
                    removed += 1
                except BlockingIOError:
                    pass  # in use
                except OSError:
                    pass  # a child of the dead process is still writing there: next time
                finally:
                    os.close(fd)
        return removed

    def _new_path(self) -> Path:
        return self.root / f"{os.getpid()}-{os.urandom(6).hex()}"


def _lock_directory(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def remove_tree(path: Path) -> None:
    """``rm -rf``, also through directories that their owner may not enter."""

    def unlock(function: Callable[..., Any], name: str, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError):
            return
        for locked_dir in (os.path.dirname(name), name):  # noqa: PTH120
            if not os.path.islink(locked_dir) and os.path.isdir(locked_dir):  # noqa: PTH112, PTH114
                os.chmod(locked_dir, stat.S_IRWXU)  # noqa: PTH101
        function(name) if function is not os.scandir else shutil.rmtree(name)

    shutil.rmtree(path, onexc=unlock)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The file to write in place of ``path``: it takes that name when the block ends well, else it goes.

    Raises ConfigError where the directory can't be written, StoreFullError where the disk is full.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    with disk_errors(path):
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers, and a machine that loses power, see all of it or nothing.

    Raises ConfigError where its directory can't be written, StoreFullError where the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    with disk_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

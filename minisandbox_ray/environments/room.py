"""Room on a disk: how much there is, how much stays free, and what its refusals mean for people."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minisandbox_ray.errors import ConfigError, StoreFullError

BLOCK = 4096
"""Bytes by which a file may take more of a disk than it holds."""
RESERVE_BYTES = 64 << 20
RESERVE_FILES = 1000

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)


@dataclass(frozen=True)
class Room:
    """Room on a disk, needed or free."""

    bytes: int = 0
    files: int = 0
    """Inodes."""

    def __add__(self, other: "Room") -> "Room":
        return Room(self.bytes + other.bytes, self.files + other.files)

    def holds(self, other: "Room") -> bool:
        """Whether `other` fits."""
        return other.bytes <= self.bytes and other.files <= self.files

    @property
    def mib(self) -> str:
        """For people: "3.5 MiB"."""
        return f"{self.bytes / 2**20:.1f} MiB"


def free_room(path: Path) -> Room:
    """What a user without privileges may still take of the disk that `path` is on."""
    disk = os.statvfs(path)
    return Room(disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else 1 << 62)  # btrfs counts no inodes


def reserve(path: Path) -> Room:
    """What stays free for whoever else uses the disk: 64 MiB or a hundredth, and a thousand inodes."""
    disk = os.statvfs(path)
    return Room(max(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // 100), RESERVE_FILES if disk.f_files else 0)


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk or quota is exhausted, also where a program said it on its stderr."""
    if isinstance(error, StoreFullError) or getattr(error, "errno", None) in _FULL:
        return True
    return any(os.strerror(number) in str(error) for number in _FULL)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Around writing at `path`: ConfigError where that is not allowed, StoreFullError where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in _REFUSED:
            raise ConfigError(
                f"cannot write {path} ({error.strerror}): make it writable for this user, or choose another place "
                f"(MINISANDBOX_CACHE for the cache, archives: for archives)"
            ) from error
        if is_full(error):
            folder = next(each for each in (path, *path.parents) if each.exists())
            raise StoreFullError(
                f"cannot write {path} ({error.strerror}; {free_room(folder).mib} free): free some space there, or use "
                f"a larger disk (MINISANDBOX_CACHE for the cache)"
            ) from error
        raise


def writable_directory(path: Path) -> Path:
    """`path`, made where it is missing. Raises ConfigError where nothing can be written to it."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            number = errno.EROFS if read_only else errno.EACCES
            raise OSError(number, os.strerror(number))
    return path

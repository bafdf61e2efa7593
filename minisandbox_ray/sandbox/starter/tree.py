"""Copies of what a sandbox wrote: trees of tmpfs, overlay layers with all that the kernel keeps in them included."""

# ruff: noqa: PTH208

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from . import syscalls

# whoever wrote the source may be writing still, and mounts on either side are no part of it
_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_PIECE = 1 << 30
_LONGEST_PATH = 4000  # bytes, for one system call
_DEEPEST = 4 * _LONGEST_PATH  # what lies deeper would take the time of a walk to it for each directory
_OVERFLOW = 65534  # the kernel's default for ids that are not mapped


def _same(number: int) -> int:
    return number


def copy(
    source: int,
    target: int,
    since: int = 0,
    *,
    merge: bool = False,
    owners: bool = True,
    moved: Callable[[int], int] = _same,
) -> None:
    """Make the directory `target` like `source` (descriptors), mount points left alone on both sides.

    Files of the source whose change time is before `since` (nanoseconds) are those that the target has already. With
    `merge` the source is laid over the target as an overlay would show it: what only the target has stays, but for
    what a whiteout hides. Without `owners` all copies belong to who makes them; else `moved` tells what an owner's id
    becomes. What lies below a path of 16,000 bytes is left out. Raises OSError.
    """
    new_files = os.fstat(target)

    def owner(status: os.stat_result) -> tuple[int, int] | None:
        """Whom a copy must be given to. Not nobody whom this user namespace knows: that is denied."""
        ids = moved(status.st_uid), moved(status.st_gid)
        is_given = owners and ids != (new_files.st_uid, new_files.st_gid) and _OVERFLOW not in ids
        return ids if is_given else None

    links: dict[int, bytes] = {}  # of files with several names: the first one in the target
    directories = [b""]
    while directories:
        directory = directories.pop()
        here, there = open_directory(source, directory), open_directory(target, directory)
        try:
            if here < 0 or there < 0:
                continue
            names, present = os.listdir(here), set(os.listdir(there))
            for name in () if merge else present.difference(names):
                remove(there, name)
            for name in names:
                try:
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                path = directory + b"/" + os.fsencode(name) if directory else os.fsencode(name)
                if merge and stat.S_ISCHR(status.st_mode):
                    remove(there, name, missing_ok=True)
                elif stat.S_ISDIR(status.st_mode):
                    if name not in present:
                        os.mkdir(name, 0o700, dir_fd=there)
                    elif not stat.S_ISDIR(os.stat(name, dir_fd=there, follow_symlinks=False).st_mode):
                        remove(there, name)
                        os.mkdir(name, 0o700, dir_fd=there)
                    if len(path) <= _DEEPEST:
                        directories.append(path)
                elif status.st_ctime_ns >= since or name not in present:
                    if name in present:
                        remove(there, name)
                    if status.st_nlink > 1 and status.st_ino in links:
                        os.link(links[status.st_ino], name, src_dir_fd=target, dst_dir_fd=there, follow_symlinks=False)
                        continue
                    _copy_entry(here, there, name, status, owner)
                    if len(path) <= _LONGEST_PATH:
                        links[status.st_ino] = path
            _copy_attributes(here, there, os.fstat(here), owner)
        finally:
            for descriptor in (here, there):
                if descriptor >= 0:
                    os.close(descriptor)


def open_directory(root: int, path: bytes, *, resolve: int = _RESOLVE) -> int:
    """`path` may be of any length. -> -1 for a mount point, and for what is no directory any more"""
    rest, here = path or b".", root
    while rest:
        piece = rest if len(rest) <= _LONGEST_PATH else rest[: rest.rindex(b"/", 0, _LONGEST_PATH)]
        rest = rest[len(piece) + 1 :]
        try:
            inner = syscalls.openat2(here, piece, os.O_RDONLY | os.O_DIRECTORY, resolve=resolve)
        except OSError as error:
            if error.errno in {errno.EXDEV, errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return -1
            raise
        finally:
            if here != root:
                os.close(here)
        here = inner
    return here


def remove(directory: int, name: str, *, missing_ok: bool = False) -> None:
    """With everything below; not a mount point."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        inner = open_directory(directory, os.fsencode(name))
        if inner < 0:
            return
        try:
            for below in os.listdir(inner):
                remove(inner, below)
        finally:
            os.close(inner)
        with contextlib.suppress(OSError):  # there is a mount in it
            os.rmdir(name, dir_fd=directory)
    except FileNotFoundError:
        if not missing_ok:
            raise
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


_Owner = Callable[[os.stat_result], tuple[int, int] | None]


def _copy_entry(here: int, there: int, name: str, status: os.stat_result, owner: _Owner) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        _copy_file(here, there, name, owner)
        return
    if kind == stat.S_IFLNK:
        os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
    elif kind in (stat.S_IFIFO, stat.S_IFSOCK) or (kind == stat.S_IFCHR and status.st_rdev == 0):  # 0: a whiteout
        os.mknod(name, status.st_mode, status.st_rdev, dir_fd=there)
    else:
        return
    if ids := owner(status):
        os.chown(name, *ids, dir_fd=there, follow_symlinks=False)
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=there, follow_symlinks=False)


def _copy_file(here: int, there: int, name: str, owner: _Owner) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        source = syscalls.openat2(here, name, flags, resolve=_RESOLVE)
    except OSError as error:
        if error.errno in {errno.EXDEV, errno.ENOENT, errno.ELOOP, errno.ENXIO}:
            return
        raise
    try:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode):
            return
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=there)
        try:
            _copy_content(source, target, status.st_size)
            _copy_attributes(source, target, status, owner)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _copy_content(source: int, target: int, size: int) -> None:
    """Holes stay holes: a file may be far larger than what it takes."""
    position = 0
    while position < size:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole
                break
            raise
        end = min(os.lseek(source, position, os.SEEK_HOLE), size)
        os.lseek(target, position, os.SEEK_SET)
        while position < end:
            sent = os.sendfile(target, source, position, min(end - position, _PIECE))
            if not sent:  # cut shorter meanwhile
                size = position
                break
            position += sent
    os.ftruncate(target, size)


def _copy_attributes(source: int, target: int, status: os.stat_result, owner: _Owner) -> None:
    for name in os.listxattr(source):
        if not name.startswith("security."):  # the host's labels; of no use inside
            os.setxattr(target, name, os.getxattr(source, name))
    if ids := owner(status):
        os.fchown(target, *ids)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

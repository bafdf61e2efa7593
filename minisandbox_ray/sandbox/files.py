"""Files of a sandbox, read and written from outside: resolved inside its root, without races.

What is new belongs to root inside, whoever that is outside.
"""

# ruff: noqa: PTH208

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .starter import paths, syscalls, tree

_FLAGS = os.O_NONBLOCK | os.O_NOCTTY
_PIECE = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BELOW = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DEEPEST = 16_000  # bytes of a path: a directory is walked to from the top


def _device_of_processes(root: int) -> int | None:
    """The host may read what nobody inside may, of processes: /proc is not for this interface."""
    try:
        proc = paths.open_in_root(root, "/proc", os.O_PATH)
    except FileNotFoundError:  # a sandbox without namespaces
        return None
    try:
        device = os.fstat(proc).st_dev
        return None if device == os.fstat(root).st_dev else device
    finally:
        os.close(proc)


def _check(root: int, descriptor: int, path: str) -> os.stat_result:
    status = os.fstat(descriptor)
    is_process_file = status.st_dev == _device_of_processes(root)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode) or is_process_file:
        raise OSError(errno.EINVAL, "not a regular file", path)
    return status


def _check_path(path: str) -> None:
    if "\0" in path:
        raise ValueError(f"a path holds a NUL: {path!r}")


def _open(root: int, path: str) -> int:
    """A regular file for reading; what it is is looked at before it is opened, which may have an effect."""
    _check_path(path)
    descriptor = paths.open_in_root(root, path, os.O_PATH)
    try:
        _check(root, descriptor, path)
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | _FLAGS)
    finally:
        os.close(descriptor)


def _pieces(descriptor: int, path: str, max_bytes: int) -> Iterator[bytes]:
    left = max_bytes + 1
    while data := os.read(descriptor, min(left, _PIECE)):
        left -= len(data)
        if left <= 0:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
        yield data


def read(root: int, path: str, max_bytes: int) -> bytes:
    descriptor = _open(root, path)
    try:
        return b"".join(_pieces(descriptor, path, max_bytes))
    finally:
        os.close(descriptor)


def write(root: int, path: str, data: bytes, mode: int) -> None:
    descriptor = _create(root, path, mode)
    try:
        _write(descriptor, data)
    finally:
        os.close(descriptor)


def _owner(root: int) -> int | None:
    """Who root inside is; None if this process is nobody else."""
    return os.fstat(root).st_uid if os.geteuid() == 0 else None


def _create(root: int, path: str, mode: int) -> int:
    """An empty regular file, old or new, with its directories; -> descriptor for writing"""
    _check_path(path)
    parent, _, name = path.rstrip("/").rpartition("/")
    if not name or path.endswith("/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    owner = _owner(root)
    if parent:
        os.close(paths.make_directories(root, parent, owner))
    try:
        descriptor, is_new = paths.open_in_root(root, path, os.O_WRONLY | _FLAGS), False
    except FileNotFoundError:
        flags, is_new = os.O_WRONLY | os.O_CREAT | _FLAGS, True
        descriptor = paths.make_for(owner, lambda: paths.open_in_root(root, path, flags, 0o600))
    try:
        _check(root, descriptor, path)
        if is_new:
            if owner is not None:
                os.fchown(descriptor, owner, owner)
            os.fchmod(descriptor, mode)
        os.ftruncate(descriptor, 0)
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def upload(root: int, source: Path, target: str) -> None:
    """Copy a file, or a directory with all below it, into the sandbox: files, directories and links."""
    if source.is_symlink() or not source.is_dir():
        _upload_file(root, source, target)
        return
    _check_path(target)
    os.close(paths.make_directories(root, target, _owner(root)))
    for directory, names, files in os.walk(source):
        inside = f"{target}/{Path(directory).relative_to(source)}"
        for name in names + files:
            path = Path(directory, name)
            if path.is_symlink():
                _make_link(root, os.readlink(path), inside, name)  # noqa: PTH115  (pathlib would tidy it up)
            elif path.is_dir():
                os.close(paths.make_directories(root, f"{inside}/{name}", _owner(root)))
            elif path.is_file():
                _upload_file(root, path, f"{inside}/{name}")


def _upload_file(root: int, source: Path, target: str) -> None:
    with open(source, "rb", opener=lambda path, flags: os.open(path, flags | _FLAGS)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(source))
        descriptor = _create(root, target, stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777)
        try:
            while data := file.read(_PIECE):
                _write(descriptor, data)
        finally:
            os.close(descriptor)


def _make_link(root: int, link: str, directory: str, name: str) -> None:
    """In the place of a file or link that is there."""
    parent = paths.open_in_root(root, directory, os.O_PATH | os.O_DIRECTORY)
    try:
        owner = _owner(root)
        try:
            paths.make_for(owner, lambda: os.symlink(link, name, dir_fd=parent))
        except FileExistsError:
            os.unlink(name, dir_fd=parent)
            paths.make_for(owner, lambda: os.symlink(link, name, dir_fd=parent))
        if owner is not None:
            os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


def download(root: int, source: str, target: Path, max_bytes: int) -> None:
    """Copy a file, or a directory with all below it, out of the sandbox: regular files and directories.

    Links are copied where they stand below it, as links, and never followed; programs stay executable. `max_bytes` in
    all. Nothing of processes is copied.
    """
    _check_path(source)
    try:
        top = paths.open_in_root(root, source, _DIRECTORY)
    except NotADirectoryError:
        _download_file(_open(root, source), None, target, max_bytes)
        return
    processes = _device_of_processes(root)
    copy = -1
    try:
        if os.fstat(top).st_dev == processes:
            raise OSError(errno.EINVAL, "not a directory of files", source)
        target.mkdir(parents=True, exist_ok=True)
        copy = os.open(target, _DIRECTORY | os.O_NOFOLLOW)
        left, pending = max_bytes, [b""]
        while pending:  # by path: a descriptor for each would let whoever made them use up all that the host has
            directory = pending.pop()
            if len(directory) > _DEEPEST:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), source)
            here = tree.open_directory(top, directory, resolve=_BELOW)
            if here < 0:
                continue
            there = tree.open_directory(copy, directory, resolve=_BELOW)
            try:
                if there < 0:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target))
                for name in os.listdir(here):
                    try:
                        status = os.stat(name, dir_fd=here, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if status.st_dev == processes:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, 0o755, dir_fd=there)
                        pending.append(directory + b"/" + os.fsencode(name) if directory else os.fsencode(name))
                    elif stat.S_ISLNK(status.st_mode):
                        _replace(there, name)
                        os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
                    elif stat.S_ISREG(status.st_mode):
                        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | _FLAGS, dir_fd=here)
                        left -= _download_file(descriptor, there, Path(name), left)
            finally:
                os.close(here)
                if there >= 0:
                    os.close(there)
    finally:
        os.close(top)
        if copy >= 0:
            os.close(copy)


def _replace(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass


def _download_file(source: int, directory: int | None, target: Path, max_bytes: int) -> int:
    """-> its size in bytes"""
    size = 0
    try:
        status = os.fstat(source)
        if directory is None:
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        else:
            _replace(directory, str(target))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            copy = os.open(target, flags, 0o644, dir_fd=directory)
        try:
            for data in _pieces(source, str(target), max_bytes):
                _write(copy, data)
                size += len(data)
            os.fchmod(copy, 0o755 if status.st_mode & 0o100 else 0o644)
        except BaseException:  # a part of a file would look like one
            os.unlink(target, dir_fd=directory)
            raise
        finally:
            os.close(copy)
    finally:
        os.close(source)
    return size

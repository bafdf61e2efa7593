"""Files of a sandbox, read and written from outside: resolved inside its root, regular files only, without races."""

import errno
import os
import stat

from .starter import paths

_FLAGS = os.O_NONBLOCK | os.O_NOCTTY


def _check(root: int, descriptor: int, path: str) -> os.stat_result:
    """The host may read what nobody inside may, of processes: /proc is not for this interface."""
    status = os.fstat(descriptor)
    proc = paths.open_in_root(root, "/proc", os.O_PATH)
    try:
        is_process_file = status.st_dev == os.fstat(proc).st_dev
    finally:
        os.close(proc)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode) or is_process_file:
        raise OSError(errno.EINVAL, "not a regular file", path)
    return status


def read(root: int, path: str, max_bytes: int) -> bytes:
    descriptor = paths.open_in_root(root, path, os.O_PATH)
    try:
        _check(root, descriptor, path)
        with open(f"/proc/self/fd/{descriptor}", "rb", buffering=0, opener=_opener) as file:
            chunks, left = [], max_bytes + 1
            while left > 0 and (data := file.read(min(left, 1 << 20))):
                chunks.append(data)
                left -= len(data)
    finally:
        os.close(descriptor)
    if left <= 0:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
    return b"".join(chunks)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | _FLAGS | os.O_CLOEXEC)


def write(root: int, path: str, data: bytes, mode: int) -> None:
    parent, _, name = path.rstrip("/").rpartition("/")
    if not name or path.endswith("/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if parent:
        os.close(paths.make_directories(root, parent))
    try:
        descriptor, is_new = paths.open_in_root(root, path, os.O_WRONLY | _FLAGS), False
    except FileNotFoundError:
        descriptor, is_new = paths.open_in_root(root, path, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o600), True
    try:
        _check(root, descriptor, path)
        if is_new:
            os.fchmod(descriptor, mode)
        os.ftruncate(descriptor, 0)
        with open(descriptor, "wb", buffering=0, closefd=False) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    finally:
        os.close(descriptor)

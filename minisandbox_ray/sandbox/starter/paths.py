"""Paths resolved inside a root that somebody hostile may be changing meanwhile."""

import contextlib
import errno
import os
from collections.abc import Callable

from . import syscalls


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` as a process with this root would; magic links of /proc are refused. Raises OSError."""
    resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
    for attempt in range(64):
        try:
            return syscalls.openat2(root, path, flags, mode, resolve)
        except OSError as error:  # EAGAIN: something was renamed while the kernel walked a `..`
            if error.errno != errno.EAGAIN or attempt == 63:
                raise
    raise AssertionError


def make_for[T](owner: int | None, make: Callable[[], T]) -> T:
    """Make something; as its owner, where a mount maps owners (a bind) and so has no name for this process's user."""
    try:
        return make()
    except OSError as error:
        if error.errno != errno.EOVERFLOW or owner is None:
            raise
    with syscalls.as_file_owner(owner):
        return make()


def make_directories(root: int, path: str, owner: int | None = None) -> int:
    """`mkdir -p` inside the root; symbolic links are followed inside it. -> O_PATH descriptor of the last one

    New ones belong to `owner` and its group, if that is given.
    """
    flags = os.O_PATH | os.O_DIRECTORY
    done = ""
    current = open_in_root(root, "/", flags)
    for part in path.strip("/").split("/"):
        try:
            try:
                following = open_in_root(root, f"{done}/{part}", flags)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):  # another thread, or somebody inside, was faster
                    make_for(owner, lambda name=part, parent=current: os.mkdir(name, 0o755, dir_fd=parent))  # type: ignore[misc]
                    os.chmod(part, 0o755, dir_fd=current)  # whatever the umask is
                    if owner is not None:
                        os.chown(part, owner, owner, dir_fd=current, follow_symlinks=False)
                following = open_in_root(root, f"{done}/{part}", flags)
        finally:
            os.close(current)
        current, done = following, f"{done}/{part}"
    return current

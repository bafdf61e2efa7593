"""Modes and times of files are changed on behalf of confined programs, where the files are their own.

Landlock does not guard chmod, chown and utime: they reach whatever the user owns. So the system call filter hands them
over to a thread outside (the kernel's userspace-api/seccomp_filter.rst, "Userspace Notification"), which resolves the
path itself and acts on what that led to, never on a path.
"""

# ruff: noqa: PTH101, PTH115

import errno
import fcntl
import os
import select
import stat
import struct
import time
from collections.abc import Callable

from . import syscalls
from .seccomp import ON_BEHALF

_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_{RECV,SEND}
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_UTIME_NOW, _UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
_LONGEST_PATH = 4096
_NONE = (1 << 32) - 1


def serve(listener: int, places: list[str]) -> None:
    """Answer for ever; only what lies below these directories may be changed."""
    column = ("x86_64", "aarch64").index(syscalls.MACHINE)
    names = {numbers[column]: name for name, numbers in ON_BEHALF.items()}
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while True:
        poller.poll()
        message = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, message)
        except OSError:  # killed meanwhile
            continue
        number, pid, _, call, _, _, *arguments = _NOTIFICATION.unpack(message)
        failure = 0
        try:
            _act(names[call], pid, arguments, places)
        except OSError as error:
            failure = error.errno or errno.EPERM
        except Exception:
            failure = errno.EPERM
        try:
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(number, 0, -failure, 0))
        except OSError:
            continue


def _act(name: str, pid: int, arguments: list[int], places: list[str]) -> None:
    def memory(address: int, size: int) -> bytes:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, address)
        finally:
            os.close(descriptor)

    if name.startswith("f") and not name.endswith(("at", "at2")):  # of an open file
        where, flags, rest = (arguments[0], 0), _AT_EMPTY_PATH, arguments[1:]
    elif name.endswith(("at", "at2")):
        where, rest = (arguments[0], arguments[1]), arguments[2:]
        flags = {"fchmodat": 0, "fchmodat2": arguments[3], "fchownat": arguments[4], "utimensat": arguments[3]}[name]
        if name == "utimensat" and not arguments[1]:
            flags |= _AT_EMPTY_PATH
    else:
        where, rest = (_AT_FDCWD, arguments[0]), arguments[1:]
        flags = _AT_SYMLINK_NOFOLLOW if name == "lchown" else 0
    file = _open(pid, *where, flags, memory)
    try:
        path = os.readlink(f"/proc/self/fd/{file}")
        if not any(f"{path}/".startswith(f"{place}/") for place in places):
            raise PermissionError(errno.EPERM, "not its own")
        status = os.fstat(file)
        if "chmod" in name:
            if stat.S_ISLNK(status.st_mode):
                raise OSError(errno.EOPNOTSUPP, "a link")
            os.chmod(f"/proc/self/fd/{file}", rest[0] & 0o7777)
        elif "chown" in name:  # it has one user, and so there is nothing to be done
            if not {rest[0] & _NONE, rest[1] & _NONE} <= {_NONE, status.st_uid, status.st_gid}:
                raise PermissionError(errno.EPERM, "to another user")
        else:
            now = time.time_ns()
            wanted = struct.unpack("4q", memory(rest[0], 32)) if rest[0] else (0, _UTIME_NOW, 0, _UTIME_NOW)
            olds = status.st_atime_ns, status.st_mtime_ns
            times = [
                now if part == _UTIME_NOW else old if part == _UTIME_OMIT else second * 10**9 + part
                for second, part, old in zip(wanted[::2], wanted[1::2], olds, strict=True)
            ]
            os.utime(f"/proc/self/fd/{file}", ns=(times[0], times[1]))
    finally:
        os.close(file)


def _open(pid: int, directory: int, address: int, flags: int, memory: Callable[[int, int], bytes]) -> int:
    """What the call names, as a descriptor without access to it."""
    number = directory & _NONE
    base = f"/proc/{pid}/cwd" if number == _AT_FDCWD & _NONE else f"/proc/{pid}/fd/{number}"
    path = b""
    if address:
        text = b""
        while b"\0" not in text and len(text) < _LONGEST_PATH:  # not across a page that may not be there
            text += memory(address + len(text), 4096 - (address + len(text)) % 4096)
        path = text.partition(b"\0")[0]
    if not path:
        if not flags & _AT_EMPTY_PATH:
            raise FileNotFoundError(errno.ENOENT, "empty path")
        return os.open(base, os.O_PATH | os.O_CLOEXEC)
    if path.startswith(b"/proc/self/"):
        path = b"/proc/%d/" % pid + path.removeprefix(b"/proc/self/")
    how = os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if flags & _AT_SYMLINK_NOFOLLOW else 0)
    if path.startswith(b"/"):
        return os.open(path, how)
    above = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return os.open(path, how, dir_fd=above)
    finally:
        os.close(above)

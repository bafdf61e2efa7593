"""What a thread and its children may still do to the host's files, network and processes, without namespaces.

Source: the kernel's userspace-api/landlock.rst. Not covered by it: stat, chmod, chown, utime and setxattr of the
files' own user, and connect(2) to Unix sockets by path; seccomp.py sees to sockets and attributes.
"""

import os
import stat

from . import syscalls

_EXECUTE, _WRITE, _READ, _READ_DIRECTORY, _REFER, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 13, 1 << 14, 1 << 15
_BASE = (1 << 13) - 1  # of version 1
_OF_A_FILE = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_TCP = 3  # bind and connect
_SCOPES = 3  # abstract Unix sockets, signals
READ_ONLY, DEVICE = _EXECUTE | _READ | _READ_DIRECTORY, _WRITE | _READ | _IOCTL
ALL = _BASE | _REFER | _TRUNCATE | _IOCTL


def make(accesses: dict[str, int], *, network: bool) -> int:
    """Rules that deny all but the accesses to these paths (those that exist); -> their descriptor

    As far as this kernel can: TCP since Linux 6.7, device ioctls since 6.10, signals and abstract sockets since 6.12.
    Raises OSError where there is no Landlock.
    """
    version = syscalls.landlock_version()
    handled = _BASE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled |= _IOCTL if version >= 5 else 0
    ruleset = syscalls.create_ruleset(
        handled, _TCP if version >= 4 and not network else 0, _SCOPES if version >= 6 else 0
    )
    for path, wanted in accesses.items():
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        syscalls.allow_below(ruleset, descriptor, wanted & handled & (handled if is_directory else _OF_A_FILE))
        os.close(descriptor)
    return ruleset

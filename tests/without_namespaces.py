"""Run Python where no namespace can be made and nothing mounted: `python tests/without_namespaces.py [arguments]`.

As in a container without privileges under an engine's usual system call filter.
"""

import errno
import os
import struct
import sys

from minisandbox_ray.sandbox.starter import seccomp, syscalls

_LOAD, _EQUAL, _RETURN, _ERRNO, _ALLOW = 0x20, 0x15, 0x06, 0x50000, 0x7FFF0000


def deny() -> None:
    """For this process and its children, for good."""
    column = ("x86_64", "aarch64").index(syscalls.MACHINE)
    program = [(_LOAD, 0, 0, 0)]
    for name in ("unshare", "mount", "open_tree", "move_mount", "mount_setattr"):
        number = seccomp._DENIED[name][column]
        assert number is not None
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    program.append((_RETURN, 0, 0, _ALLOW))
    syscalls.set_no_new_privileges()
    syscalls.install_seccomp_filter(b"".join(struct.pack("HBBI", *step) for step in program))


if __name__ == "__main__":
    deny()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])

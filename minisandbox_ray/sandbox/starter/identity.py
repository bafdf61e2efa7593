"""Who root inside a sandbox is: the user namespaces, from the most to the least separate.

`shifted`: root inside is an id of the host that nobody has; mounts show the host's files as if root inside owned them
(id-mapped mounts: the kernel's filesystems/idmappings.rst). Each sandbox has ids and a namespace of its own, owned by
nobody else: what the kernel counts by user (descriptors under way in sockets, pipes, epoll and inotify watches, queued
signals, message queues) is no way to starve another sandbox or the host. `same`: root inside has root's id, but no
privilege outside of its user namespace. `own`: the starter belongs to an ordinary user, whose id root inside has.
`none`: there are no user namespaces; root inside is root with few capabilities, which is no strict isolation.
"""

# ruff: noqa: PTH123

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from . import syscalls

Kind = Literal["shifted", "same", "own", "none"]
_BASE = _COUNT = 1 << 30  # ids that neither people nor /etc/subuid have, and as many as people may have
_OWN = 1 << 16  # so many of them, from 0 on, are each sandbox's own; all map the others to the same ones
_next = itertools.count(int.from_bytes(os.urandom(4)))


_NO_PROJECTS = "0 0 1"  # anybody inside may write it, but only once


@dataclass(frozen=True, slots=True)
class Identity:
    kind: Kind
    root: int
    """The id of root inside, as the starter numbers it."""
    namespace: int | None
    """Descriptor of the user namespace that a sandbox enters last; None: it makes one of its own."""

    @property
    def maps_mounts(self) -> bool:
        return self.kind == "shifted"

    @property
    def is_strict(self) -> bool:
        return self.kind != "none"

    def anew(self) -> "Identity":
        """The same for one more sandbox; its namespace, if it has one, is the caller's to close. Raises OSError."""
        if self.kind != "shifted":
            return self if self.namespace is None else dataclasses.replace(self, namespace=os.dup(self.namespace))
        root = _BASE + next(_next) % (_COUNT // _OWN) * _OWN
        return dataclasses.replace(self, root=root, namespace=_make_shifted(root))

    def enter(self) -> None:
        """Become root inside, with every capability there and none outside. Raises OSError."""
        if self.kind == "none":
            return
        if self.namespace is None:
            _make_own()
        else:
            os.setns(self.namespace, os.CLONE_NEWUSER)
        with contextlib.suppress(PermissionError):  # groups of an ordinary user stay: the kernel's user_namespaces(7)
            os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def find() -> dict[Kind, Identity]:
    """What this starter can give its sandboxes, the best first. An ordinary user's is root of a namespace from now on.

    Raises OSError where an ordinary user gets no user namespaces.
    """
    if not is_privileged():
        _make_own()
        with contextlib.suppress(OSError):  # 128 by default, of which the user's own programs need some
            _write("/proc/sys/user/max_inotify_instances", "64")
        os.unshare(os.CLONE_NEWNS)  # its own, else it may copy no mount
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        return {"own": Identity("own", 0, None)}
    found: dict[Kind, Identity] = {}
    with contextlib.suppress(OSError):  # no idea of such ids in a container of few
        found["shifted"] = Identity("shifted", _BASE, _make_shifted(_BASE))
    try:
        found["same"] = Identity("same", 0, _make(_unchanged("uid"), _unchanged("gid")))
    except OSError:
        found["none"] = Identity("none", 0, None)
    return found


@functools.cache
def is_privileged() -> bool:
    """Whether this process began as the machine's root.

    Root of a user namespace, as in an ordinary user's container, may make neither devices nor trusted xattrs.
    """
    return os.geteuid() == 0 and _unchanged("uid").split() == ["0", "0", str((1 << 32) - 1)]


def _unchanged(kind: str) -> str:
    """A map of all ids that this process knows to themselves."""
    with open(f"/proc/self/{kind}_map") as file:
        return "\n".join(f"{first} {first} {count}" for first, _, count in map(str.split, file))


def moved(theirs: int, ours: int) -> Callable[[int], int]:
    """-> what an id of the sandbox whose root is `theirs` is in that whose root is `ours`"""
    return lambda number: number - theirs + ours if theirs <= number < theirs + _OWN else number


def _make_shifted(root: int) -> int:
    shift = f"0 {root} {_OWN}\n{_OWN} {2 * _BASE} {_COUNT - _OWN}"
    return _make(shift, shift, owner=root)


def _make(users: str, groups: str, owner: int = 0) -> int:
    """A new user namespace with these maps, on the account of `owner`; -> its descriptor"""
    ready, done = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            os.close(done[1])
            if owner:
                syscalls.create_files_as(owner)  # so that its capabilities stay
                os.setresuid(owner, owner, owner)
            os.unshare(os.CLONE_NEWUSER)
            os.write(ready[1], b".")
            os.read(done[0], 1)
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    os.close(ready[1])
    os.close(done[0])
    try:
        if not os.read(ready[0], 1):
            raise OSError("no new user namespace")
        for name, text in (("uid_map", users), ("gid_map", groups), ("projid_map", _NO_PROJECTS)):
            _write(f"/proc/{pid}/{name}", text)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready[0])
        os.close(done[1])
        with contextlib.suppress(ChildProcessError):  # reaped by itself where SIGCHLD is ignored
            os.waitpid(pid, 0)


def _make_own() -> None:
    """Enter a new user namespace, in which this process's user is root."""
    user, group = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER)
    syscalls.set_dumpable(True)  # else its maps belong to root outside
    with contextlib.suppress(FileNotFoundError, PermissionError):  # denied already where it was so outside
        _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {user} 1")
    _write("/proc/self/gid_map", f"0 {group} 1")
    with contextlib.suppress(PermissionError):  # there is none in the namespace around it: then nobody can write it
        _write("/proc/self/projid_map", _NO_PROJECTS)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())  # in one piece, as the kernel wants it
    finally:
        os.close(descriptor)

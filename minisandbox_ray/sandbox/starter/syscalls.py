"""Kernel calls that Python's os module lacks, typed. The only file that uses ctypes.

Sources: the manual pages of section 2 and the kernel's include/uapi headers. Every call raises OSError.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

MACHINE = platform.machine()
READ_NUMBER = {"x86_64": 0, "aarch64": 63}.get(MACHINE, -1)  # read(2), as /proc/PID/syscall shows it
_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(MACHINE, -1)
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(MACHINE, -1)
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442  # the same on every architecture

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 32, 4096, 16384, 1 << 18, 1 << 19
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
_ATTR_IDMAP = 0x00100000
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446  # likewise
_SCOPE_ABSTRACT_UNIX_SOCKET = 1
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_FROM_EMPTY_PATH, _MOVE_MOUNT_TO_EMPTY_PATH = 0x1, 0x4, 0x40

RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS = 0x01, 0x02, 0x04
RESOLVE_BENEATH, RESOLVE_IN_ROOT = 0x08, 0x10

IN_OPEN = 0x20

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS = 4, 22, 24, 28
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_PR_SET_PDEATHSIG, _PR_SET_PTRACER = 1, 0x59616D61
_SECBIT_NO_SETUID_FIXUP = 4


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _path(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    result = _libc.mount(_path(source), _path(target), _path(kind), ctypes.c_ulong(flags), _path(data))
    _check(result, f"mount {kind or source or ''} on {target}")


def unmount(target: str) -> None:
    """Detach the mount at target, lazily, with what is below it."""
    _check(_libc.umount2(_path(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    _check(_libc.syscall(ctypes.c_long(_PIVOT_ROOT), _path(new), _path(old)), "pivot_root")


def set_mount_attributes(
    target: str | int, attributes: int, *, recursive: bool = True, user_namespace: int | None = None
) -> None:
    """mount_setattr(2), since Linux 5.12. `target` is a path, or the descriptor of a mount.

    With a user namespace (descriptor), the mount shows its files' owners as that namespace maps them: only for a mount
    that is nowhere attached yet, of a file system that can do it.
    """
    mapped = 0 if user_namespace is None else _ATTR_IDMAP
    wanted = struct.pack("4Q", attributes | mapped, 0, 0, user_namespace or 0)
    at, path, empty = (target, b"", _AT_EMPTY_PATH) if isinstance(target, int) else (_AT_FDCWD, _path(target), 0)
    flags = ctypes.c_uint(empty | (_AT_RECURSIVE if recursive else 0))
    number, size = ctypes.c_long(_MOUNT_SETATTR), ctypes.c_size_t(len(wanted))
    result = _libc.syscall(number, ctypes.c_int(at), path, flags, wanted, size)
    _check(result, f"mount_setattr {target}")


def clone_mount(source: int, *, recursive: bool) -> int:
    """A copy, attached nowhere, of the mount below `source` (descriptor); open_tree(2), since Linux 5.2."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    number = ctypes.c_long(_OPEN_TREE)
    return _check(_libc.syscall(number, ctypes.c_int(source), b"", ctypes.c_uint(flags)), "open_tree")


def attach_mount(mount_: int, target: int) -> None:
    """Attach a mount of clone_mount on `target` (descriptors); move_mount(2), since Linux 5.2."""
    flags = ctypes.c_uint(_MOVE_MOUNT_FROM_EMPTY_PATH | _MOVE_MOUNT_TO_EMPTY_PATH)
    number = ctypes.c_long(_MOVE_MOUNT)
    _check(_libc.syscall(number, ctypes.c_int(mount_), b"", ctypes.c_int(target), b"", flags), "move_mount")


def openat2(directory: int, path: str | bytes, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """openat2(2), since Linux 5.6: a path is resolved below `directory` as `resolve` says. -> descriptor"""
    how = struct.pack("3Q", flags | os.O_CLOEXEC, mode, resolve)
    number, size = ctypes.c_long(_OPENAT2), ctypes.c_size_t(len(how))
    descriptor = _libc.syscall(number, ctypes.c_int(directory), os.fsencode(path), how, size)
    if descriptor < 0:
        number_ = ctypes.get_errno()
        raise OSError(number_, os.strerror(number_), os.fsdecode(path))
    return descriptor


def _prctl(option: int, *arguments: int) -> int:
    values = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(ctypes.c_int(option), *values), f"prctl {option}")


def set_dumpable(value: bool) -> None:
    """False: nobody without CAP_SYS_PTRACE can read this process's memory, environment or descriptors."""
    _prctl(_PR_SET_DUMPABLE, int(value))


def set_no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """When the thread that forked this process ends, this process is killed."""
    _prctl(_PR_SET_PDEATHSIG, 9)


def let_anybody_trace() -> None:
    """Whoever may otherwise: undo the restriction to ancestors, where there is one (the kernel's LSM/Yama.rst)."""
    try:
        _prctl(_PR_SET_PTRACER, (1 << 64) - 1)  # PR_SET_PTRACER_ANY
    except OSError:  # no Yama here
        pass


def create_files_as(number: int) -> None:
    """What this process creates from now on belongs to that user and group; its capabilities stay."""
    _prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)
    for call in (_libc.setfsuid, _libc.setfsgid):
        call(ctypes.c_uint(number))
        if call(ctypes.c_uint(0xFFFFFFFF)) != number:  # tells the current one; it never fails
            raise PermissionError(f"cannot create files as user {number}")


@contextmanager
def as_file_owner(number: int) -> Iterator[None]:
    """This thread opens and creates files as that user and group, without any privilege, until the end of the block."""
    before = [call(ctypes.c_uint(number)) for call in (_libc.setfsgid, _libc.setfsuid)]
    try:
        yield
    finally:
        for call, old in zip((_libc.setfsuid, _libc.setfsgid), reversed(before), strict=True):
            call(ctypes.c_uint(old))


def drop_from_bounding_set(keep: Set[int]) -> None:
    """No program executed from now on gets a capability but these; this process keeps what it has."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in set(range(last + 1)) - keep:
        _prctl(_PR_CAPBSET_DROP, capability)


def set_capabilities(keep: Set[int]) -> None:
    """Give up every other capability, for good."""
    mask = sum(1 << capability for capability in keep)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    _check(_libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)), "capset")
    _prctl(_PR_CAP_AMBIENT, 4)  # PR_CAP_AMBIENT_CLEAR_ALL


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install_seccomp_filter(program: bytes) -> None:
    """Install a classic BPF program (8-byte instructions) for this process and its children."""
    filter_program = _FilterProgram(len(program) // 8, program)
    result = _libc.prctl(ctypes.c_int(_PR_SET_SECCOMP), ctypes.c_ulong(2), ctypes.byref(filter_program), 0, 0)
    _check(result, "seccomp")


def install_seccomp_listener(program: bytes) -> int:
    """The same; -> the descriptor over which the calls are told that it hands over (seccomp_unotify(2))"""
    filter_program = _FilterProgram(len(program) // 8, program)
    number, operation, flags = ctypes.c_long(_SECCOMP), ctypes.c_uint(1), ctypes.c_uint(8)
    return _check(_libc.syscall(number, operation, flags, ctypes.byref(filter_program)), "seccomp listener")


def leave_abstract_sockets() -> bool:
    """From now on reach no abstract Unix socket of a process that did not do this; -> False before Linux 6.12.

    Source: the kernel's userspace-api/landlock.rst; no_new_privileges must be set.
    """
    try:
        ruleset = create_ruleset(0, 0, _SCOPE_ABSTRACT_UNIX_SOCKET)
    except OSError:
        return False
    try:
        enter_ruleset(ruleset)
    except OSError:
        return False
    finally:
        os.close(ruleset)
    return True


def inotify() -> int:
    """A non-blocking inotify descriptor."""
    return _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")


def add_open_watch(descriptor: int, path: str) -> int:
    """Have the descriptor tell when the file is opened; -> the watch's number."""
    mask = ctypes.c_uint(IN_OPEN)
    return _check(_libc.inotify_add_watch(descriptor, _path(path), mask), "inotify_add_watch")


def remove_watch(descriptor: int, watch: int) -> None:
    """The kernel may have removed it already, with the file."""
    _libc.inotify_rm_watch(descriptor, watch)


def hide_command_line(title: str) -> None:
    """Overwrite this process's argument area, which /proc/PID/cmdline shows to everybody."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 of proc_pid_stat(5)
    text = os.fsencode(title)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def landlock_version() -> int:
    """Of the interface for confining oneself (landlock_create_ruleset(2)); raises OSError where there is none."""
    number, version = ctypes.c_long(_LANDLOCK_CREATE_RULESET), ctypes.c_uint(1)  # LANDLOCK_CREATE_RULESET_VERSION
    return _check(_libc.syscall(number, None, ctypes.c_size_t(0), version), "landlock")


def create_ruleset(files: int, network: int, scopes: int) -> int:
    """The accesses that it handles are denied but where rules allow them (landlock(7)); -> descriptor"""
    attributes = struct.pack("3Q", files, network, scopes)
    size = 24 if scopes else 16 if network else 8  # what older kernels know
    number, flags = ctypes.c_long(_LANDLOCK_CREATE_RULESET), ctypes.c_uint(0)
    ruleset = _libc.syscall(number, attributes, ctypes.c_size_t(size), flags)
    return _check(ruleset, "landlock_create_ruleset")


def allow_below(ruleset: int, path: int, accesses: int) -> None:
    """Allow the accesses to what the descriptor `path` shows, and to all below it."""
    rule = struct.pack("=Qi", accesses, path)  # LANDLOCK_RULE_PATH_BENEATH is 1
    number, kind, flags = ctypes.c_long(_LANDLOCK_ADD_RULE), ctypes.c_int(1), ctypes.c_uint(0)
    _check(_libc.syscall(number, ctypes.c_int(ruleset), kind, rule, flags), "landlock_add_rule")


def enter_ruleset(ruleset: int) -> None:
    """For this thread and whatever it starts, for good; no_new_privileges must be set."""
    number, flags = ctypes.c_long(_LANDLOCK_RESTRICT_SELF), ctypes.c_uint(0)
    _check(_libc.syscall(number, ctypes.c_int(ruleset), flags), "landlock_restrict_self")

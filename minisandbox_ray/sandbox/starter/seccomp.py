"""The system call filter of a sandbox: what no package manager and no test suite needs is refused.

Numbers: the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64).
"""

import errno
import stat
import struct

# name: (x86-64, aarch64); None where the architecture lacks it
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
# what reaches the host where there are no namespaces: System V objects and message queues; attributes, which Landlock
# does not guard; limits and priorities of other processes of the same user
_SHARED: dict[str, tuple[int, int]] = {
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "semget": (64, 190),
    "shmget": (29, 194),
}
_ATTRIBUTES: dict[str, tuple[int, int]] = {
    "file_setattr": (469, 469),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
}
# what reaches the same user's files, which Landlock does not guard either: see attributes.py
ON_BEHALF: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "lchown": (94, None),
    "utimensat": (280, 88),
}
_OLD_TIMES = (132, 235, 261)  # utime, utimes, futimesat of x86-64; C libraries use utimensat
_SET_FLAGS = (0x40086602, 0x401C5820)  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
_PRLIMIT, _SETPRIORITY, _IOPRIO_SET, _TRUNCATE = (302, 261), (141, 140), (251, 30), (76, 45)
# machine: (AUDIT_ARCH, column above, clone, clone3, ioctl, socket, socketpair)
_MACHINES = {"x86_64": (0xC000003E, 0, 56, 435, 16, 41, 53), "aarch64": (0xC00000B7, 1, 220, 435, 29, 198, 199)}
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Others, AF_VSOCK above all, are not confined by a network namespace.
_FAMILIES = (1, 2, 10, 16)

_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO, _HAND_OVER = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1, _ARGUMENT_2 = 0, 4, 16, 24, 32  # offsets in struct seccomp_data
_DATAGRAM = 2
# of mounts, control groups, names, IPC, users, processes and networks
_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_TIOCSTI, _TIOCSETD, _TIOCLINUX = 0x5412, 0x5423, 0x541C


def build_filter(machine: str) -> bytes:
    """The filter as a classic BPF program. Raises KeyError for a machine without a table."""
    architecture, column, clone, clone3, ioctl, socket, socketpair = _MACHINES[machine]
    program: list[bytes] = []

    def statement(code: int, value: int) -> None:
        program.append(struct.pack("HBBI", code, 0, 0, value))

    def jump(code: int, value: int, on_true: int, on_false: int) -> None:
        program.append(struct.pack("HBBI", code, on_true, on_false, value))

    statement(_LOAD, _ARCHITECTURE)
    jump(_EQUAL, architecture, 1, 0)
    statement(_RETURN, _KILL)
    statement(_LOAD, _NUMBER)
    if machine == "x86_64":  # the x32 numbers would pass by the table
        jump(_GREATER_EQUAL, 0x40000000, 0, 1)
        statement(_RETURN, _ERRNO | errno.ENOSYS)
    jump(_EQUAL, clone, 0, 4)
    statement(_LOAD, _ARGUMENT_0)
    jump(_ANY_BIT, _NEW_NAMESPACES, 0, 1)
    statement(_RETURN, _ERRNO | errno.EPERM)
    statement(_LOAD, _NUMBER)
    jump(_EQUAL, clone3, 0, 1)  # its flags lie in memory, out of a filter's sight; C libraries fall back to clone
    statement(_RETURN, _ERRNO | errno.ENOSYS)
    jump(_EQUAL, ioctl, 0, 6)
    statement(_LOAD, _ARGUMENT_1)
    jump(_EQUAL, _TIOCSTI, 2, 0)
    jump(_EQUAL, _TIOCSETD, 1, 0)  # would load line disciplines, of modems and buses, into the kernel
    jump(_EQUAL, _TIOCLINUX, 0, 1)
    statement(_RETURN, _ERRNO | errno.EPERM)
    statement(_LOAD, _NUMBER)
    jump(_EQUAL, socket, 1, 0)
    jump(_EQUAL, socketpair, 0, len(_FAMILIES) + 3)
    statement(_LOAD, _ARGUMENT_0)
    for left, family in zip(range(len(_FAMILIES), 0, -1), _FAMILIES, strict=True):
        jump(_EQUAL, family, left, 0)
    statement(_RETURN, _ERRNO | errno.EAFNOSUPPORT)
    statement(_LOAD, _NUMBER)
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            jump(_EQUAL, number, 0, 1)
            statement(_RETURN, _ERRNO | errno.EPERM)
    statement(_RETURN, _ALLOW)
    return b"".join(program)


_CREATES = 0o100 | 0o20000000  # O_CREAT, __O_TMPFILE
_OPENAT2 = 437
# name: ((x86-64, aarch64), which argument is the mode, which holds flags that say whether there is one)
_MODES: dict[str, tuple[tuple[int | None, int | None], int, int | None]] = {
    "chmod": ((90, None), 1, None),
    "creat": ((85, None), 1, None),
    "fchmod": ((91, 52), 1, None),
    "fchmodat": ((268, 53), 2, None),
    "fchmodat2": ((452, 452), 2, None),
    "mknod": ((133, None), 1, None),
    "mknodat": ((259, 33), 2, None),
    "open": ((2, None), 2, 1),
    "openat": ((257, 56), 3, 2),
}


def build_set_id_filter(machine: str) -> bytes:
    """A further filter, for a sandbox that can write to the host's directories: no file gets a set-user-id bit.

    Nor a set-group-id bit. A program that root inside leaves there so would make root of whoever starts it outside.
    openat2, whose mode lies in memory, is said to be missing. Raises KeyError for a machine without a table.
    """
    column = _MACHINES[machine][1]
    load_number = (_LOAD, _NUMBER, 0, 0)  # the first filter has looked at the architecture
    refuse = (_RETURN, _ERRNO | errno.EPERM, 0, 0)
    program = [load_number, (_EQUAL, _OPENAT2, 0, 1), (_RETURN, _ERRNO | errno.ENOSYS, 0, 0)]
    for numbers, mode, flags in _MODES.values():
        number = numbers[column]
        if number is None:
            continue
        body = [(_LOAD, _ARGUMENT_0 + 8 * mode, 0, 0), (_ANY_BIT, stat.S_ISUID | stat.S_ISGID, 0, 1), refuse]
        if flags is not None:
            body = [(_LOAD, _ARGUMENT_0 + 8 * flags, 0, 0), (_ANY_BIT, _CREATES, 0, len(body)), *body]
        program += [(_EQUAL, number, 0, len(body) + 1), *body, load_number]
    program.append((_RETURN, _ALLOW, 0, 0))
    return b"".join(struct.pack("HBBI", code, yes, no, value) for code, value, yes, no in program)


def build_shared_filter(machine: str, *, network: bool) -> bytes:
    """A second filter, for a sandbox without namespaces. Raises KeyError for a machine without a table.

    Unix sockets are refused (the host's daemons listen at paths, which Landlock does not guard) but for connected
    pairs; with no network all others are, too. So are System V objects, which would outlive the sandbox.
    """
    _, column, _, _, ioctl, socket, socketpair = _MACHINES[machine]
    load_number = (_LOAD, _NUMBER, 0, 0)  # the first filter has looked at the architecture
    program = [load_number]

    def on(number: int, *body: tuple[int, int, int, int]) -> None:
        """Jumps to the end of the body go on to what follows."""
        program.extend(((_EQUAL, number, 0, len(body) + 1), *body, load_number))

    families = _FAMILIES[1:] if network else ()
    known = [(_EQUAL, family, len(families) - index, 0) for index, family in enumerate(families)]
    on(socket, (_LOAD, _ARGUMENT_0, 0, 0), *known, (_RETURN, _ERRNO | errno.EAFNOSUPPORT, 0, 0))
    refuse = (_RETURN, _ERRNO | errno.EPERM, 0, 0)
    # what a pair of datagram sockets sends can still go elsewhere
    on(socketpair, (_LOAD, _ARGUMENT_1, 0, 0), (_AND, 0xF, 0, 0), (_EQUAL, _DATAGRAM, 0, 1), refuse)
    low, high = (_LOAD, _ARGUMENT_2, 0, 0), (_LOAD, _ARGUMENT_2 + 4, 0, 0)
    others = ((_LOAD, _ARGUMENT_0, 0, 0), (_EQUAL, 0, 5, 0))
    on(_PRLIMIT[column], *others, low, (_EQUAL, 0, 0, 2), high, (_EQUAL, 0, 1, 0), refuse)
    for numbers in (_SETPRIORITY, _IOPRIO_SET):
        on(numbers[column], (_LOAD, _ARGUMENT_1, 0, 0), (_EQUAL, 0, 1, 0), refuse)
    flags = (_EQUAL, _SET_FLAGS[0], 1, 0), (_EQUAL, _SET_FLAGS[1], 0, 1)
    on(ioctl, (_LOAD, _ARGUMENT_1, 0, 0), *flags, refuse)
    for number in _OLD_TIMES if column == 0 else ():
        on(number, (_RETURN, _ERRNO | errno.ENOSYS, 0, 0))
    for table, error in ((_SHARED, errno.ENOSYS), (_ATTRIBUTES, errno.EOPNOTSUPP)):
        for numbers in table.values():
            on(numbers[column], (_RETURN, _ERRNO | error, 0, 0))
    program.append((_RETURN, _ALLOW, 0, 0))
    return b"".join(struct.pack("HBBI", code, yes, no, value) for code, value, yes, no in program)


def build_listener_filter(machine: str, *, truncates: bool) -> bytes:
    """A third one, which hands over what attributes.py does, and refuses truncate(2) unless it `truncates`.

    Landlock guards that since Linux 6.2. Raises KeyError for a machine without a table.
    """
    program = [(_LOAD, _NUMBER, 0, 0)]
    if not truncates:
        program += [(_EQUAL, _TRUNCATE[_MACHINES[machine][1]], 0, 1), (_RETURN, _ERRNO | errno.EPERM, 0, 0)]
    for numbers in ON_BEHALF.values():
        number = numbers[_MACHINES[machine][1]]
        if number is not None:
            program += [(_EQUAL, number, 0, 1), (_RETURN, _HAND_OVER, 0, 0)]
    program.append((_RETURN, _ALLOW, 0, 0))
    return b"".join(struct.pack("HBBI", code, yes, no, value) for code, value, yes, no in program)

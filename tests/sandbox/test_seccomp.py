"""The filter itself, for machines that the tests do not run on: interpreted as the kernel would."""

import errno
import os
import struct

import pytest

from minisandbox_ray.sandbox.starter import seccomp

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {
    "x86_64": {
        "read": 0,
        "clone": 56,
        "ioctl": 16,
        "mount": 165,
        "ptrace": 101,
        "execve": 59,
        "openat": 257,
        "socket": 41,
        "socketpair": 53,
    },
    "aarch64": {
        "read": 63,
        "clone": 220,
        "ioctl": 29,
        "mount": 40,
        "ptrace": 117,
        "execve": 221,
        "openat": 56,
        "socket": 198,
        "socketpair": 199,
    },
}


def decide(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What a classic BPF program (seccomp(2)) returns for a system call."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    at = accumulator = 0
    while True:
        code, on_true, on_false, value = struct.unpack_from("HBBI", program, 8 * at)
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
            continue
        if code == 0x54:
            accumulator &= value
            continue
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
        at += on_true if holds else on_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_decisions(machine: str) -> None:
    program, numbers, own = seccomp.build_filter(machine), NUMBERS[machine], ARCHITECTURES[machine]
    for name in ("read", "ptrace", "execve", "openat"):
        assert decide(program, own, numbers[name]) == ALLOW
    assert decide(program, own, numbers["mount"]) == EPERM
    assert decide(program, own, 435) == ENOSYS  # clone3
    assert decide(program, own, numbers["clone"], 0x11) == ALLOW
    for name in ("NEWUSER", "NEWNS", "NEWPID", "NEWNET", "NEWIPC", "NEWUTS", "NEWCGROUP"):
        assert decide(program, own, numbers["clone"], getattr(os, f"CLONE_{name}") | 0x11) == EPERM
    assert decide(program, own, numbers["ioctl"], 0, 0x5401) == ALLOW
    assert decide(program, own, numbers["ioctl"], 0, 0x5412) == EPERM  # TIOCSTI
    for name in ("socket", "socketpair"):
        for family in (1, 2, 10, 16):  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
            assert decide(program, own, numbers[name], family) == ALLOW
        for family in (17, 38, 40):  # AF_PACKET, AF_ALG, AF_VSOCK
            assert decide(program, own, numbers[name], family) == 0x50000 | errno.EAFNOSUPPORT
    assert decide(program, own ^ 1, numbers["read"]) == KILL
    if machine == "x86_64":
        assert decide(program, own, 0x40000000 | numbers["mount"]) == ENOSYS  # x32


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_decisions_without_namespaces(machine: str) -> None:
    numbers, own, other_family = NUMBERS[machine], ARCHITECTURES[machine], 0x50000 | errno.EAFNOSUPPORT
    closed, with_network = (seccomp.build_shared_filter(machine, network=network) for network in (False, True))
    for program in (closed, with_network):
        assert decide(program, own, numbers["read"]) == ALLOW
        assert decide(program, own, numbers["socket"], 1, 1) == other_family
        assert decide(program, own, numbers["socketpair"], 1, 0x80001) == ALLOW
        assert decide(program, own, numbers["socketpair"], 1, 0x80002) == EPERM  # SOCK_DGRAM | SOCK_CLOEXEC
        assert decide(program, own, numbers["ioctl"], 3, 0x5401) == ALLOW
        assert decide(program, own, numbers["ioctl"], 3, 0x40086602) == EPERM
        limits = seccomp._PRLIMIT[machine == "aarch64"]
        assert decide(program, own, limits, 0, 7, 1 << 32) == ALLOW
        assert decide(program, own, limits, 77, 7, 0) == ALLOW
        assert decide(program, own, limits, 77, 7, 1 << 32) == decide(program, own, limits, 77, 7, 8) == EPERM
        shared = seccomp._SHARED["shmget"][machine == "aarch64"]
        assert decide(program, own, shared) == ENOSYS
    for family in (2, 10, 16):
        assert decide(closed, own, numbers["socket"], family) == other_family
        assert decide(with_network, own, numbers["socket"], family) == ALLOW
    for truncates, decision in ((True, ALLOW), (False, EPERM)):
        program = seccomp.build_listener_filter(machine, truncates=truncates)
        assert decide(program, own, seccomp._TRUNCATE[machine == "aarch64"]) == decision
        assert decide(program, own, numbers["read"]) == ALLOW
        assert decide(program, own, seccomp.ON_BEHALF["fchmodat"][machine == "aarch64"] or 0) == 0x7FC00000

"""A network namespace's own interface, and where packets to anywhere else go."""

import errno
import fcntl
import os
import socket
import struct

_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40
_LOOPBACK = 1  # its index in every network namespace
# rtnetlink(7)
_RTM_NEWROUTE, _NLMSG_ERROR = 24, 2
_REQUEST, _ACK, _CREATE, _EXCLUSIVE = 0x1, 0x4, 0x400, 0x200
_RTA_OIF, _RTA_PREFSRC = 4, 7
_TABLE_MAIN, _PROTOCOL_BOOT, _SCOPE_LINK, _UNICAST = 254, 3, 253, 1


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", _IFF_UP | _IFF_RUNNING, b""))


def route_into_nothing() -> None:
    """Send what is for any other IPv4 address out of the loopback, where it comes in again and is dropped as not meant
    for this machine: no answer, as from an address behind a firewall. Raises OSError."""
    route = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, _TABLE_MAIN, _PROTOCOL_BOOT, _SCOPE_LINK, _UNICAST, 0)
    route += struct.pack("=2HI", 8, _RTA_OIF, _LOOPBACK)
    route += struct.pack("=2H4s", 8, _RTA_PREFSRC, socket.inet_aton("127.0.0.1"))
    flags = _REQUEST | _ACK | _CREATE | _EXCLUSIVE
    header = struct.pack("=I2H2I", 16 + len(route), _RTM_NEWROUTE, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as sock:
        sock.send(header + route)
        answer = sock.recv(4096)
    kind = struct.unpack_from("=H", answer, 4)[0]
    number = -struct.unpack_from("=i", answer, 16)[0] if kind == _NLMSG_ERROR else errno.EPROTO
    if number:
        raise OSError(number, f"a route into nothing: {os.strerror(number)}")

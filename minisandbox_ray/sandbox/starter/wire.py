"""Messages between host, starter and pid 1: a JSON text and descriptors, over a Unix socket.

A long text goes in a memory file, because a packet is bounded and an argument list is not. Strings may hold any bytes
(surrogateescape).
"""

# ruff: noqa: PTH123

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
_IN_FILE, _LONGEST_PACKET = b"m", 1 << 15
_MAX_DESCRIPTORS = 250  # the kernel's SCM_MAX_FD is 253


def channel() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Raises OSError when the peer is gone."""
    text = json.dumps(message).encode()
    if len(text) <= _LONGEST_PACKET:
        socket.send_fds(sock, [text], descriptors) if descriptors else sock.send(text)
        return
    body = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        with open(body, "wb", closefd=False) as file:
            file.write(text)
        socket.send_fds(sock, [_IN_FILE], [body, *descriptors])
    finally:
        os.close(body)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message with its descriptors, or None when the peer is gone."""
    received = array.array("i")
    # not socket.recv_fds, which ignores its flags
    space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * received.itemsize)
    try:
        try:
            data, ancillary, _, _ = sock.recvmsg(_LONGEST_PACKET, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # told once where the peer left something unread: what it sent is still there
            data, ancillary, _, _ = sock.recvmsg(_LONGEST_PACKET, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    for _, _, content in ancillary:
        received.frombytes(content[: len(content) - len(content) % received.itemsize])
    if not data:
        return None
    if data != _IN_FILE:
        return json.loads(data), list(received)
    with open(received[0], "rb") as file:
        file.seek(0)
        return json.loads(file.read()), list(received[1:])

"""Git's index without what differs from one build to the next of the same files.

It notes of each file its inode, device, owner and times of change. None of that survives packing, and sandboxes tell
git to look at none of it (core.checkStat=minimal, core.trustctime=false).
"""

import hashlib
import os
import struct
from pathlib import Path

_HASH_BYTES = 20
_FIXED_BYTES = 62
"""Of an entry, before its path: ten numbers, a SHA-1, flags (gitformat-index(5))."""
_MORE_FLAGS = 0x4000


def settle_index(path: Path) -> None:
    """Zero the change time, the device, the inode and the owners of all entries, in place.

    An index of a form that this does not know (version 4, SHA-256, without a checksum) stays as it is.
    """
    with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b") as file:  # noqa: PTH123
        data = bytearray(file.read())
        if _settle(data):
            file.seek(0)
            file.write(data)


def _settle(data: bytearray) -> bool:
    end = len(data) - _HASH_BYTES
    if end < 12 or data[:4] != b"DIRC" or hashlib.sha1(data[:end]).digest() != data[end:]:
        return False
    version, count = struct.unpack_from(">II", data, 4)
    if version not in (2, 3):
        return False
    place = 12
    for _ in range(count):
        if place + _FIXED_BYTES > end:
            return False
        seconds, size = struct.unpack_from(">8xI24xI", data, place)
        mode = struct.unpack_from(">24xI", data, place)[0]
        struct.pack_into(">10I", data, place, 0, 0, seconds, 0, 0, 0, mode, 0, 0, size)
        (flags,) = struct.unpack_from(">H", data, place + _FIXED_BYTES - 2)
        start = place + _FIXED_BYTES + (2 if flags & _MORE_FLAGS else 0)
        stop = data.find(0, start, end)
        if stop < 0:
            return False
        place += (stop - place + 8) & ~7  # one to eight zeros end a path
    data[end:] = hashlib.sha1(data[:end]).digest()
    return True

"""Git's index: what it says of the files, without what differs from one build to the next of the same files.

It notes of each file its inode, device, owner and times of change. None of that survives packing, and sandboxes tell
git to look at none of it (core.checkStat=minimal, core.trustctime=false).
"""

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_HASH_BYTES = 20
_FIXED_BYTES = 62
"""Of an entry, before its path: ten numbers, a SHA-1, flags (gitformat-index(5))."""
_MORE_FLAGS = 0x4000
_STAGE = 0x3000
_LARGEST = 256 << 20
"""Bytes: three million files. A larger one, which may be a hole, is not read."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A tracked file."""

    path: bytes
    """From the repository's root."""
    mode: int
    """0o100644, 0o100755, 0o120000 (a link) or 0o160000 (another repository)."""
    sha1: bytes
    """Of its blob."""

    @property
    def name(self) -> str:
        """Its path for people, on one line."""
        return repr(os.fsdecode(self.path))


def read_index(path: Path) -> list[IndexEntry] | None:
    """All entries in their order; None if the index is of a form that this does not know, or a merge is under way."""
    with open(unfollowed(path), "rb") as file:
        data = _read(file)
    entries = []
    for place, start, stop in _places(data) or []:
        mode = struct.unpack_from(">24xI", data, place)[0]
        (flags,) = struct.unpack_from(">H", data, place + _FIXED_BYTES - 2)
        if flags & (_MORE_FLAGS | _STAGE):
            return None
        entries.append(IndexEntry(bytes(data[start:stop]), mode, bytes(data[place + 40 : place + 60])))
    return entries or None


def settle_index(path: Path) -> None:
    """Zero the change time, the device, the inode and the owners of all entries, in place.

    An index of a form that this does not know (version 4, SHA-256, without a checksum) stays as it is.
    """
    with open(unfollowed(path, os.O_RDWR), "r+b") as file:
        data = _read(file)
        places = _places(data)
        if places is None:
            return
        for place, _, _ in places:
            seconds, size = struct.unpack_from(">8xI24xI", data, place)
            mode = struct.unpack_from(">24xI", data, place)[0]
            struct.pack_into(">10I", data, place, 0, 0, seconds, 0, 0, 0, mode, 0, 0, size)
        data[-_HASH_BYTES:] = hashlib.sha1(data[:-_HASH_BYTES]).digest()
        file.seek(0)
        file.write(data)


def unfollowed(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of what others may have put there: no link is followed, no pipe waited for. Raises OSError."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _read(file: IO[bytes]) -> bytearray:
    return bytearray(file.read() if os.fstat(file.fileno()).st_size <= _LARGEST else b"")


def _places(data: bytearray) -> list[tuple[int, int, int]] | None:
    """Of each entry where it begins, and where its path begins and ends."""
    end = len(data) - _HASH_BYTES
    if end < 12 or data[:4] != b"DIRC" or hashlib.sha1(data[:end]).digest() != data[end:]:
        return None
    version, count = struct.unpack_from(">II", data, 4)
    if version not in (2, 3):
        return None
    places = []
    place = 12
    for _ in range(count):
        if place + _FIXED_BYTES > end:
            return None
        (flags,) = struct.unpack_from(">H", data, place + _FIXED_BYTES - 2)
        start = place + _FIXED_BYTES + (2 if flags & _MORE_FLAGS else 0)
        stop = data.find(0, start, end)
        if stop < 0:
            return None
        places.append((place, start, stop))
        place += (stop - place + 8) & ~7  # one to eight zeros end a path
    return places

"""A repository's objects, made of what its files hold.

The one commit of an environment holds what its working tree does: blobs are the tracked files, byte for byte, trees
follow from the index, and the commit is always the same. So archives leave the pack out, and it is made again where
they are unpacked (forms: gitformat-pack(5), gitformat-index(5)). Git is not run: it would obey the repository's
configuration. In the archive of a repository the pack would be the larger half, since zstd can do nothing with it.
"""

import errno
import hashlib
import io
import os
import stat
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO

from minisandbox_ray.environments.cache import replacing
from minisandbox_ray.environments.git_index import IndexEntry, read_index, unfollowed
from minisandbox_ray.environments.tar import CHUNK, FIXED_TIME
from minisandbox_ray.sandbox.starter import syscalls

_NAME, _EMAIL, _DATE = "sandbox", "sandbox@localhost", f"{FIXED_TIME} +0000"
IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", _NAME), ("EMAIL", _EMAIL), ("DATE", _DATE))
}
"""Author, committer and date of the one commit: equal trees get equal commit ids."""
MESSAGE = "Initial commit"
LEVEL = 1
"""zlib's: 8.0 MB in 0.38 s of processor time for SymPy, where level 6 takes 6.7 MB and 2.8 s, for each unpack."""
LARGEST = 1 << 30
"""Bytes of a file, its holes included: a repository with a larger one keeps its pack."""
_LARGEST_OF_GIT = 64 << 20
"""Bytes of a file of git's that is read whole: the index of a pack of two million objects."""
_KINDS = {"commit": 1, "tree": 2, "blob": 3}
_LINK, _SUBMODULE = 0o120000, 0o160000
_BELOW = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ENAMETOOLONG}
_INDEX_2 = b"\xfftOc\0\0\0\2"
_FAR = 1 << 31
"""From here on a pack's index keeps places in a table of their own."""


class ForeignObjectsError(ValueError):
    """A repository holds something else than the one commit of its files; says what, in one line."""

    def __init__(self, what: str) -> None:
        super().__init__(f"its repository holds something else than its files: {what}")


@dataclass(frozen=True, slots=True)
class _Object:
    kind: str
    sha1: bytes
    content: bytes | IndexEntry
    """Of a blob the file that holds it: it is read when it is packed."""


@dataclass(frozen=True, slots=True)
class _Row:
    """Of a pack's index."""

    sha1: bytes
    crc: int
    place: int
    """Bytes from the pack's start."""


def pack_paths(testbed: Path) -> list[Path]:
    """The files of git's packs, sorted: packs, their indexes and what git makes of those."""
    return sorted((testbed / ".git/objects/pack").iterdir())


def replace_pack(testbed: Path) -> list[Path]:
    """Put what `make_pack` would write in place of what git packed, and say where it lies: the index and the pack.

    Nothing is done where git's pack holds anything else, more or less. Raises StoreFullError.
    """
    try:
        objects = _objects(testbed)
        before = pack_paths(testbed)
        indexes = [path for path in before if path.suffix == ".idx"]
        if len(indexes) != 1 or not all(stat.S_ISREG(path.lstat().st_mode) for path in before):
            return []
        if _listed(indexes[0]) != sorted(each.sha1 for each in objects):
            return []
        made = _write(testbed, objects)
    except ForeignObjectsError:
        return []
    for path in before:
        if path not in made:
            path.unlink()
    return made


def make_pack(testbed: Path) -> list[Path]:
    """Write the pack of a repository that has none; returns the paths of its index and of itself.

    Raises ForeignObjectsError, StoreFullError.
    """
    objects = _objects(testbed)
    if pack_paths(testbed):
        raise ForeignObjectsError("there is a pack in it")
    return _write(testbed, objects)


def check_pack(testbed: Path) -> str:
    """What is wrong with what `make_pack` wrote, as names and checksums tell; "" if nothing is."""
    try:
        index, pack = _paths(testbed, _objects(testbed))
    except ForeignObjectsError as error:
        return str(error)
    if pack_paths(testbed) != [index, pack]:
        return "git's pack or its index is not there, or others are"
    for path in (index, pack):
        if not _is_whole(path):
            return f"{path.relative_to(testbed)} is damaged"
    return "" if _tail(index, 40)[:20] == _tail(pack, 20) else f"{index.relative_to(testbed)} is another pack's"


def _is_whole(path: Path) -> bool:
    """Whether a pack or its index ends with its checksum."""
    total = hashlib.sha1()
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size - 20
        while left > 0 and (data := file.read(min(left, CHUNK))):
            left -= len(data)
            total.update(data)
        return file.read() == total.digest()


def _tail(path: Path, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(-length, os.SEEK_END)
        return file.read()


def _objects(testbed: Path) -> list[_Object]:
    """In the order in which they are packed."""
    git = testbed / ".git"
    # A link on the way would lead to this machine's own files.
    for place in (testbed, git, git / "refs", git / "refs/heads", git / "objects", git / "objects/pack"):
        if place.is_symlink() or not place.is_dir():
            raise ForeignObjectsError(f"{place.relative_to(testbed.parent)} is no directory")
    try:
        entries = read_index(git / "index")
        head = _small_file(git / "refs/heads/main").strip()
    except OSError as error:
        raise ForeignObjectsError(f"{error.filename}: {error.strerror}") from error
    if entries is None:
        raise ForeignObjectsError("its index is of another form")
    trees = _trees(entries)
    who = f"{_NAME} <{_EMAIL}> {_DATE}"
    text = f"tree {trees[0].sha1.hex()}\nauthor {who}\ncommitter {who}\n\n{MESSAGE}\n"
    commit = _made("commit", text.encode())
    if head != commit.sha1.hex().encode():
        raise ForeignObjectsError("its commit is another than that of its index")
    # A submodule's commit is no object of this repository.
    blobs = [_Object("blob", each.sha1, each) for each in entries if each.mode != _SUBMODULE]
    unique: dict[bytes, _Object] = {}
    for each in (commit, *trees, *blobs):
        unique.setdefault(each.sha1, each)
    return list(unique.values())


def _trees(entries: Sequence[IndexEntry]) -> list[_Object]:
    """What an index says of directories, each before those below it."""
    # Of each directory: what its entries are sorted by (a slash ends the name of a directory), their mode and SHA-1.
    rows: dict[bytes, list[tuple[bytes, bytes, bytes]]] = {b"": []}
    for entry in entries:
        folder, _, name = entry.path.rpartition(b"/")
        rows.setdefault(folder, []).append((name, b"%o" % entry.mode, entry.sha1))
        while folder := folder.rpartition(b"/")[0]:
            if folder in rows:
                break
            rows[folder] = []
    trees = []
    for folder in sorted(rows, reverse=True):
        lines = (mode + b" " + name.rstrip(b"/") + b"\0" + sha1 for name, mode, sha1 in sorted(rows[folder]))
        tree = _made("tree", b"".join(lines))
        trees.append(tree)
        if folder:
            above, _, name = folder.rpartition(b"/")
            rows[above].append((name + b"/", b"40000", tree.sha1))
    return trees[::-1]


def _made(kind: str, content: bytes) -> _Object:
    return _Object(kind, hashlib.sha1(_title(kind, len(content)) + content).digest(), content)


def _title(kind: str, size: int) -> bytes:
    """What git puts before an object's content where it hashes it."""
    return f"{kind} {size}\0".encode()


def _paths(testbed: Path, objects: list[_Object]) -> tuple[Path, Path]:
    """Of the index and of the pack. Their name tells nothing to git; this one does not depend on zlib's version."""
    stem = f"pack-{hashlib.sha1(b''.join(sorted(each.sha1 for each in objects))).hexdigest()}"
    folder = testbed / ".git/objects/pack"
    return folder / f"{stem}.idx", folder / f"{stem}.pack"


def _write(testbed: Path, objects: list[_Object]) -> list[Path]:
    paths = _paths(testbed, objects)
    with replacing(paths[0]) as index, replacing(paths[1]) as pack:
        with pack.open("xb") as file:
            rows, checksum = _write_pack(file, testbed, objects)
        index.write_bytes(_index(rows, checksum))
        for path in (index, pack):
            path.chmod(0o644)
            os.utime(path, (FIXED_TIME, FIXED_TIME))
    os.utime(paths[0].parent, (FIXED_TIME, FIXED_TIME))
    return list(paths)


def _write_pack(file: IO[bytes], testbed: Path, objects: list[_Object]) -> tuple[list[_Row], bytes]:
    """Returns what its index says and its checksum. Of no file are more than `CHUNK` bytes in memory."""
    rows: list[_Row] = []
    total, place, crc = hashlib.sha1(), 0, 0

    def put(data: bytes) -> None:
        nonlocal place, crc
        file.write(data)
        total.update(data)
        crc = zlib.crc32(data, crc)
        place += len(data)

    put(struct.pack(">4sII", b"PACK", 2, len(objects)))
    root = os.open(testbed, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for each in objects:
            start, crc = place, 0
            size, content = _content(root, each.content)
            put(_header(each.kind, size))
            seen, packer = hashlib.sha1(_title(each.kind, size)), zlib.compressobj(LEVEL)
            with content:
                left = size
                while left and (piece := content.read(min(left, CHUNK))):
                    left -= len(piece)
                    seen.update(piece)
                    put(packer.compress(piece))
            put(packer.flush())
            if isinstance(each.content, IndexEntry) and seen.digest() != each.sha1:
                raise _changed(each.content)
            rows.append(_Row(each.sha1, crc, start))
    finally:
        os.close(root)
    checksum = total.digest()
    file.write(checksum)
    return sorted(rows, key=lambda row: row.sha1), checksum


def _header(kind: str, size: int) -> bytes:
    """Of an object in a pack: its kind and four bits of its size, then seven bits each, the lowest first."""
    header = [_KINDS[kind] << 4 | size & 15]
    size >>= 4
    while size:
        header[-1] |= 0x80
        header.append(size & 0x7F)
        size >>= 7
    return bytes(header)


def _content(root: int, content: bytes | IndexEntry) -> tuple[int, IO[bytes]]:
    """Size and content of an object. Of a tracked file or link no other link is followed on the way."""
    if isinstance(content, bytes):
        return len(content), io.BytesIO(content)
    try:
        place = syscalls.openat2(root, content.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, resolve=_BELOW)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        raise ForeignObjectsError(f"{content.name} is not there") from error
    try:
        info = os.fstat(place)
        if stat.S_ISLNK(info.st_mode) and content.mode == _LINK:
            target = os.readlink(b"", dir_fd=place)
            return len(target), io.BytesIO(target)
        if not stat.S_ISREG(info.st_mode) or content.mode == _LINK:
            raise _changed(content)
        if info.st_size > LARGEST:
            raise ForeignObjectsError(f"{content.name} has more than {LARGEST >> 20} MiB")
        return info.st_size, open(f"/proc/self/fd/{place}", "rb", buffering=0)  # noqa: PTH123
    finally:
        os.close(place)


def _changed(entry: IndexEntry) -> ForeignObjectsError:
    return ForeignObjectsError(f"{entry.name} is not what its commit says")


def _index(rows: list[_Row], pack: bytes) -> bytes:
    """A pack's index, version 2, with the pack's checksum."""
    counts = [0] * 256
    for row in rows:
        counts[row.sha1[0]] += 1
    far = [row.place for row in rows if row.place >= _FAR]
    numbers = iter(range(len(far)))
    places = [row.place if row.place < _FAR else _FAR | next(numbers) for row in rows]
    parts = [_INDEX_2, struct.pack(">256I", *accumulate(counts))]
    parts += [row.sha1 for row in rows]
    parts += [struct.pack(">I", row.crc) for row in rows]
    parts += [struct.pack(">I", place) for place in places]
    parts += [struct.pack(">Q", place) for place in far]
    data = b"".join(parts) + pack
    return data + hashlib.sha1(data).digest()


def _listed(index: Path) -> list[bytes]:
    """Names of a pack's objects by its index, sorted."""
    data = _small_file(index)
    names = len(_INDEX_2) + 256 * 4
    if not data.startswith(_INDEX_2) or len(data) < names:
        raise ForeignObjectsError("its pack's index is of another form")
    (count,) = struct.unpack_from(">I", data, names - 4)
    return sorted(data[place : place + 20] for place in range(names, min(names + 20 * count, len(data)), 20))


def _small_file(path: Path) -> bytes:
    """A file of git's. Raises ForeignObjectsError for a link or what is no file, OSError."""
    with open(unfollowed(path), "rb") as file:  # noqa: PTH123
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_size > _LARGEST_OF_GIT:
            raise ForeignObjectsError(f"{path} is no file of git's")
        return file.read()

"""A repository's objects, made of what its files hold.

The one commit of an environment holds what its working tree does: blobs are the tracked files, byte for byte, trees
follow from the index, and the commit is always the same. So archives leave the pack out, and it is made again where
they are unpacked (forms: gitformat-pack(5), gitformat-index(5)). Git is not run: it would obey the repository's
configuration. In the archive of a repository the pack would be the larger half, since zstd can do nothing with it.
"""

import errno
import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path

from minisandbox_ray.environments.git_index import IndexEntry, read_index
from minisandbox_ray.environments.tar import FIXED_TIME
from minisandbox_ray.sandbox.starter import syscalls

IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "sandbox"), ("EMAIL", "sandbox@localhost"), ("DATE", f"{FIXED_TIME} +0000"))
}
"""Author, committer and date of the one commit: equal trees get equal commit ids."""
MESSAGE = "Initial commit"
LEVEL = 1
"""zlib's: 8.0 MB in 0.38 s of processor time for SymPy, where level 6 takes 6.7 MB and 2.8 s, for each unpack."""
LARGEST = 64 << 20
"""Bytes of a file. Four of them are in memory at a time; a repository with larger ones keeps its pack."""
_WHO = "".join(
    "{role} {NAME} <{EMAIL}> {DATE}\n".format(
        role=role, **{what: IDENTITY[f"GIT_{role.upper()}_{what}"] for what in ("NAME", "EMAIL", "DATE")}
    )
    for role in ("author", "committer")
)
_THREADS = 4
_BATCH = 256
_KINDS = {"commit": 1, "tree": 2, "blob": 3}
_BELOW = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_HEADER = struct.Struct(">4sII")


class ForeignObjectsError(ValueError):
    """A repository holds something else than the one commit of its files; says what."""


@dataclass(frozen=True, slots=True)
class _Object:
    kind: str
    name: bytes
    """SHA-1."""
    content: bytes | None
    """None for a blob: its file is read when it is packed."""
    entry: IndexEntry | None = None


@dataclass(slots=True)
class _Folder:
    folders: dict[bytes, "_Folder"] = field(default_factory=dict)
    entries: dict[bytes, IndexEntry] = field(default_factory=dict)


def pack_paths(testbed: Path) -> list[Path]:
    """The files of git's packs, sorted: packs, their indexes and what git makes of those."""
    return sorted((testbed / ".git/objects/pack").iterdir())


def replace_pack(testbed: Path) -> list[Path]:
    """Put what `make_pack` would write in place of what git packed, and say where it lies.

    Nothing is done where git's pack holds anything else, more or less. Raises OSError (ENOSPC).
    """
    try:
        objects = _objects(testbed)
        before = pack_paths(testbed)
        indexes = [path for path in before if path.suffix == ".idx"]
        if len(indexes) != 1 or _listed(indexes[0]) != sorted(each.name for each in objects):
            return []
        made = _write(testbed, objects)
    except ForeignObjectsError:
        return []
    for path in before:
        if path not in made:
            path.unlink()
    return made


def make_pack(testbed: Path) -> list[Path]:
    """Write the pack and its index; returns their paths. Raises ForeignObjectsError, OSError (ENOSPC)."""
    return _write(testbed, _objects(testbed))


def check_pack(testbed: Path) -> str:
    """What is wrong with a pack and its index by their own checksums; "" if nothing is."""
    paths = pack_paths(testbed)
    if [path.suffix for path in paths] != [".idx", ".pack"]:
        return "git's pack or its index is not there, or others are"
    index, pack = (path.read_bytes() for path in paths)
    for path, data in zip(paths, (index, pack), strict=True):
        if hashlib.sha1(memoryview(data)[:-20]).digest() != data[-20:]:
            return f"{path.relative_to(testbed)} is damaged"
    return "" if index[-40:-20] == pack[-20:] else f"{paths[0].relative_to(testbed)} is another pack's"


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
    top = _Folder()
    for entry in entries:
        folder = top
        *above, name = entry.path.split(b"/")
        for each in above:
            folder = folder.folders.setdefault(each, _Folder())
        folder.entries[name] = entry
    trees: list[_Object] = []
    tree = _tree(top, trees)
    content = f"tree {tree.hex()}\n{_WHO}\n{MESSAGE}\n".encode()
    commit = _Object("commit", _name("commit", content), content)
    if head != commit.name.hex().encode():
        raise ForeignObjectsError("its commit is another than that of its index")
    files = [each for each in entries if each.mode != 0o160000]  # a submodule's commit is no object of ours
    unique: dict[bytes, _Object] = {}
    for made in [commit, *trees, *(_Object("blob", file.sha1, None, file) for file in files)]:
        unique.setdefault(made.name, made)
    return list(unique.values())


def _tree(folder: _Folder, trees: list[_Object]) -> bytes:
    """Add the objects of a directory and of those below it, itself first; returns its name."""
    place = len(trees)
    rows = [(name, b"%o" % entry.mode, entry.sha1) for name, entry in folder.entries.items()]
    rows += [(name + b"/", b"40000", _tree(each, trees)) for name, each in folder.folders.items()]
    content = b"".join(mode + b" " + name.rstrip(b"/") + b"\0" + sha1 for name, mode, sha1 in sorted(rows))
    name = _name("tree", content)
    trees.insert(place, _Object("tree", name, content))
    return name


def _name(kind: str, content: bytes) -> bytes:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).digest()


def _write(testbed: Path, objects: list[_Object]) -> list[Path]:
    """Returns the paths of pack and index."""
    names = sorted(each.name for each in objects)
    folder = testbed / ".git/objects/pack"
    # Its name tells nothing to git; this one does not depend on zlib's version.
    stem = f"pack-{hashlib.sha1(b''.join(names)).hexdigest()}"
    pack, index = folder / f"{stem}.pack", folder / f"{stem}.idx"
    for path in (pack, index):
        path.unlink(missing_ok=True)
    total = hashlib.sha1()
    places: dict[bytes, tuple[int, int]] = {}
    with pack.open("xb") as file:
        for each, data in _packed(testbed, objects):
            places[each] = (file.tell() if each else 0, zlib.crc32(data))
            file.write(data)
            total.update(data)
        file.write(total.digest())
    places.pop(b"")
    index.write_bytes(_index(names, places, total.digest()))
    for path in (pack, index):
        path.chmod(0o644)
        os.utime(path, (FIXED_TIME, FIXED_TIME))
    os.utime(folder, (FIXED_TIME, FIXED_TIME))
    return [pack, index]


def _packed(testbed: Path, objects: list[_Object]) -> Iterator[tuple[bytes, bytes]]:
    """(name, what stands in the pack) of each object; the pack's own header has no name."""
    yield b"", _HEADER.pack(b"PACK", 2, len(objects))
    root = os.open(testbed, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with ThreadPoolExecutor(min(os.cpu_count() or 1, _THREADS)) as threads:
            for batch in batched(objects, _BATCH):
                packed = threads.map(lambda each: _pack_one(root, each), batch)
                yield from zip((each.name for each in batch), packed, strict=True)
    finally:
        os.close(root)


def _pack_one(root: int, each: _Object) -> bytes:
    content = each.content
    if content is None:
        assert each.entry is not None
        content = _read(root, each.entry)
        if _name("blob", content) != each.name:
            raise ForeignObjectsError(f"{os.fsdecode(each.entry.path)} is not what its commit says")
    size = len(content)
    header = bytearray([_KINDS[each.kind] << 4 | size & 15])
    size >>= 4
    while size:
        header[-1] |= 0x80
        header.append(size & 0x7F)
        size >>= 7
    return bytes(header) + zlib.compress(content, LEVEL)


def _read(root: int, entry: IndexEntry) -> bytes:
    """A tracked file or link, without following another link on the way."""
    path = os.fsdecode(entry.path)
    try:
        place = syscalls.openat2(root, entry.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, resolve=_BELOW)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
            raise
        raise ForeignObjectsError(f"{path} is not there") from error
    try:
        info = os.fstat(place)
        if stat.S_ISLNK(info.st_mode) and entry.mode == 0o120000:
            return os.readlink(b"", dir_fd=place)
        if not stat.S_ISREG(info.st_mode) or entry.mode == 0o120000:
            raise ForeignObjectsError(f"{path} is not what its commit says")
        if info.st_size > LARGEST:
            raise ForeignObjectsError(f"{path} has more than {LARGEST >> 20} MiB")
        with open(f"/proc/self/fd/{place}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read(info.st_size)
    finally:
        os.close(place)


def _index(names: list[bytes], places: dict[bytes, tuple[int, int]], pack: bytes) -> bytes:
    """A pack's index, version 2."""
    counts = [0] * 256
    for name in names:
        counts[name[0]] += 1
    parts = [b"\xfftOc", struct.pack(">I", 2)]
    parts.append(struct.pack(">256I", *(sum(counts[: each + 1]) for each in range(256))))
    parts += names
    parts += [struct.pack(">I", places[name][1]) for name in names]
    far = [places[name][0] for name in names if places[name][0] >= 1 << 31]
    near = iter(range(len(far)))
    offsets = (places[name][0] for name in names)
    parts += [struct.pack(">I", offset if offset < 1 << 31 else 1 << 31 | next(near)) for offset in offsets]
    parts += [struct.pack(">Q", offset) for offset in far]
    data = b"".join(parts) + pack
    return data + hashlib.sha1(data).digest()


def _listed(index: Path) -> list[bytes]:
    """Names of a pack's objects by its index, sorted."""
    data = _small_file(index)
    if data[:8] != b"\xfftOc\0\0\0\2" or len(data) < 8 + 1024:
        raise ForeignObjectsError("its pack's index is of another form")
    (count,) = struct.unpack_from(">I", data, 8 + 255 * 4)
    names = data[8 + 1024 : 8 + 1024 + 20 * count]
    return sorted(names[place : place + 20] for place in range(0, len(names), 20))


def _small_file(path: Path) -> bytes:
    """A file of git's. Raises ForeignObjectsError for a link or what is no file, OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ForeignObjectsError(f"{path} is no file")
        return file.read(LARGEST)

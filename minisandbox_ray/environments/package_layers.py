"""What archives have in common: ``layers/<sha256 of the plain tar>.tar.zst`` beside them, each packed once.

A layer holds what one installed distribution has in site-packages by its RECORD: its modules with what was compiled
of them, or what does not depend on the version of Python (libraries that it brings, data), or one large file, which
the next version of it may have as well. Names in it begin with
``site-packages/``. All else stays in the archive itself: directories, ``*.dist-info`` (which tells who asked for it),
small distributions, those of the build's own sources, and files that several distributions claim.

Layers are named by what they hold, so one that is there is the right one, whoever packed it. Who adds layers holds
them (`holding`) until the manifest that names them is there; what no manifest names goes by `unneeded`.
"""

import csv
import fcntl
import hashlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath

import zstandard
from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.environments.cache import replacing, sync_directory
from minisandbox_ray.environments.room import writable_directory
from minisandbox_ray.environments.tar import CHUNK, LEVEL, pieces, tar_pieces, write_packed
from minisandbox_ray.errors import ArchiveError, DamagedArchiveError, MissingArchiveError

LARGE = range(16 << 20, 256 << 20)
"""Bytes, plain, of layers that are worth `LARGE_LEVEL`. They are three quarters of what ten environments share; smaller
ones would only hold up the first build of a small environment, and larger ones (CUDA's libraries) any."""
LARGE_LEVEL = 19
"""With that and the window, 7 to 10 % smaller than with level 10, for some 0.5 s of processor time per MiB."""
LARGE_WINDOW = 25
"""Log2 of the bytes that a match may be away, which each unpack needs as memory."""
SMALLEST = 256 << 10
"""Bytes of files that are worth a layer."""
ALONE = 4 << 20
"""Bytes of a file that gets a layer of its own, and `LARGE_LEVEL` up to the size that `LARGE` ends with. Of 889 MB that
five environments (Flask, Django, Sphinx, SymPy, xarray) have in layers, 810 are different without this and 775 with it,
770 if files of 1 MiB were alone as well, which are compressed less well alone. Each file kept once would be less still:
numpy, scipy and pandas come in many versions, of which most files are the same.
"""
GRACE_SECONDS = 3600.0
"""A layer that nobody wrote or used for so long belongs to no build and no transfer that is under way."""
_MOST_THREADS = 4
"""Each takes some 150 MB of memory."""
_LARGEST_RECORD = 16 << 20
_NAMED = 5


class PackageLayer(BaseModel):
    """A part of an environment that others may have as well."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of what it holds: its name."""
    plain_bytes: int = Field(ge=0)
    """Size of what it holds, as a stream of tar."""
    packed_bytes: int = Field(ge=0)
    """Size of its file when the manifest was written; that of another zstd may differ."""


class DamagedLayerError(DamagedArchiveError):
    """A layer is not what its name says."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


def layer_path(archives: Path, sha256: str) -> Path:
    """Where a layer lies."""
    return archives / "layers" / f"{sha256}.tar.zst"


def place_of_layers(python: str) -> str:
    """The directory of a tree where layers belong, for a version of Python."""
    return "venv/lib/python" + ".".join(python.split(".")[:2])


def options_for_layers(python: str) -> list[str]:
    """What tar needs to read an archive's stream with those of its layers behind it."""
    return [
        "--ignore-zeros",
        f"--transform=flags=rSH;s,^site-packages/,{place_of_layers(python)}/site-packages/,",
    ]


def find_groups(tree: Path, python: str) -> list[list[str]]:
    """Names of files, relative to `place_of_layers` of a normalised tree, that belong into one layer each; sorted."""
    place = tree / place_of_layers(python) / "site-packages"
    # A link on the way would lead to this machine's own files.
    if not all(
        stat.S_ISDIR(_mode(tree / part)) for part in (place.relative_to(tree), *place.relative_to(tree).parents)
    ):
        return []
    sizes, records = _look(place)
    owners: dict[str, str | None] = {}
    for record in sorted(records):
        for name in _claimed(place / record) & sizes.keys():
            owners[name] = None if name in owners else record
    groups: dict[tuple[str, bool], list[str]] = {}
    for name in sizes:
        owner = owners.get(name if name in owners else _source(name))
        if owner is not None:
            groups.setdefault((owner, _depends_on_python(name)), []).append(name)
    found = []
    for record in records:
        owned = [groups.get((record, kind), []) for kind in (True, False)]
        found += [[name] for names in owned for name in names if sizes[name] >= ALONE]
        modules, others = ([name for name in names if sizes[name] < ALONE] for names in owned)
        both = [modules, others] if sum(map(sizes.__getitem__, others)) >= SMALLEST else [modules + others]
        found += [names for names in both if sum(map(sizes.__getitem__, names)) >= SMALLEST]
    return sorted(sorted(f"site-packages/{name}" for name in names) for names in found)


def _look(place: Path) -> tuple[dict[str, int], list[str]]:
    """Sizes of the plain files below site-packages, and the RECORDs of what others may have as well."""
    sizes: dict[str, int] = {}
    records = []
    for folder, folders, names in place.walk():
        where = folder.relative_to(place)
        files = {name: info for name in names if stat.S_ISREG((info := (folder / name).lstat()).st_mode)}
        if where.suffix == ".dist-info" and where.parent == Path():
            if "RECORD" in files and "direct_url.json" not in files and files["RECORD"].st_size <= _LARGEST_RECORD:
                records.append(f"{where}/RECORD")
            folders.clear()
            continue
        sizes.update({str(where / name): info.st_size for name, info in files.items()})
    return sizes, records


def _claimed(record: Path) -> set[str]:
    try:
        text = record.read_text(encoding="utf-8", errors="surrogateescape")
        return {str(PurePosixPath(row[0])) for row in csv.reader(text.splitlines()) if row}
    except csv.Error:
        return set()


def _source(name: str) -> str:
    """The module that a file was compiled of."""
    path = PurePosixPath(name)
    is_compiled = path.suffix == ".pyc" and path.parent.name == "__pycache__"
    return str(path.parent.parent / f"{path.name.split('.cpython-')[0]}.py") if is_compiled else ""


def _depends_on_python(name: str) -> bool:
    return name.endswith((".py", ".pyc")) or (name.endswith(".so") and ".cpython-" in name)


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def pack_layers(
    tree: Path, archives: Path, python: str, groups: list[list[str]], quick: bool = False
) -> list[PackageLayer]:
    """Write the layers of a tree's `groups` that are not there, none of them by `LARGE_LEVEL` if it is to be `quick`.

    Call it while `holding`. Raises ConfigError where `archives` can't be written, StoreFullError where its disk is
    full.
    """
    place, stop = tree / place_of_layers(python), threading.Event()
    writable_directory(archives / "layers")
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as threads:
        try:
            layers = list(threads.map(lambda names: _pack(place, names, archives, stop, quick), groups))
        except BaseException:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    sync_directory(archives / "layers")
    return layers


def _pack(place: Path, names: list[str], archives: Path, stop: threading.Event, quick: bool) -> PackageLayer:
    total, size = hashlib.sha256(), 0
    for piece in _until(stop, tar_pieces(place, names)):
        total.update(piece)
        size += len(piece)
    layer = PackageLayer(sha256=total.hexdigest(), plain_bytes=size, packed_bytes=0)
    final = layer_path(archives, layer.sha256)
    if is_sound(archives, layer, stop):
        packed = final.stat().st_size
    else:
        with replacing(final) as temporary, closing(tar_pieces(place, names)) as plain:
            parameters = _parameters(size, alone=len(names) == 1, quick=quick)
            packed = write_packed(_until(stop, plain), temporary, parameters)[1]
    return layer.model_copy(update={"packed_bytes": packed})


def _parameters(size: int, alone: bool, quick: bool) -> zstandard.ZstdCompressionParameters:
    if not quick and (size in LARGE or (alone and ALONE <= size < LARGE.stop)):
        return zstandard.ZstdCompressionParameters.from_level(LARGE_LEVEL, source_size=size, window_log=LARGE_WINDOW)
    return zstandard.ZstdCompressionParameters.from_level(LEVEL, source_size=size)


def _until(stop: threading.Event | None, plain: Iterable[bytes]) -> Iterator[bytes]:
    for piece in plain:
        if stop is not None and stop.is_set():
            raise InterruptedError("another layer could not be packed")
        yield piece


def reuse(archives: Path, layer: PackageLayer) -> bool:
    """Whether a layer is there; it counts as used now."""
    path = layer_path(archives, layer.sha256)
    try:
        with suppress(PermissionError):  # somebody else's
            os.utime(path)
        return path.is_file()
    except FileNotFoundError:
        return False


def is_sound(archives: Path, layer: PackageLayer, stop: threading.Event | None = None) -> bool:
    """The same for one that is what its name says: it takes a hundredth of the time of packing it."""
    try:
        return reuse(archives, layer) and all(True for _ in _until(stop, layer_pieces(archives, layer, "")))
    except ArchiveError:
        return False


def layer_pieces(archives: Path, layer: PackageLayer, user: str) -> Iterator[bytes]:
    """What a layer holds, as a stream of tar. Raises at its end, if not before, unless it is what its name says.

    Raises MissingArchiveError, DamagedLayerError; `user` is the environment that needs it, by digest.
    """
    path = layer_path(archives, layer.sha256)

    def damaged(how: str) -> DamagedLayerError:
        users = sorted({user, *users_of(archives, layer.sha256)}, key=lambda digest: digest != user)
        named = ", ".join(digest[:12] for digest in users[:_NAMED])
        more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
        return DamagedLayerError(
            f"layer {layer.sha256[:12]} of archive {named}{more} at {path} is damaged ({how}): delete it, and build "
            f"{'one of them' if len(users) > 1 else 'it'} again",
            path,
        )

    def read() -> Iterator[bytes]:
        try:
            with path.open("rb") as file:
                yield from pieces(file)
        except OSError as error:
            raise MissingArchiveError(
                f"layer {layer.sha256[:12]} of archive {user[:12]} can't be read from {path} ({error.strerror}): build "
                f"it again, or bring it there"
            )

    return verified(layer, read(), damaged)


def verified(
    layer: PackageLayer, packed: Iterator[bytes], damaged: Callable[[str], DamagedArchiveError]
) -> Iterator[bytes]:
    """What a layer's file holds, whose bytes come as `packed`; raises what `damaged` makes of a reason."""
    total, seen = hashlib.sha256(), 0
    # It never has more than a chunk in memory.
    reader = zstandard.ZstdDecompressor().stream_reader(_Source(packed))  # type: ignore[arg-type]
    while True:
        try:
            plain = reader.read(CHUNK)
        except zstandard.ZstdError as error:
            raise damaged(str(error)) from error
        if not plain:
            break
        seen += len(plain)
        if seen > layer.plain_bytes:
            raise damaged("holds more than its manifest says")
        total.update(plain)
        yield plain
    if seen != layer.plain_bytes:
        raise damaged(f"{seen} bytes of {layer.plain_bytes}")
    if total.hexdigest() != layer.sha256:
        raise damaged("its sha256 is not its name")


class _Source:
    """Pieces as a file."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source, self._left = source, memoryview(b"")

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        while not self._left:
            piece = next(self._source, None)
            if piece is None:
                return b""
            self._left = memoryview(piece)
        piece, self._left = bytes(self._left[:size]), self._left[size:]
        return piece


def named_layers(manifest: bytes) -> list[str]:
    """The layers that a manifest names, by its JSON; none if it is damaged."""
    try:
        return [str(each["sha256"]) for each in json.loads(manifest).get("layers", [])]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def users_of(archives: Path, sha256: str) -> list[str]:
    """The environments in a directory whose manifests name a layer, by digest."""
    found = []
    for path in archives.glob("*.json"):
        with suppress(OSError):
            if sha256 in named_layers(path.read_bytes()):
                found.append(path.stem)
    return sorted(found)


@contextmanager
def holding(archives: Path) -> Iterator[None]:
    """Keeps the layers in a directory from `unneeded`, also on other machines if the directory's disk knows locks.

    Raises ConfigError where it can't be written, StoreFullError where its disk is full.
    """
    with _lock(writable_directory(archives / "layers"), fcntl.LOCK_SH):
        yield


@contextmanager
def unneeded(archives: Path, without: Collection[str] = (), grace: float = GRACE_SECONDS) -> Iterator[list[Path]]:
    """The layers that no manifest in a directory names, but those of the environments `without`: yours to remove.

    Nobody adds layers meanwhile; while somebody does, there are none. `grace`, in seconds since a layer's last use, is
    for those on other machines whom no lock tells of.
    """
    place = archives / "layers"
    if not place.is_dir():
        yield []
        return
    with _lock(place, fcntl.LOCK_EX | fcntl.LOCK_NB) as free:
        yield _unneeded(archives, place, without, grace) if free else []


def _unneeded(archives: Path, place: Path, without: Collection[str], grace: float) -> list[Path]:
    needed: set[bytes] = set()
    for path in archives.iterdir():
        # Whatever a manifest says, of another version of this package perhaps, or one that is about to be published.
        if ".json" in path.name and ".damaged-" not in path.name and path.stem not in without:
            try:
                needed.update(re.findall(rb"[0-9a-f]{64}", path.read_bytes()))
            except FileNotFoundError:
                pass
            except OSError:
                return []  # it may need any of them
    found = []
    for path in sorted(place.glob("*.tar.zst")):
        with suppress(FileNotFoundError):
            if path.name.partition(".")[0].encode() not in needed and time.time() - path.stat().st_mtime >= grace:
                found.append(path)
    return found


@contextmanager
def _lock(folder: Path, operation: int) -> Iterator[bool]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, operation)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass  # a network's file system that locks no directories: what is left is the grace
        yield True
    finally:
        os.close(fd)

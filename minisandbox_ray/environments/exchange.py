"""Environments for a machine without a network: one tar with archives, manifests, interpreters and task files.

Its first member, ``export.json``, lists the others with their hashes. Nothing lands in a cache before all of them have
arrived as they were sent.
"""

import fcntl
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minisandbox_ray.environments.archive import (
    FIXED_TIME,
    Manifest,
    archive_path,
    fetched_mark,
    is_complete,
    manifest_path,
    pack_tree,
    parse_manifest,
    read_manifest,
    unpack_file,
    write_manifest,
)
from minisandbox_ray.environments.cache import sync_directory, write_atomically
from minisandbox_ray.environments.package_layers import (
    PackageLayer,
    holding,
    is_sound,
    layer_path,
    layer_pieces,
    verified,
)
from minisandbox_ray.environments.room import disk_errors, is_full, writable_directory
from minisandbox_ray.environments.spec import InterpreterId
from minisandbox_ray.environments.store import NodeStore
from minisandbox_ray.environments.tar import pieces
from minisandbox_ray.errors import ArchiveError, ConfigError, DamagedArchiveError, StoreFullError, first_wrong

INDEX = "export.json"
_LARGEST_INDEX = 64 << 20
_CHUNK = 1 << 20


class Member(BaseModel):
    """A file of an export."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        pattern=r"^(archives/([0-9a-f]{64}\.json|(layers/)?[0-9a-f]{64}\.tar\.zst)|interpreters/[0-9.]+-[0-9a-f]{64}\.tar\.zst"
        r"|tasks/[A-Za-z0-9_][A-Za-z0-9_.+-]*\.jsonl)$"
    )
    """Its path in the tar."""
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Index(BaseModel):
    """What an export holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1]
    members: list[Member]
    """In the order of the tar. A manifest comes before its archive."""


@dataclass(frozen=True)
class Landed:
    """What an import, or an export, brought."""

    environments: list[Manifest]
    interpreters: list[str]
    """Versions."""
    tasks: list[str]
    """File names."""
    bytes: int
    """Of the file."""
    known: int = 0
    """How many of the environments and interpreters were there before."""


def export_environments(
    digests: Sequence[str], file: Path, archives: Path, store: NodeStore, tasks: Sequence[Path] = ()
) -> Landed:
    """Write `file`, atomically: the environments' archives, the interpreters that they need, and files of tasks.

    Archives are verified on their way. Raises MissingArchiveError, DamagedArchiveError, ArchiveError for an interpreter
    that this machine lacks, ConfigError for a place that can't be written and two files of tasks with one name,
    StoreFullError.
    """
    if file.is_dir():
        raise ConfigError(f"{file} is a directory, expected a file to write")
    if not file.parent.is_dir():
        raise ConfigError(f"cannot write {file}: {file.parent} is no directory")
    manifests = [read_manifest(archives, digest) for digest in dict.fromkeys(digests)]
    names = [path.name for path in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two files of tasks are named {name}: rename one of them")
    temporary = file.with_name(f".{file.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    with store.scratch() as scratch, disk_errors(file):
        members: list[Member] = []
        sources: list[Callable[[], IO[bytes]]] = []

        def add(name: str, size: int, sha256: str, source: Callable[[], IO[bytes]]) -> None:
            try:
                members.append(Member(name=name, bytes=size, sha256=sha256))
            except ValidationError:
                raise ConfigError(f"{name} can't be exported under that name: use letters, digits and '_.+-'") from None
            sources.append(source)

        interpreters = {manifest.interpreter: manifest for manifest in manifests}
        versions = []
        for interpreter, manifest in interpreters.items():
            copy = store.interpreter_of(manifest)
            if copy is None:  # one of the base system's
                continue
            packed = scratch / f"{interpreter.version}-{interpreter.build_id}.tar.zst"
            sha256, size = pack_tree(copy, packed)
            add(f"interpreters/{packed.name}", size, sha256, partial(_open, packed))
            versions.append(interpreter.version)
        for path in tasks:
            data = path.read_bytes()
            add(f"tasks/{path.name}", len(data), _sha256(data), partial(io.BytesIO, data))
        for manifest in manifests:
            data = manifest.model_dump_json(indent=1).encode()
            json, packed = manifest_path(archives, manifest.digest), archive_path(archives, manifest.digest)
            add(f"archives/{json.name}", len(data), _sha256(data), partial(io.BytesIO, data))
            sizes = manifest.archive_bytes, manifest.archive_sha256
            add(f"archives/{packed.name}", *sizes, partial(_open, packed))
        layers = {layer.sha256: (layer, each.digest) for each in manifests for layer in each.layers}
        for name, (layer, digest) in layers.items():
            size, sha256 = _check_layer(archives, layer, digest)
            add(f"archives/layers/{name}.tar.zst", size, sha256, partial(_open, layer_path(archives, name)))
        try:
            with temporary.open("wb") as out:
                _write(out, Index(format=1, members=members), sources)
                out.flush()
                os.fsync(out.fileno())
                total = out.tell()
            temporary.replace(file)
        except OSError as error:
            if not is_full(error):
                raise
            raise StoreFullError(
                f"cannot write {file} ({error.strerror}): free some space there, or choose a place on a larger disk"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
    sync_directory(file.parent)
    return Landed(manifests, versions, names, total)


def _write(out: IO[bytes], index: Index, sources: Sequence[Callable[[], IO[bytes]]]) -> None:
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        text = index.model_dump_json(indent=1).encode()
        tar.addfile(_info(INDEX, len(text)), io.BytesIO(text))
        for member, source in zip(index.members, sources, strict=True):
            try:
                opened = source()
            except FileNotFoundError as error:
                raise ArchiveError(f"{error.filename} is gone: build it again") from error
            with opened:
                watched = _Hashing(opened)
                try:
                    tar.addfile(_info(member.name, member.bytes), watched)  # type: ignore[arg-type]
                except OSError as error:
                    if error.errno is not None:
                        raise
                    raise DamagedArchiveError(_changed(member)) from error  # it was shorter
                if watched.sha256 != member.sha256 or opened.read(1):
                    raise DamagedArchiveError(_changed(member))


def _check_layer(archives: Path, layer: PackageLayer, digest: str) -> tuple[int, str]:
    """Size and hash of a layer's file. Raises MissingArchiveError, DamagedArchiveError."""
    for _ in layer_pieces(archives, layer, digest):
        pass
    with _open(layer_path(archives, layer.sha256)) as file:
        watched = _Hashing(file)
        while watched.read(_CHUNK):
            pass
        return file.tell(), watched.sha256


def _changed(member: Member) -> str:
    return f"{member.name} is not what its manifest says: look with `cache verify`, and build it again"


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, FIXED_TIME, 0o644
    return info


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


class _Hashing:
    """A file that is read once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._total = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        """As a file's."""
        data = self._file.read(size)
        self._total.update(data)
        return data

    @property
    def sha256(self) -> str:
        """Of what was read."""
        return self._total.hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def import_environments(file: Path, archives: Path, store: NodeStore, tasks: Path) -> Landed:
    """Take over what `export_environments` wrote: into `archives`, interpreters into `store`, files into `tasks`.

    What is there already stays as it is. Raises ConfigError for a file that is no export, is cut short or was changed,
    and for a file of tasks in the place of another of that name; StoreFullError. Then nothing has landed.
    """
    writable_directory(archives)
    with ExitStack() as stack:
        scratch = stack.enter_context(store.scratch())
        try:
            tar = stack.enter_context(tarfile.open(file, "r:"))
            index = _read_index(tar, file)
            store.make_disk_room(f"importing {file.name}", archives, sum(each.bytes for each in index.members))
            arrived = dict(_receive(tar, index, file, archives, scratch, stack))
            sent = {each.name: each for each in index.members}
        except (tarfile.TarError, EOFError) as error:
            raise ConfigError(f"{file} is no export of environments, or is cut short ({error})") from error
        except OSError as error:
            if error.filename != str(file):
                raise
            raise ConfigError(f"cannot read {file}: {error.strerror}") from error
        return _land(arrived, sent, file, archives, store, tasks)


def _read_index(tar: tarfile.TarFile, file: Path) -> Index:
    first = tar.next()
    if first is None or first.name != INDEX or not first.isreg() or first.size > _LARGEST_INDEX:
        raise ConfigError(f"{file} is no export of environments: `cache export` writes them")
    try:
        content = tar.extractfile(first)
        assert content is not None
        return Index.model_validate_json(content.read())
    except ValidationError as error:
        what = first_wrong(error, INDEX)
        raise ConfigError(f"{file} is no export of environments that this version knows: {what}")


def _receive(
    tar: tarfile.TarFile, index: Index, file: Path, archives: Path, scratch: Path, stack: ExitStack
) -> Iterator[tuple[str, Path]]:
    """Write each member beside where it belongs; the names go again with the `stack`."""
    for member in index.members:
        info = tar.next()
        if info is None:
            raise ConfigError(f"{file} is cut short: {member.name} is missing")
        if info.name != member.name or not info.isreg() or info.size != member.bytes:
            raise ConfigError(f"{file} was changed: it holds {info.name!r} where its index says {member.name}")
        content = tar.extractfile(info)
        assert content is not None
        kind, name = member.name.partition("/")[0], Path(member.name).name
        place = archives / f".{name}.{os.getpid()}-{os.urandom(4).hex()}.part" if kind == "archives" else scratch / name
        total = hashlib.sha256()
        with disk_errors(place):
            out = stack.enter_context(place.open("wb"))
            stack.callback(place.unlink, missing_ok=True)
            fcntl.flock(out, fcntl.LOCK_EX)  # who fetches archives removes those of the dead
            while piece := content.read(_CHUNK):
                total.update(piece)
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        if total.hexdigest() != member.sha256:
            raise ConfigError(f"{file} was changed: {member.name} has another sha256 than its index says")
        yield member.name, place


def _land(
    arrived: dict[str, Path], sent: dict[str, Member], file: Path, archives: Path, store: NodeStore, tasks: Path
) -> Landed:
    manifests: list[Manifest] = []
    packed: dict[str, Path] = {}
    layers: dict[str, Path] = {}
    versions: list[str] = []
    files: dict[str, bytes] = {}
    for name, path in arrived.items():
        kind, _, rest = name.partition("/")
        if kind == "tasks":
            files[rest] = path.read_bytes()
            target = tasks / rest
            if target.exists() and target.read_bytes() != files[rest]:
                raise ConfigError(f"{target} is there already, and is another: move it away")
        elif kind == "interpreters":
            versions.append(rest.removesuffix(".tar.zst"))
        elif rest.endswith(".json"):
            try:
                manifests.append(parse_manifest(path.read_bytes(), rest.removesuffix(".json"), f"{name} of {file}"))
            except ArchiveError as error:
                raise ConfigError(str(error)) from error
        elif rest.startswith("layers/"):
            layers[rest.removeprefix("layers/").removesuffix(".tar.zst")] = path
        else:
            packed[rest.removesuffix(".tar.zst")] = path
    for manifest in manifests:
        member = sent.get(f"archives/{manifest.digest}.tar.zst")
        if member is None or (member.bytes, member.sha256) != (manifest.archive_bytes, manifest.archive_sha256):
            raise ConfigError(f"{file} was changed: {manifest.digest[:12]} has not the archive that its manifest says")
    if set(packed) != {each.digest for each in manifests}:
        raise ConfigError(f"{file} was changed: it holds an archive without a manifest")
    needed = {layer.sha256: layer for each in manifests for layer in each.layers}
    _check_layers(layers, needed, file)
    known = 0
    for name in versions:
        version, _, build_id = name.partition("-")
        source = arrived[f"interpreters/{name}.tar.zst"]
        known += not store.adopt_interpreter(
            InterpreterId(version=version, build_id=build_id), partial(unpack_file, source)
        )
    whole = {each.digest for each in manifests if is_complete(archives, each.digest)}
    with holding(archives) if layers else nullcontext():
        for name, path in layers.items():
            if not is_sound(archives, needed[name]):
                path.replace(layer_path(archives, name))
        if layers:
            sync_directory(archives / "layers")
        known += _land_archives(manifests, packed, whole, archives, store)
    for name, data in files.items():
        writable_directory(tasks)
        write_atomically(tasks / name, data)
    return Landed(manifests, [each.partition("-")[0] for each in versions], list(files), file.stat().st_size, known)


def _check_layers(layers: dict[str, Path], needed: dict[str, PackageLayer], file: Path) -> None:
    """Raise ConfigError unless what arrived is what the manifests name, and holds what it is named after."""
    if set(layers) != set(needed):
        raise ConfigError(f"{file} was changed: it holds other layers than its manifests name")

    for name, path in layers.items():

        def damaged(how: str, name: str = name) -> DamagedArchiveError:
            return DamagedArchiveError(f"{file} was changed: layer {name[:12]} is not what its name says ({how})")

        try:
            with _open(path) as opened:
                for _ in verified(needed[name], pieces(opened), damaged):
                    pass
        except DamagedArchiveError as error:
            raise ConfigError(str(error)) from error


def _land_archives(
    manifests: list[Manifest], packed: dict[str, Path], whole: set[str], archives: Path, store: NodeStore
) -> int:
    """Returns how many were there before, of which `whole` had all that they need."""
    known = 0
    for manifest in manifests:
        fetched_mark(archives, manifest.digest).unlink(missing_ok=True)  # nothing makes room by removing it
        with suppress(ArchiveError, OSError):  # what is damaged is replaced
            there = read_manifest(archives, manifest.digest)
            size = archive_path(archives, manifest.digest).stat().st_size
            if size == there.archive_bytes and manifest.digest in whole:
                known += 1
                continue
        with store.providing(manifest.digest), disk_errors(archives):
            manifest_path(archives, manifest.digest).unlink(missing_ok=True)
            packed[manifest.digest].replace(archive_path(archives, manifest.digest))
            sync_directory(archives)
            write_manifest(archives, manifest)
    return known

"""Archives: a built environment in one ``<digest>.tar.zst`` with its manifest ``<digest>.json``, and in the layers that
it shares with others (see `package_layers`).

The manifest is written last: an archive without one does not exist. All go to their names by rename, so a shared
directory never shows a half-written one. The system's tar does the work, its stream passes through zstandard and
sha256.
"""

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from minisandbox_ray.environments.cache import replacing, sync_directory, write_atomically
from minisandbox_ray.environments.git_index import settle_index
from minisandbox_ray.environments.git_objects import ForeignObjectsError, make_pack
from minisandbox_ray.environments.package_layers import (
    PackageLayer,
    find_groups,
    layer_path,
    layer_pieces,
    named_layers,
    options_for_layers,
    pack_layers,
    place_of_layers,
)
from minisandbox_ray.environments.room import writable_directory
from minisandbox_ray.environments.spec import BaseSystem, EnvSpec, InterpreterId, environment_digest
from minisandbox_ray.environments.tar import (
    CHUNK,
    COMPARE,
    EXTRACT,
    FIXED_TIME,
    LEVEL,
    TarReader,
    pieces,
    tar_pieces,
    write_packed,
)
from minisandbox_ray.errors import ArchiveError, DamagedArchiveError, MissingArchiveError


class Manifest(BaseModel):
    """What is known about an archive without opening it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    """Name of the environment, see `environment_digest`."""
    spec: EnvSpec
    """The recipe."""
    source_tree: str = ""
    """Hash of the source's directory, if that is what it was."""
    interpreter: InterpreterId
    """The Python build that the venv runs on."""
    base: BaseSystem
    """The system it was built on and needs."""
    archive_sha256: str
    """Hash of the archive file."""
    archive_bytes: int
    """Its size."""
    unpacked_bytes: int
    """Sum of the file sizes once unpacked."""
    files: int
    """Number of entries, directories included."""
    commands: list[str]
    """The shell commands that built it."""
    created: str
    """UTC, ISO 8601."""
    layers: list[PackageLayer] = []
    """What is not in the archive file, in the order in which it is unpacked after that."""
    made_bytes: int | None = None
    """Size of git's pack and its index if they are not in the archive but made of the files, see `git_objects`."""

    @property
    def packed_bytes(self) -> int:
        """Size of archive and layers."""
        return self.archive_bytes + sum(each.packed_bytes for each in self.layers)

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """One that leaves nothing out reads as it always did, also to earlier versions."""
        data: dict[str, Any] = serialise(self)
        if not self.layers:
            data.pop("layers", None)
        if self.made_bytes is None:
            data.pop("made_bytes", None)
        return data

    def expected_digest(self) -> str:
        """The digest that this content should carry."""
        return environment_digest(self.spec, self.interpreter, self.base, self.source_tree)


def archive_path(archives: Path, digest: str) -> Path:
    """Where the archive of a digest lies."""
    return archives / f"{digest}.tar.zst"


def manifest_path(archives: Path, digest: str) -> Path:
    """Where the manifest of a digest lies."""
    return archives / f"{digest}.json"


def fetched_mark(archives: Path, digest: str) -> Path:
    """An empty file that tells copies, which can be fetched again, from what may be the only archive."""
    return archives / f".{digest}.fetched"


def parse_manifest(data: bytes, digest: str, place: str | Path) -> Manifest:
    """A manifest from its JSON, found at `place`. Raises DamagedArchiveError if it is not that of `digest`."""
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        unknown = sorted(str(each["loc"][-1]) for each in error.errors() if each["type"] == "extra_forbidden")
        if unknown:  # not damaged: it stays where it is
            raise ArchiveError(
                f"manifest {place} is of another version of minisandbox_ray, this one does not know {unknown[0]}: use "
                f"that version, or build {digest[:12]} with this one elsewhere"
            )
        reason = f"{len(error.errors())} bad fields"
        raise DamagedArchiveError(f"manifest {place} is unreadable ({reason}): delete it and build {digest[:12]} again")
    if manifest.digest != digest or manifest.expected_digest() != digest:
        raise DamagedArchiveError(
            f"manifest {place} describes something else than {digest[:12]}: delete it and build again"
        )
    return manifest


def read_manifest(archives: Path, digest: str) -> Manifest:
    """The manifest of an archive. Raises MissingArchiveError if there is none, DamagedArchiveError if it is damaged."""
    path = manifest_path(archives, digest)
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingArchiveError(
            f"no archive {digest[:12]} in {archives}: build it there, or correct the archives path"
        )
    except OSError as error:
        raise MissingArchiveError(
            f"manifest {path} can't be read ({error.strerror}): correct that, or build {digest[:12]} again"
        )
    return parse_manifest(data, digest, path)


def is_complete(archives: Path, digest: str) -> bool:
    """Whether a manifest is there with all that it names."""
    return read_manifest_bytes(archives, digest) is not None


def read_manifest_bytes(archives: Path, digest: str) -> bytes | None:
    """The manifest's JSON as it lies there, if archive and layers are there as well; for sending all that elsewhere."""
    if not archive_path(archives, digest).is_file():
        return None
    try:
        data = manifest_path(archives, digest).read_bytes()
    except FileNotFoundError:
        return None
    return data if all(layer_path(archives, name).is_file() for name in named_layers(data)) else None


def read_piece(path: Path, offset: int, length: int) -> bytes:
    """At most `length` bytes of an archive or layer from `offset` on; empty at its end. Raises MissingArchiveError."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        raise MissingArchiveError(f"archive {path} can't be read: {error.strerror}")


@dataclass(frozen=True)
class Packed:
    """What of a manifest is known once a tree is packed."""

    archive_sha256: str
    archive_bytes: int
    layers: list[PackageLayer]


def pack(
    tree: Path, archives: Path, digest: str, python: str = "", without: Collection[Path] = (), quick: bool = False
) -> Packed:
    """Write the archive of a directory. `tree` should be `normalise`d before; its files `without` are left out.

    With `python`, the version on which its venv runs, packages that others may have go to layers of their own; that is
    done while `holding` them, until the manifest is written. `quick` takes less time and more room. Raises ConfigError
    where `archives` can't be written, StoreFullError where its disk is full.
    """
    writable_directory(archives)
    groups = find_groups(tree, python) if python else []
    layers = pack_layers(tree, archives, python, groups, quick) if groups else []
    prefix = place_of_layers(python) if groups else ""
    elsewhere = {f"{prefix}/{name}" for names in groups for name in names}
    elsewhere.update(str(path.relative_to(tree)) for path in without)
    final = archive_path(archives, digest)
    with replacing(final) as temporary:
        sha256, size = pack_tree(tree, temporary, elsewhere)
    sync_directory(archives)
    return Packed(sha256, size, layers)


def pack_tree(tree: Path, target: Path, without: Collection[str] = ()) -> tuple[str, int]:
    """Write a directory's content to the file `target`; returns (sha256, size in bytes). Raises ArchiveError.

    `without`: paths of files that are left out.
    """
    names = [name for name in _names(tree) if name not in without] if without else None
    with closing(tar_pieces(tree, names)) as plain:
        parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, threads=max(1, os.cpu_count() or 1))
        return write_packed(plain, target, parameters)


def _names(tree: Path) -> list[str]:
    """All that a directory holds, each directory before what is in it."""
    found = []
    for folder, folders, files in tree.walk():
        prefix = f"{folder.relative_to(tree)}/" if folder != tree else ""
        found += [prefix + name for name in folders + files]
    return sorted(found, key=lambda name: name.split("/"))


def unpack_file(file: Path, target: Path) -> None:
    """Extract what `pack_tree` wrote, whose hash was checked, into an empty directory. Raises ArchiveError, OSError."""
    with TarReader([*EXTRACT, f"--directory={target}"]) as tar, file.open("rb") as packed:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            for piece in pieces(packed):
                tar.write(decompressor.decompress(piece))
        except zstandard.ZstdError as error:
            raise DamagedArchiveError(f"{file.name} is damaged ({error})") from error
    if tar.status != 0:
        raise ArchiveError(f"{file.name} can't be unpacked to {target} ({tar.complaint}): correct that and try again")


def write_manifest(archives: Path, manifest: Manifest) -> None:
    """Publish an archive."""
    write_atomically(manifest_path(archives, manifest.digest), manifest.model_dump_json(indent=1).encode())


def unpack(archives: Path, manifest: Manifest, target: Path) -> None:
    """Extract an archive into the empty directory `target`, verified.

    Raises MissingArchiveError, DamagedArchiveError, and OSError (ENOSPC) as soon as the disk of `target` is full; then
    `target` holds rubbish and must be deleted.
    """
    path = archive_path(archives, manifest.digest)
    # Layers bring files into directories that are there: these get their times at the end.
    later = ["--delay-directory-restore"] if manifest.layers else []
    with TarReader([*EXTRACT, *later, *_layered(manifest), f"--directory={target}"]) as tar:
        for piece in _plain_pieces(archives, manifest):
            tar.write(piece)
    if tar.status != 0:
        what = f"archive {manifest.digest[:12]} at {path} is sound but can't be unpacked to {target}"
        raise ArchiveError(f"{what} ({tar.complaint}): correct that and try again")
    files, size = survey(target)
    if manifest.made_bytes is not None:
        try:
            files += len(make_pack(target / "testbed"))
        except ForeignObjectsError as error:
            raise _damaged(path, manifest, str(error))
        size += manifest.made_bytes
    if files != manifest.files or size != manifest.unpacked_bytes:
        raise _damaged(path, manifest, f"{files} files of {manifest.files}")


def check(archives: Path, manifest: Manifest, sound: Collection[str] = ()) -> None:
    """Read an archive and its layers, but those in `sound`, to their ends.

    Raises MissingArchiveError, DamagedArchiveError.
    """
    for _ in _archive_pieces(archive_path(archives, manifest.digest), manifest):
        pass
    for layer in manifest.layers:
        if layer.sha256 not in sound:
            for _ in layer_pieces(archives, layer, manifest.digest):
                pass


def compare(archives: Path, manifest: Manifest, tree: Path) -> str:
    """What differs first between an archive and what was unpacked from it; "" if nothing does.

    What is not in the archive but made is not looked at. Raises MissingArchiveError, DamagedArchiveError.
    """
    with TarReader([*COMPARE, *_layered(manifest), f"--directory={tree}"]) as tar:
        for piece in _plain_pieces(archives, manifest):
            tar.write(piece)
    return next((line.removeprefix("tar: ") for line in tar.said if not _OWNER.search(line)), "")


def _layered(manifest: Manifest) -> list[str]:
    return options_for_layers(manifest.interpreter.version) if manifest.layers else []


_OWNER = re.compile(r": [UG]id differs$|Exiting with failure status")
"""What a tar that is not root's unpacks belongs to whoever did it."""


def _plain_pieces(archives: Path, manifest: Manifest) -> Iterator[bytes]:
    """What an archive and its layers hold, as a stream of tar. Raises at the end of each, if not before, unless it is
    as it was written."""
    yield from _archive_pieces(archive_path(archives, manifest.digest), manifest)
    for layer in manifest.layers:
        yield from layer_pieces(archives, layer, manifest.digest)


def _archive_pieces(path: Path, manifest: Manifest) -> Iterator[bytes]:
    # What the stream may hold besides file contents: headers and padding, long names. More is no archive of ours.
    allowed = manifest.unpacked_bytes + manifest.files * 4096 + CHUNK
    total, seen = hashlib.sha256(), 0
    with _open(path, manifest) as file:
        size = os.fstat(file.fileno()).st_size
        if size != manifest.archive_bytes:
            raise _damaged(path, manifest, f"{size} bytes of {manifest.archive_bytes}")
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        for piece in _readable_pieces(file, path):
            total.update(piece)
            try:
                plain = decompressor.decompress(piece)
            except zstandard.ZstdError as error:
                raise _damaged(path, manifest, str(error))
            seen += len(plain)
            if seen > allowed:
                raise _damaged(path, manifest, "holds more than its manifest says")
            yield plain
    if total.hexdigest() != manifest.archive_sha256:
        raise _damaged(path, manifest, "its sha256 is not the manifest's")


def _damaged(path: Path, manifest: Manifest, how: str) -> DamagedArchiveError:
    name = manifest.digest[:12]
    return DamagedArchiveError(
        f"archive {name} at {path} is damaged ({how}): delete it and {name}.json, and build it again"
    )


def _open(path: Path, manifest: Manifest) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise MissingArchiveError(
            f"archive {manifest.digest[:12]} is missing at {path} ({error.strerror}): build it again, or bring it there"
        )


def _readable_pieces(file: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from pieces(file)
    except OSError as error:
        raise MissingArchiveError(f"archive {path} can't be read ({error.strerror}): correct that, or build it again")


def survey(tree: Path) -> tuple[int, int]:
    """Count entries and bytes below `tree`. Device nodes, pipes and sockets raise ArchiveError; set-uid bits go."""
    files = size = 0
    waiting = [os.fspath(tree)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                files += 1
                if stat.S_ISDIR(info.st_mode):
                    waiting.append(entry.path)
                elif stat.S_ISREG(info.st_mode):
                    size += info.st_size
                elif not stat.S_ISLNK(info.st_mode):
                    place = Path(entry.path).relative_to(tree)
                    raise ArchiveError(f"{place} is a device, pipe or socket: an environment holds none")
                if info.st_mode & (stat.S_ISUID | stat.S_ISGID):
                    Path(entry.path).chmod(info.st_mode & 0o777)
    return files, size


def normalise(tree: Path) -> None:
    """Give a built tree the modes and times that it will have when unpacked; sockets and pipes are removed.

    Everything gets `FIXED_TIME`, but ``.git/index`` a later one: git re-reads every file that is not older than
    the index. What else the index notes of files goes, see `settle_index`.
    """
    for folder, folders, names in tree.walk(top_down=False):
        for name in folders + names:
            path = folder / name
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                path.chmod(0o755)
            elif stat.S_ISREG(mode):
                path.chmod(0o755 if mode & 0o100 else 0o644)
            elif not stat.S_ISLNK(mode):
                path.unlink()
                continue
            is_index = name == "index" and folder.name == ".git" and stat.S_ISREG(mode)
            if is_index:
                settle_index(path)
            later = 86400 if is_index else 0
            os.utime(path, (FIXED_TIME + later,) * 2, follow_symlinks=False)

"""Bring an environment to the node that needs it: from its store, an archive within reach, a URL, another node, or by
building it again."""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from minisandbox_ray.environments.archive import (
    Manifest,
    archive_path,
    fetched_mark,
    manifest_path,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from minisandbox_ray.environments.build import build_environment
from minisandbox_ray.environments.cache import sync_directory
from minisandbox_ray.environments.package_layers import (
    DamagedLayerError,
    PackageLayer,
    holding,
    layer_path,
    named_layers,
    reuse,
    unneeded,
    verified,
)
from minisandbox_ray.environments.room import Room, disk_errors, free_room, reserve, writable_directory
from minisandbox_ray.environments.sources import Peer, PeerSource, Source, UrlSource, hide_credentials, is_url
from minisandbox_ray.environments.spec import environment_digest
from minisandbox_ray.environments.store import NodeStore, unpacked_room
from minisandbox_ray.errors import (
    ArchiveError,
    BuildError,
    DamagedArchiveError,
    MissingArchiveError,
    SandboxError,
    StoreFullError,
    first_line,
)

Origin = Literal["store", "archives", "local", "url", "peer", "rebuilt"]

_PARTS = ("fetch", "unpack", "rebuild")
_DAMAGED = "damaged"
_MORE = 1 << 20
"""Bytes that a file of zstd may be larger than what it holds."""
_STALE_SECONDS = 60


@dataclass(frozen=True)
class Provided:
    """How an environment came to this node."""

    origin: Origin
    """Where it was found; "store" if there was nothing to do, or somebody else did it meanwhile."""
    seconds: dict[str, float]
    """What took how long, failed attempts included: "fetch", "unpack", "rebuild"."""
    unpacked_bytes: int = 0
    """Size of the environment, if this call materialised it."""
    quarantined: list[str] = field(default_factory=list)
    """Paths to which damaged archives were moved."""


def provide(
    digest: str,
    *,
    archives: Path | str,
    local: Path,
    store: NodeStore,
    peers: Sequence[Peer] = (),
    log: Callable[[str], None] | None = None,
) -> Provided:
    """Materialise an environment in this node's store, from the first place that has a sound archive of it.

    These are, in order: the directory `archives`; `local`, this node's own directory of archives; `archives` if that
    is a URL (see UrlSource); the `peers`. What comes over the network is verified while it is written to `local`, and
    unpacked from there; that copy stays until the disk is full. A damaged archive is renamed so that nobody finds it
    again. Where nobody has a sound one, but somebody the recipe, the environment is built again into `local`. `log`
    gets a line for whatever is unusual.

    One at a time per environment on this node. Nothing keeps the result from eviction: see `NodeStore.use`. Raises
    MissingArchiveError or DamagedArchiveError with what was wrong in each place, ArchiveError for an environment of
    another system, StoreFullError, ConfigError for a `local` that can't be written or a URL that this node can't read.
    """
    if store.contains(digest):
        return Provided("store", dict.fromkeys(_PARTS, 0.0))
    with store.providing(digest):
        if store.contains(digest):
            return Provided("store", dict.fromkeys(_PARTS, 0.0))
        search = _Search(digest, local.absolute(), store, log or _silent)
        return search.run(archives, peers)


@dataclass
class _Search:
    """One search for an environment."""

    digest: str
    local: Path
    store: NodeStore
    log: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0.0))
    quarantined: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Each place with what was wrong there."""
    damaged: bool = False
    recipe: Manifest | None = None

    def run(self, archives: Path | str, peers: Sequence[Peer]) -> Provided:
        """Try one place after the other."""
        url = archives if isinstance(archives, str) and is_url(archives) else None
        directories: list[tuple[Origin, Path]] = []
        if url is None:
            directories.append(("archives", Path(archives).absolute()))
        if not any(_same(self.local, each) for _, each in directories):
            directories.append(("local", self.local))
        for origin, directory in directories:
            if provided := self.unpack_from(origin, directory):
                return provided
        if url and (provided := self.fetch("url", UrlSource(url))):
            return provided
        for peer in peers:
            if provided := self.fetch("peer", PeerSource(peer)):
                return provided
        if self.recipe is None:
            self.recipe = next(self._recipes([each for _, each in directories]), None)
        return self.rebuild()

    def unpack_from(self, origin: Origin, directory: Path) -> Provided | None:
        """Materialise from a directory; a damaged archive there is moved away."""
        seen = _Seen.at(directory, self.digest)
        with suppress(ArchiveError):
            self.recipe = self.recipe or read_manifest(directory, self.digest)
        try:
            with self._clock("unpack"):
                environment = self._roomy(
                    self.store.root, unpacked_room, partial(self.store.materialise, self.digest, directory)
                )
        except MissingArchiveError as error:
            self.failures.append(str(error))
        except DamagedArchiveError as error:
            self.damaged = True
            fate = self._quarantine(directory, seen, error)
            self.failures.append(f"{error}; {fate}")
            self.log(self.failures[-1])
        else:
            with suppress(FileNotFoundError):
                os.utime(fetched_mark(directory, self.digest))
            return self._provided(origin, environment.manifest)
        return None

    def fetch(self, origin: Origin, source: Source) -> Provided | None:
        """Copy an archive, and those of its layers that are not there, to the local directory; materialise it there."""
        for _attempt in range(2):
            try:
                with self._clock("fetch"):
                    self._bring(source)
            except DamagedArchiveError as error:
                self.damaged = True
                self.failures.append(str(error))
                self.log(f"{error}; passed over")
                return None
            except MissingArchiveError as error:
                self.failures.append(str(error))
                return None
            moved = len(self.quarantined)
            if provided := self.unpack_from(origin, self.local):
                return provided
            if not any("/layers/" in path for path in self.quarantined[moved:]):
                return None
            # A layer that lay there was damaged: now it is away, and can be fetched.
        return None

    def rebuild(self) -> Provided:
        """Build the environment from its recipe. Raises what the whole search comes to."""
        if self.recipe is None:
            raise self._error("and no manifest says how to build it: build it, or correct the archives path")
        manifest, name = self.recipe, self.digest[:12]
        self.log(f"no sound archive of {name} ({manifest.spec.describe()}): building it again")
        try:
            with self._clock("rebuild"):
                interpreter, _ = self.store.interpreter(manifest.spec.python)
                # The tree of a commit is what its manifest says; that of a directory is looked at again.
                is_commit = manifest.spec.source is not None and manifest.spec.source.kind == "git"
                tree = manifest.source_tree if is_commit else None
                if environment_digest(manifest.spec, interpreter.id, source_tree=tree) != self.digest:
                    raise BuildError(
                        "this node's python, system or source directory would give another environment: build it where "
                        "they have not changed"
                    )
                self._retire()
                build_environment(manifest.spec, self.local, self.store, self.log)
        except (BuildError, SandboxError) as error:
            raise self._error(f"and building it again failed: {_first_line(error)}") from error
        with self._clock("unpack"):
            environment = self.store.materialise(self.digest, self.local)
        return self._provided("rebuilt", environment.manifest)

    def _bring(self, source: Source) -> None:
        try:
            data = source.manifest(self.digest)
        except Exception as error:  # what clients of object stores and Ray raise has no common base
            raise MissingArchiveError(f"{source.name} can't be asked ({_said(error)})")
        if data is None:
            raise MissingArchiveError(f"{source.name} has none")
        manifest = parse_manifest(data, self.digest, f"of {source.name}")
        self.recipe = self.recipe or manifest
        self.store.check_fits(manifest)
        writable_directory(self.local)

        def receive() -> None:
            self.store.make_disk_room(f"archive {self.digest[:12]}", self.local, _missing_bytes(self.local, manifest))
            _receive(self.local, manifest, source, self.log)

        needed = Room(_missing_bytes(self.local, manifest), 3 + len(manifest.layers))
        self._roomy(self.local, lambda _: needed, receive)

    def _roomy[Result](self, place: Path, needed: Callable[[Manifest], Room], action: Callable[[], Result]) -> Result:
        """What `action` returns; where the disk of `place` is full, copies of archives make room and it is called anew.

        The copies are those that were fetched and can be again; the least recently used go first.
        """
        try:
            return action()
        except StoreFullError:
            if self.recipe is None:
                raise
            wanted = needed(self.recipe) + reserve(place)
        with suppress(OSError):  # others remove some too
            marks = sorted(self.local.glob(".*.fetched"), key=lambda mark: mark.stat().st_mtime)
            for mark in marks if self.local.stat().st_dev == place.stat().st_dev else []:
                digest = mark.name.split(".")[1]
                if digest != self.digest and not free_room(place).holds(wanted):
                    self.log(f"the disk of {place} is full: removing the copy of archive {digest[:12]}")
                    for path in (manifest_path(self.local, digest), archive_path(self.local, digest), mark):
                        path.unlink(missing_ok=True)
                    with unneeded(self.local, grace=0) as layers:
                        for path in layers:
                            path.unlink(missing_ok=True)
        return action()

    def _quarantine(self, directory: Path, seen: "_Seen", error: DamagedArchiveError) -> str:
        """Move away what was found damaged, unless somebody has put something else there; returns what was done.

        Of an archive with a damaged layer that is the layer alone: the rest is sound, and others need it.
        """
        suffix = f"{_DAMAGED}-{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(3).hex()}"
        moved = None
        try:
            # The manifest goes first: without one there is no archive, so nobody meets one half of the pair.
            both = manifest_path(directory, self.digest), archive_path(directory, self.digest)
            for path in [error.path] if isinstance(error, DamagedLayerError) else both:
                if path in seen.files and _identity(path) == seen.files[path]:
                    moved = path.rename(path.with_name(f"{path.name}.{suffix}"))
                    if path.suffix == ".zst":
                        self.quarantined.append(str(moved))
        except OSError as refused:
            return f"it can't be moved away ({refused.strerror})"
        return f"moved to {moved}" if moved else "it has been replaced meanwhile"

    def _retire(self) -> None:
        """What must not be taken for a part of the archive that is about to be built."""
        manifest = manifest_path(self.local, self.digest)
        with disk_errors(self.local):
            fetched_mark(self.local, self.digest).unlink(missing_ok=True)
            if not archive_path(self.local, self.digest).exists():
                manifest.unlink(missing_ok=True)

    def _recipes(self, directories: list[Path]) -> Iterator[Manifest]:
        """What manifests that were moved away say: the recipe may be sound where the archive was not."""
        for directory in directories:
            for path in sorted(directory.glob(f"{self.digest}.json.{_DAMAGED}-*")):
                with suppress(ArchiveError, OSError):
                    yield parse_manifest(path.read_bytes(), self.digest, path)

    def _error(self, end: str) -> ArchiveError:
        kind = DamagedArchiveError if self.damaged else MissingArchiveError
        places = "; ".join(self.failures)
        return kind(f"no sound archive of environment {self.digest[:12]} ({places}), {end}")

    def _provided(self, origin: Origin, manifest: Manifest) -> Provided:
        return Provided(origin, self.seconds, manifest.unpacked_bytes, self.quarantined)

    @contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[what] += time.monotonic() - started


class _BrokenOffError(MissingArchiveError):
    """A source failed in the middle of an archive."""


@dataclass(frozen=True)
class _Seen:
    """Which files were there before they were read."""

    files: dict[Path, tuple[int, ...]]

    @classmethod
    def at(cls, directory: Path, digest: str) -> "_Seen":
        """The manifest, archive and layers of a digest, as far as they are there."""
        paths = [manifest_path(directory, digest), archive_path(directory, digest)]
        with suppress(OSError):
            paths += [layer_path(directory, name) for name in named_layers(paths[0].read_bytes())]
        return cls({path: found for path in paths if (found := _identity(path))})


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _receive(directory: Path, manifest: Manifest, source: Source, log: Callable[[str], None]) -> None:
    """Write what the source sends under the names of archive and missing layers, if it is what the manifest says.

    Raises DamagedArchiveError, _BrokenOffError, StoreFullError, ConfigError.
    """
    with holding(directory) if manifest.layers else nullcontext():
        for layer in manifest.layers:
            if not reuse(directory, layer):
                _persistently(source, log, partial(_receive_layer, directory, manifest, layer, source))
        if not _has(directory, manifest):
            _persistently(source, log, partial(_receive_archive, directory, manifest, source))
        with disk_errors(directory):
            fetched_mark(directory, manifest.digest).touch()
        write_manifest(directory, manifest)


def _persistently(source: Source, log: Callable[[str], None], receive: Callable[[], None]) -> None:
    try:
        receive()
    except _BrokenOffError as error:
        if not isinstance(source, UrlSource):  # a node that breaks off is gone
            raise
        log(f"{error}: trying once more")
        receive()


def _has(directory: Path, manifest: Manifest) -> bool:
    """Whether the same archive lies there: only a layer of it was missing."""
    try:
        size = archive_path(directory, manifest.digest).stat().st_size
        return read_manifest(directory, manifest.digest) == manifest and size == manifest.archive_bytes
    except (ArchiveError, OSError):
        return False


def _missing_bytes(directory: Path, manifest: Manifest) -> int:
    """What of an archive and its layers is to be brought there."""
    missing = [each for each in manifest.layers if not layer_path(directory, each.sha256).exists()]
    return sum(each.packed_bytes for each in missing) + (0 if _has(directory, manifest) else manifest.archive_bytes)


def _receive_archive(directory: Path, manifest: Manifest, source: Source) -> None:
    total, size = hashlib.sha256(), 0
    with _arriving(archive_path(directory, manifest.digest)) as write:
        for piece in _sent(source, source.pieces(manifest)):
            size += len(piece)
            total.update(piece)
            if size > manifest.archive_bytes:
                break
            write(piece)
        if size != manifest.archive_bytes or total.hexdigest() != manifest.archive_sha256:
            bad_size = size != manifest.archive_bytes
            how = f"{size} bytes of {manifest.archive_bytes}" if bad_size else "its sha256 is not the manifest's"
            raise DamagedArchiveError(f"archive {manifest.digest[:12]} from {source.name} arrived damaged ({how})")


def _receive_layer(directory: Path, manifest: Manifest, layer: PackageLayer, source: Source) -> None:
    def damaged(how: str) -> DamagedArchiveError:
        return DamagedArchiveError(
            f"layer {layer.sha256[:12]} of archive {manifest.digest[:12]} from {source.name} arrived damaged ({how})"
        )

    with _arriving(layer_path(directory, layer.sha256)) as write:

        def packed() -> Iterator[bytes]:
            size = 0
            for piece in _sent(source, source.layer(layer)):
                size += len(piece)
                if size > layer.plain_bytes + _MORE:
                    raise damaged("holds more than its manifest says")
                write(piece)
                yield piece

        arriving = packed()
        for _ in verified(layer, arriving, damaged):
            pass
        if next(arriving, None) is not None:
            raise damaged("something follows")


@contextmanager
def _arriving(final: Path) -> Iterator[Callable[[bytes], None]]:
    """For writing a file that gets its name if the block does not fail."""
    part = final.with_name(f".{final.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    _sweep_partial(final.parent)
    try:
        with disk_errors(final):
            file = part.open("wb")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)  # see _sweep_partial

            def write(piece: bytes) -> None:
                with disk_errors(final):
                    file.write(piece)

            yield write
            with disk_errors(final):
                file.flush()
                os.fsync(file.fileno())
                part.replace(final)
                sync_directory(final.parent)
    finally:
        part.unlink(missing_ok=True)


def _sent(source: Source, pieces: Iterator[bytes]) -> Iterator[bytes]:
    while True:
        try:
            piece = next(pieces, None)
        except Exception as error:
            raise _BrokenOffError(f"{source.name} broke off ({_said(error)})")
        if piece is None:
            return
        yield piece


def _sweep_partial(directory: Path) -> None:
    """Remove what killed processes left half-received."""
    for path in directory.glob(".*.part"):
        with suppress(OSError), path.open("rb") as file:
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return hide_credentials(first_line(error))


def _silent(line: str) -> None:
    """No log wanted."""

"""Archives: a built environment in one ``<digest>.tar.zst`` with its manifest ``<digest>.json``.

The manifest is written last: an archive without one does not exist. Both go to their names by rename, so a shared
directory never shows a half-written one. The system's tar does the work (Python's tarfile takes 4 s of interpreter
time per 20k files), its stream passes through zstandard and sha256.
"""

import errno
import hashlib
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import zstandard
from pydantic import BaseModel, ConfigDict, ValidationError

from minisandbox_ray.environments.cache import sync_directory, write_atomically
from minisandbox_ray.environments.git_index import settle_index
from minisandbox_ray.environments.room import disk_errors, writable_directory
from minisandbox_ray.environments.spec import BaseSystem, EnvSpec, InterpreterId, environment_digest
from minisandbox_ray.errors import ArchiveError, DamagedArchiveError, MissingArchiveError

LEVEL = 10
"""zstd level: 11 % smaller than level 3 for 3 s of processor time per 100 MiB, where 15 takes 15 s for another 4 % and
19 takes 70 s for 9 %. Unpacking costs the same. Long-distance matching would save 3 %, and cost each unpack 128 MiB of
memory. (benchmarks/packing.py)

One archive for each environment: to keep each installed package once for all saved 7 % of five environments of real
packages, and no way of sharing could have saved more than 28 %.
"""
FIXED_TIME = 1577836800
"""2020-01-01T00:00:00Z: modification time of every file of an environment (seconds)."""
_CHUNK = 1 << 20
_LARGEST_COMPLAINTS = 64 << 20
"""Bytes. An ordinary user's tar that compares says of every file that its owner is another."""


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


def read_manifest_bytes(archives: Path, digest: str) -> bytes | None:
    """The manifest's JSON as it lies there, if the archive is there as well; for sending both elsewhere."""
    if not archive_path(archives, digest).is_file():
        return None
    try:
        return manifest_path(archives, digest).read_bytes()
    except FileNotFoundError:
        return None


def read_piece(archives: Path, digest: str, offset: int, length: int) -> bytes:
    """At most `length` bytes of an archive from `offset` on; empty at its end. Raises MissingArchiveError."""
    path = archive_path(archives, digest)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        raise MissingArchiveError(f"archive {digest[:12]} can't be read from {path}: {error.strerror}")


def pack(tree: Path, archives: Path, digest: str) -> tuple[str, int]:
    """Write the archive of a directory; returns (sha256, size in bytes). `tree` should be `normalise`d before.

    Raises ConfigError where `archives` can't be written, StoreFullError where its disk is full.
    """
    writable_directory(archives)
    final = archive_path(archives, digest)
    temporary = final.with_name(f"{final.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    with disk_errors(final):
        try:
            packed = pack_tree(tree, temporary)
            temporary.replace(final)
        finally:
            temporary.unlink(missing_ok=True)
    sync_directory(archives)
    return packed


def pack_tree(tree: Path, target: Path) -> tuple[str, int]:
    """Write a directory's content to the file `target`; returns (sha256, size in bytes). Raises ArchiveError."""
    command = ["tar", "--create", "--format=gnu", "--sort=name", "--numeric-owner", "--owner=0", "--group=0"]
    command += ["--hard-dereference", f"--directory={tree}", "--", *sorted(each.name for each in tree.iterdir())]
    total = hashlib.sha256()
    with (
        target.open("wb") as out,
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, env=_TAR_ENV) as tar,
    ):
        assert tar.stdout is not None
        compressor = zstandard.ZstdCompressor(level=LEVEL, threads=max(1, os.cpu_count() or 1)).compressobj()
        for piece in _pieces(tar.stdout):
            _write(out, compressor.compress(piece), total)
        _write(out, compressor.flush(), total)
        if tar.wait() != 0:
            raise ArchiveError(f"tar could not pack {tree} as {target.name}: {_first_line(complaints)}")
        out.flush()
        os.fsync(out.fileno())
        return total.hexdigest(), out.tell()


def unpack_file(file: Path, target: Path) -> None:
    """Extract what `pack_tree` wrote, whose hash was checked, into an empty directory. Raises ArchiveError, OSError."""
    with _Reader([*_EXTRACT, f"--directory={target}"]) as tar, file.open("rb") as packed:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            for piece in _pieces(packed):
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
    with _Reader([*_EXTRACT, f"--directory={target}"]) as tar:
        for piece in _plain_pieces(path, manifest):
            tar.write(piece)
    if tar.status != 0:
        what = f"archive {manifest.digest[:12]} at {path} is sound but can't be unpacked to {target}"
        raise ArchiveError(f"{what} ({tar.complaint}): correct that and try again")
    files, size = survey(target)
    if files != manifest.files or size != manifest.unpacked_bytes:
        raise _damaged(path, manifest, f"{files} files of {manifest.files}")


def check(archives: Path, manifest: Manifest) -> None:
    """Read an archive to its end. Raises MissingArchiveError, DamagedArchiveError."""
    for _ in _plain_pieces(archive_path(archives, manifest.digest), manifest):
        pass


def compare(archives: Path, manifest: Manifest, tree: Path) -> str:
    """What differs first between an archive and what was unpacked from it; "" if nothing does.

    Raises MissingArchiveError, DamagedArchiveError.
    """
    with _Reader(["tar", "--compare", f"--directory={tree}"]) as tar:
        for piece in _plain_pieces(archive_path(archives, manifest.digest), manifest):
            tar.write(piece)
    return next((line.removeprefix("tar: ") for line in tar.said if not _OWNER.search(line)), "")


_OWNER = re.compile(r": [UG]id differs$|Exiting with failure status")
"""What a tar that is not root's unpacks belongs to whoever did it."""


def _plain_pieces(path: Path, manifest: Manifest) -> Iterator[bytes]:
    """What an archive holds, as a stream of tar. Raises at its end, if not before, unless it is as it was written."""
    # What the stream may hold besides file contents: headers and padding, long names. More is no archive of ours.
    allowed = manifest.unpacked_bytes + manifest.files * 4096 + _CHUNK
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
        yield from _pieces(file)
    except OSError as error:
        raise MissingArchiveError(f"archive {path} can't be read ({error.strerror}): correct that, or build it again")


class _Reader:
    """A tar that reads what is written here; killed if the block fails, waited for in any case."""

    def __init__(self, command: list[str]) -> None:
        self.status = 0
        self._complaints = os.memfd_create("complaints", os.MFD_CLOEXEC)  # /tmp may be on the disk that is full
        self._tar = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._complaints,
            stderr=self._complaints,
            env=_TAR_ENV,
            umask=0o022,
            bufsize=0,
        )
        self.said: list[str] = []
        """What it complained of, a line each."""

    @property
    def complaint(self) -> str:
        """The first of it."""
        return next(iter(self.said), "no message")

    def __enter__(self) -> Self:
        return self

    def write(self, data: bytes) -> None:
        """Raises OSError (ENOSPC) once tar has said so: it would go on through the whole archive."""
        assert self._tar.stdin is not None
        self._check_room()
        left = memoryview(data)
        try:
            while left:
                left = left[self._tar.stdin.write(left) :]
        except BrokenPipeError:
            pass  # it gave up; its status and complaints say why

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._tar.stdin is not None
        if kind is not None:
            self._tar.kill()
        try:
            self._tar.stdin.close()
            self.status = self._tar.wait()
            if kind is None:
                self._check_room()
            size = min(os.fstat(self._complaints).st_size, _LARGEST_COMPLAINTS)
            self.said = os.pread(self._complaints, size, 0).decode(errors="replace").strip().splitlines()
        finally:
            os.close(self._complaints)

    def _check_room(self) -> None:
        said = os.pread(self._complaints, 4096, 0).decode(errors="replace")
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number) in said:
                raise OSError(number, os.strerror(number))
        if ": Wrote only " in said:  # the disk took the first part of a block; the next write may find room again
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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


_EXTRACT = ["tar", "--extract", "--no-same-owner", "--no-same-permissions"]
_TAR_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK), b"")


def _write(out: IO[bytes], data: bytes, total: "hashlib._Hash") -> None:
    out.write(data)
    total.update(data)


def _first_line(file: IO[bytes]) -> str:
    file.seek(0)
    return (file.read(4096).decode(errors="replace").strip().splitlines() or ["no message"])[0]

"""Archives: a built environment in one ``<digest>.tar.zst`` with its manifest ``<digest>.json``.

The manifest is written last: an archive without one does not exist. Both go to their names by rename, so a shared
directory never shows a half-written one. The system's tar does the work (Python's tarfile takes 4 s of interpreter
time per 20k files), its stream passes through zstandard and sha256.
"""

import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import zstandard
from pydantic import BaseModel, ConfigDict, ValidationError

from minisandbox_ray.environments.cache import sync_directory, write_atomically
from minisandbox_ray.environments.spec import BaseSystem, EnvSpec, InterpreterId, environment_digest
from minisandbox_ray.errors import ArchiveError

LEVEL = 10
"""zstd level: a tenth smaller than level 3 for a second or two per build; unpacking costs the same."""
FIXED_TIME = 1577836800
"""2020-01-01T00:00:00Z: modification time of every file of an environment (seconds)."""
_CHUNK = 1 << 20


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


def read_manifest(archives: Path, digest: str) -> Manifest:
    """The manifest of an archive; ArchiveError if there is none or it is damaged."""
    path = manifest_path(archives, digest)
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ArchiveError(f"no archive {digest[:12]} in {archives}: build it there, or correct the archives path")
    except (OSError, ValidationError) as error:
        reason = f"{len(error.errors())} bad fields" if isinstance(error, ValidationError) else str(error)
        raise ArchiveError(f"manifest {path} is unreadable ({reason}): delete it and build {digest[:12]} again")
    if manifest.digest != digest or manifest.expected_digest() != digest:
        raise ArchiveError(f"manifest {path} describes something else than {digest[:12]}: delete it and build again")
    return manifest


def pack(tree: Path, archives: Path, digest: str) -> tuple[str, int]:
    """Write the archive of a directory; returns (sha256, size in bytes). `tree` should be `normalise`d before."""
    archives.mkdir(parents=True, exist_ok=True)
    final = archive_path(archives, digest)
    command = ["tar", "--create", "--format=gnu", "--sort=name", "--numeric-owner", "--owner=0", "--group=0"]
    command += ["--hard-dereference", f"--directory={tree}", "--", *sorted(each.name for each in tree.iterdir())]
    total = hashlib.sha256()
    temporary = final.with_name(f"{final.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with (
            temporary.open("wb") as out,
            tempfile.TemporaryFile() as complaints,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, env=_TAR_ENV) as tar,
        ):
            assert tar.stdout is not None
            compressor = zstandard.ZstdCompressor(level=LEVEL, threads=max(1, os.cpu_count() or 1)).compressobj()
            for piece in _pieces(tar.stdout):
                _write(out, compressor.compress(piece), total)
            _write(out, compressor.flush(), total)
            if tar.wait() != 0:
                raise ArchiveError(f"tar could not pack {tree} as {digest[:12]}: {_first_line(complaints)}")
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(archives)
    return total.hexdigest(), size


def write_manifest(archives: Path, manifest: Manifest) -> None:
    """Publish an archive."""
    write_atomically(manifest_path(archives, manifest.digest), manifest.model_dump_json(indent=1).encode())


def unpack(archives: Path, manifest: Manifest, target: Path) -> None:
    """Extract an archive into the empty directory `target`, verified.

    Raises ArchiveError; then `target` holds rubbish and must be deleted.
    """
    path = archive_path(archives, manifest.digest)
    broken = f"archive {manifest.digest[:12]} at {path} is damaged"
    advice = f"delete it and {manifest.digest[:12]}.json, and build it again"
    # What the stream may hold besides file contents: headers and padding, long names. More is no archive of ours.
    allowed = manifest.unpacked_bytes + manifest.files * 4096 + _CHUNK
    command = ["tar", "--extract", "--no-same-owner", "--no-same-permissions", f"--directory={target}"]
    total, seen = hashlib.sha256(), 0
    with tempfile.TemporaryFile() as complaints:
        try:
            with path.open("rb") as file, _Extractor(command, complaints) as tar:
                decompressor = zstandard.ZstdDecompressor().decompressobj()
                for piece in _pieces(file):
                    total.update(piece)
                    plain = decompressor.decompress(piece)
                    seen += len(plain)
                    if seen > allowed:
                        raise ArchiveError(f"{broken} (holds more than its manifest says): {advice}")
                    tar.write(plain)
        except FileNotFoundError:
            raise ArchiveError(f"archive {manifest.digest[:12]} is missing at {path}: {advice}")
        except zstandard.ZstdError as error:
            raise ArchiveError(f"{broken} ({error}): {advice}")
        if total.hexdigest() != manifest.archive_sha256:
            raise ArchiveError(f"{broken} (its sha256 is not the manifest's): {advice}")
        if tar.status != 0:
            what = f"archive {manifest.digest[:12]} at {path} is sound but can't be unpacked to {target}"
            raise ArchiveError(f"{what} ({_first_line(complaints)}): is that disk full?")
    files, size = survey(target)
    if files != manifest.files or size != manifest.unpacked_bytes:
        raise ArchiveError(f"{broken} ({files} files of {manifest.files}): {advice}")


class _Extractor:
    """A tar that reads what is written here; killed if the block fails, waited for in any case."""

    def __init__(self, command: list[str], complaints: IO[bytes]) -> None:
        self.status = 0
        self._tar = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=complaints, env=_TAR_ENV, umask=0o022, bufsize=0
        )

    def __enter__(self) -> Self:
        return self

    def write(self, data: bytes) -> None:
        assert self._tar.stdin is not None
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
        self._tar.stdin.close()
        self.status = self._tar.wait()


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
    the index.
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
            later = 86400 if name == "index" and folder.name == ".git" else 0
            os.utime(path, (FIXED_TIME + later,) * 2, follow_symlinks=False)


_TAR_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK), b"")


def _write(out: IO[bytes], data: bytes, total: "hashlib._Hash") -> None:
    out.write(data)
    total.update(data)


def _first_line(file: IO[bytes]) -> str:
    file.seek(0)
    return (file.read(4096).decode(errors="replace").strip().splitlines() or ["no message"])[0]

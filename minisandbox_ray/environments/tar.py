"""The system's tar, with zstd around it (Python's tarfile takes 4 s of interpreter time per 20k files)."""

import errno
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Self

import zstandard

from minisandbox_ray.errors import ArchiveError

LEVEL = 10
"""zstd level: 11 % smaller than level 3 for 3 s of processor time per 100 MiB, where 15 takes 15 s for another 4 % and
19 takes 70 s for 9 %. Unpacking costs the same. Long-distance matching would save 3 %, and cost each unpack 128 MiB of
memory. (benchmarks/packing.py)
"""
FIXED_TIME = 1577836800
"""2020-01-01T00:00:00Z: modification time of every file of an environment (seconds)."""
CHUNK = 1 << 20
"""Bytes that are read at a time."""
EXTRACT = ["tar", "--extract", "--no-same-owner", "--no-same-permissions"]
COMPARE = ["tar", "--compare"]
_CREATE = ["tar", "--create", "--format=gnu", "--numeric-owner", "--owner=0", "--group=0", "--hard-dereference"]
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
_LARGEST_COMPLAINTS = 64 << 20
"""Bytes. An ordinary user's tar that compares says of every file that its owner is another."""


def tar_pieces(folder: Path, names: Iterable[str] | None = None) -> Generator[bytes]:
    """A stream of tar: all that `folder` holds, or what the relative `names` say, in their order. Raises ArchiveError.

    Among `names` a directory stands for itself alone.
    """
    command = [*_CREATE, f"--directory={folder}"]
    with tempfile.TemporaryFile() as complaints, os.fdopen(os.memfd_create("names", os.MFD_CLOEXEC), "w+b") as listed:
        if names is None:
            command += ["--sort=name", "--", *sorted(each.name for each in folder.iterdir())]
        else:
            listed.writelines(os.fsencode(name) + b"\0" for name in names)
            listed.seek(0)
            command += ["--no-recursion", "--null", "--verbatim-files-from", "--files-from=-"]
        with subprocess.Popen(command, stdin=listed, stdout=subprocess.PIPE, stderr=complaints, env=_ENV) as tar:
            assert tar.stdout is not None
            try:
                yield from pieces(tar.stdout)
            except BaseException:
                tar.kill()
                raise
            if tar.wait() != 0:
                raise ArchiveError(f"tar could not pack {folder}: {_first_line(complaints)}")


def write_packed(
    plain: Iterable[bytes], target: Path, parameters: zstandard.ZstdCompressionParameters
) -> tuple[str, int]:
    """Compress a stream to the file `target`; returns (sha256, size in bytes) of that, which is on the disk then."""
    total = hashlib.sha256()
    with target.open("wb") as out:
        compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        for piece in plain:
            _write(out, compressor.compress(piece), total)
        _write(out, compressor.flush(), total)
        out.flush()
        os.fsync(out.fileno())
        return total.hexdigest(), out.tell()


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    """A file to its end."""
    return iter(lambda: file.read(CHUNK), b"")


class TarReader:
    """A tar that reads what is written here; killed if the block fails, waited for in any case."""

    def __init__(self, command: list[str]) -> None:
        self.status = 0
        self._complaints = os.memfd_create("complaints", os.MFD_CLOEXEC)  # /tmp may be on the disk that is full
        self._tar = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._complaints,
            stderr=self._complaints,
            env=_ENV,
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


def _write(out: IO[bytes], data: bytes, total: "hashlib._Hash") -> None:
    out.write(data)
    total.update(data)


def _first_line(file: IO[bytes]) -> str:
    file.seek(0)
    return (file.read(4096).decode(errors="replace").strip().splitlines() or ["no message"])[0]

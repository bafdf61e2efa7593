"""What goes from the cache: archives that nobody names any more, their copies, and what was left half-written."""

import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from minisandbox_ray.environments.archive import archive_path, fetched_mark, manifest_path
from minisandbox_ray.environments.cache import cache_root
from minisandbox_ray.environments.package_layers import GRACE_SECONDS, unneeded
from minisandbox_ray.environments.room import disk_errors
from minisandbox_ray.environments.store import NodeStore

STALE_SECONDS = GRACE_SECONDS
"""A temporary file that nobody wrote to for so long belongs to a process that was killed, on whatever machine."""

_OF_ARCHIVE = re.compile(r"([0-9a-f]{64})\.(json|tar\.zst)")
_LEFT = re.compile(r"\.?[0-9a-f]{64}\.(json|tar\.zst)\.(\d+-[0-9a-f]{8}\.(tmp|part)|damaged-.*)")


@dataclass(frozen=True)
class Garbage:
    """What went, or would go."""

    name: str
    """The digest of an environment, or a file that was left behind."""
    kind: str
    """"environment", or what is wrong with the file."""
    archive_bytes: int = 0
    unpacked_bytes: int = 0
    in_use: bool = False
    """It is kept for that."""


def collect_garbage(
    archives: Sequence[Path],
    stores: Sequence[NodeStore],
    keep: Collection[str] = (),
    older_than: float = 0.0,
    *,
    dry_run: bool = False,
) -> Iterator[Garbage]:
    """Remove the environments that `keep` does not name, and what interrupted work has left; yields each as it goes.

    `archives` are directories, `stores` all node stores of this machine that use them. An environment that somebody
    here uses or makes stays, and so does one that was built or used less than `older_than` seconds ago. Its manifest
    goes first: without one there is no archive, whenever this is interrupted. Nodes of other machines keep what they
    have unpacked. Layers go that no environment left there needs, see `unneeded`. Raises ConfigError for a directory
    that can't be written.
    """
    now = time.time()
    gone = set()
    for digest in sorted(_known(archives, stores) - set(keep)):
        if now - _last_use(digest, archives, stores) >= older_than:
            found = _remove(digest, archives, stores, dry_run=dry_run)
            if not found.in_use:
                gone.add(digest)
            yield found
    for directory in (place for each in archives for place in (each, each / "layers") if place.is_dir()):
        for path in sorted(directory.iterdir()):
            if _LEFT.fullmatch(path.name) and (left := _left(path, now)):
                yield left
                _unlink(path, dry_run)
    for directory in archives:
        with unneeded(directory, gone, STALE_SECONDS) as layers:
            for path in layers:
                with suppress(FileNotFoundError):
                    yield Garbage(path.name, "layer", path.stat().st_size)
                    _unlink(path, dry_run)


def _unlink(path: Path, dry_run: bool) -> None:
    if not dry_run:
        with disk_errors(path):
            path.unlink(missing_ok=True)


def machine_directories() -> tuple[list[Path], list[Path]]:
    """(directories of archives, roots of node stores) in this machine's cache, with those of nodes that share it."""
    roots = [cache_root(), *sorted((cache_root() / "nodes").glob("[!.]*"))]
    return (
        [path for root in roots if (path := root / "archives").is_dir()],
        [path for root in roots if (path := root / "store").is_dir()],
    )


def _known(archives: Sequence[Path], stores: Sequence[NodeStore]) -> set[str]:
    """Also an archive whose manifest is missing, and a manifest whose archive is."""
    names = (_OF_ARCHIVE.fullmatch(path.name) for each in archives for path in each.glob("*.*"))
    return {match[1] for match in names if match}.union(*(store.held() for store in stores))


def _last_use(digest: str, archives: Sequence[Path], stores: Sequence[NodeStore]) -> float:
    times = [store.last_use(digest) for store in stores]
    for directory in archives:
        with suppress(FileNotFoundError):
            times.append(archive_path(directory, digest).stat().st_mtime)
    return max(times, default=0.0)


def _remove(digest: str, archives: Sequence[Path], stores: Sequence[NodeStore], *, dry_run: bool) -> Garbage:
    unpacked = sum(each.bytes for store in stores for each in store.inventory() if each.digest == digest)
    files = [path(each, digest) for each in archives for path in (manifest_path, archive_path, fetched_mark)]
    size = sum(path.stat().st_size for path in files if path.exists())
    try:
        with ExitStack() as held:
            if not all(held.enter_context(store.retiring(digest, dry_run=dry_run)) for store in stores):
                raise _InUseError
            for path in files if not dry_run else []:
                with disk_errors(path):
                    path.unlink(missing_ok=True)
    except _InUseError:  # by way of an error no other store lets go of it either
        return Garbage(digest, "environment", size, unpacked, in_use=True)
    return Garbage(digest, "environment", size, unpacked)


class _InUseError(Exception):
    pass


def _left(path: Path, now: float) -> Garbage | None:
    try:
        info = path.stat()
    except FileNotFoundError:
        return None
    if ".damaged-" in path.name:
        return Garbage(path.name, "damaged archive", info.st_size)
    if now - info.st_mtime < STALE_SECONDS:
        return None
    return Garbage(path.name, "half-written file", info.st_size)

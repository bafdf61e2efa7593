"""Directories of one node, where several nodes (raylets) share a machine and its cache.

``nodes/<key>/{store,archives}`` are used by whoever holds ``nodes/<key>/alive`` shared. A node that is gone holds
nothing, so that its directories can be swept.
"""

import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from minisandbox_ray.environments.cache import cache_root, remove_tree
from minisandbox_ray.environments.room import disk_errors
from minisandbox_ray.errors import ConfigError

SWEEP_SECONDS = 60.0
"""A node that started less than this ago is left alone: its first process may be between two steps."""


class NodeDirectories(NamedTuple):
    """Where a node keeps its environments."""

    store: Path
    """Root of its NodeStore."""
    archives: Path
    """Its own directory of archives, see `provide`."""


class NodeHold:
    """The right to a node's directories, for the life of the process or until `close`."""

    def __init__(self, directories: NodeDirectories, descriptor: int | None = None) -> None:
        self.directories = directories
        self._descriptor = descriptor

    def close(self) -> None:
        """Let go; the directories may be swept from now on. A second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def node_directories(key: str | None) -> NodeDirectories:
    """The cache's own store and archives; with a `key`, those of one of several nodes on this machine.

    Raises ConfigError for a key that is no plain name.
    """
    root = cache_root()
    if key is not None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", key):
            raise ConfigError(f"{key!r} can't be the key of a node: use letters, digits, '.', '-' and '_'")
        root = root / "nodes" / key
    return NodeDirectories(root / "store", root / "archives")


def hold_node(key: str | None) -> NodeHold:
    """Keep a node's directories from being swept until this process ends. Raises ConfigError where they can't be made.

    Threads and processes of one node hold them together. Without a key there is nothing to sweep or to hold.
    """
    directories = node_directories(key)
    if key is None:
        return NodeHold(directories)
    alive = directories.store.parent / "alive"
    while True:
        try:
            with disk_errors(alive):
                alive.parent.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):  # mkdir's own exist_ok looks again, and may find it swept
                    alive.parent.mkdir()
                descriptor = os.open(alive, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # swept between the two
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), alive.stat()):
                os.utime(descriptor)
                return NodeHold(directories, descriptor)
        os.close(descriptor)  # it was swept while this call waited for the lock


def sweep_nodes() -> list[str]:
    """Remove the directories of nodes that nobody holds and that are older than a minute; returns their keys."""
    root = cache_root() / "nodes"
    removed = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.name.startswith("."):
            remove_tree(folder)  # of a sweep that was killed
        elif _is_abandoned(folder):
            removed.append(folder.name)
    return removed


def _is_abandoned(folder: Path) -> bool:
    alive = folder / "alive"
    try:
        started = (alive if alive.exists() else folder).stat().st_mtime
        if time.time() - started < SWEEP_SECONDS:
            return False
        descriptor = os.open(alive, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False  # swept by somebody else, or another user's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Out of sight under the lock: who waits for it sees then that it is not the node's any more.
        doomed = folder.rename(folder.with_name(f".{folder.name}-{os.urandom(4).hex()}"))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    remove_tree(doomed)
    return True

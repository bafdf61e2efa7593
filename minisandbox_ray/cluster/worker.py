"""The actor that hosts sandboxes: one object per lease, each made from a class that the pool was given."""

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from minisandbox_ray import __version__
from minisandbox_ray.cluster.messages import Missing, Opening, Reply, Report
from minisandbox_ray.errors import ClusterError, MiniSandboxError

if TYPE_CHECKING:
    from minisandbox_ray.environments import NodeStore
    from minisandbox_ray.environments.node_directories import NodeDirectories, NodeHold
    from minisandbox_ray.sandbox import Isolation

WATCH_SECONDS = 5.0
RELEASED_KEPT = 4096


@dataclass
class HostContext:
    """What a hosted object finds on its node."""

    source: Path | str
    """Where archives come from: a directory, or the URL of one; other nodes are asked for what is not there."""
    store_bytes: int
    """Bytes that the node store may take."""
    isolation: "Isolation" = "strict"
    """Of the node's sandboxes."""
    store_key: str | None = None
    """Tells the stores of several Ray nodes on one machine apart; see `Node.store_key`."""

    @cached_property
    def directories(self) -> "NodeDirectories":
        """Where this node keeps its store and the archives that it fetched; kept from being swept by this process."""
        return _hold(self.store_key).directories

    @cached_property
    def store(self) -> "NodeStore":
        """The store of this node's unpacked environments, shared by its workers."""
        from minisandbox_ray.environments import NodeStore

        return NodeStore(self.directories.store, self.store_bytes, self.isolation)

    @property
    def archives(self) -> Path:
        """A directory of archives on this node: the source, where it is one here, else those that were fetched."""
        if isinstance(self.source, Path) and self.source.is_dir():
            return self.source
        return self.directories.archives


@cache
def _hold(store_key: str | None) -> "NodeHold":
    """The process's own, for as long as it lives: it must outlive every sandbox."""
    from minisandbox_ray.environments.node_directories import hold_node, sweep_nodes

    hold = hold_node(store_key)
    sweep_nodes()
    return hold


@dataclass
class _Hosted:
    instance: Any
    lock: threading.Lock = field(default_factory=threading.Lock)


class Archives:
    """What a node tells others about the archives that it can read, and pieces of them."""

    def __init__(self, context: HostContext) -> None:
        self._context = context

    def unpacked_bytes(self, environment: str) -> int | None:
        """Size of an environment once unpacked; None if this node finds no sound manifest of it."""
        from minisandbox_ray.environments.archive import parse_manifest
        from minisandbox_ray.environments.sources import UrlSource

        try:
            found = self.archive_manifest(environment)
            if found is None and isinstance(self._context.source, str):
                found = UrlSource(self._context.source).manifest(environment)
            return None if found is None else parse_manifest(found, environment, "its manifest").unpacked_bytes
        except Exception:  # what clients of object stores raise has no common base; `provide` says it
            return None

    def archive_manifest(self, digest: str) -> bytes | None:
        """The manifest of an archive that this node could read to another one; None if it has none."""
        from minisandbox_ray.environments.archive import read_manifest_bytes

        return next(filter(None, (read_manifest_bytes(place, digest) for place in self._places())), None)

    def read_archive(self, digest: str, offset: int, length: int) -> bytes:
        """A piece of an archive."""
        from minisandbox_ray.environments.archive import archive_path, read_manifest_bytes, read_piece

        for place in self._places():
            if read_manifest_bytes(place, digest) is not None:
                return read_piece(archive_path(place, digest), offset, length)
        raise ClusterError(f"this node has no archive {digest[:12]} any more")

    def read_layer(self, sha256: str, offset: int, length: int) -> bytes:
        """A piece of a layer that archives share."""
        from minisandbox_ray.environments.archive import read_piece
        from minisandbox_ray.environments.package_layers import layer_path

        for path in (layer_path(place, sha256) for place in self._places()):
            if path.is_file():
                return read_piece(path, offset, length)
        raise ClusterError(f"this node has no layer {sha256[:12]} any more")

    def _places(self) -> list[Path]:
        return list(dict.fromkeys([self._context.archives, self._context.directories.archives]))


class SandboxWorker(Archives):
    """Hosts one object per lease and runs its methods, several leases at a time.

    ``host(context, **options)`` makes the object. It has a ``close()`` that may be called from another thread while a
    method runs, and makes that method return or raise; ``ended`` (False where missing) tells that it needs its
    sandbox no more. A MiniSandboxError that a method raises is returned in the Reply. ``host.prepare(context)``, where
    there is one, is called once before the worker takes leases: what it raises keeps the pool from starting.
    """

    def __init__(self, host: Callable[..., Any], context: HostContext) -> None:
        super().__init__(context)
        self._host = host
        self._hosted: dict[str, _Hosted] = {}
        self._released: OrderedDict[str, str] = OrderedDict()
        self._hits = self._misses = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        atexit.register(self.close)
        if hasattr(host, "prepare"):
            host.prepare(context)

    def call(self, lease_id: str, opening: Opening | None, method: str, args: tuple, kwargs: dict) -> Reply | Missing:
        """Call a method of the lease's object, which is made first where ``opening`` is given."""
        try:
            if opening is not None and lease_id not in self._hosted:
                if opening.environment is not None and not self._is_held(opening.environment):
                    return Missing(opening.environment)
                self._open(lease_id, opening)
            hosted = self._hosted.get(lease_id)
            if hosted is None:
                reason = self._released.get(lease_id, "this worker never opened it")
                raise ClusterError(f"lease {lease_id} has ended: {reason}")
            with hosted.lock:
                value = getattr(hosted.instance, method)(*args, **kwargs)
        except MiniSandboxError as error:
            return Reply(error=error)
        if not getattr(hosted.instance, "ended", False):
            return Reply(value)
        self._close(lease_id)
        return Reply(value, ended=True)

    def _is_held(self, environment: str) -> bool:
        is_held = self._context.store.contains(environment)
        with self._lock:
            self._hits += is_held
            self._misses += not is_held
        return is_held

    def _open(self, lease_id: str, opening: Opening) -> None:
        instance = self._host(self._context, **opening.options)
        with self._lock:
            released = lease_id in self._released or self._stopping.is_set()
            if not released:
                self._hosted[lease_id] = _Hosted(instance)
        if released:
            instance.close()

    def _close(self, lease_id: str) -> None:
        with self._lock:
            hosted = self._hosted.pop(lease_id, None)
        if hosted is not None:
            hosted.instance.close()

    def release(self, lease_id: str, reason: str) -> None:
        """Close the lease's object, also in the middle of a call; a first call that is still to come is refused."""
        with self._lock:
            self._released[lease_id] = reason
            if len(self._released) > RELEASED_KEPT:
                self._released.popitem(last=False)
        self._close(lease_id)

    def report(self) -> Report:
        """What the worker and its node's store are like. The first call makes the store: ConfigError if it cannot."""
        store = self._context.store
        store.sweep()
        usage = store.usage()
        figures = {"bytes": usage.bytes, "budget_bytes": usage.budget_bytes, "free_bytes": usage.free_bytes}
        return Report(__version__, os.getpid(), store.held(), figures, self._hits, self._misses)

    def ping(self) -> None:
        """Answer."""

    def watch(self) -> None:
        """Return when the worker stops, or after a few seconds; the call fails at once when its process dies.

        It must end by itself: on SIGTERM Ray lets running calls finish before it ends the process."""
        self._stopping.wait(WATCH_SECONDS)

    def close(self) -> None:
        """Close everything that is hosted and take nothing more."""
        with self._lock:
            self._stopping.set()
            leases = list(self._hosted)
        for lease_id in leases:
            self._close(lease_id)

    def __ray_shutdown__(self) -> None:
        self.close()


# What must be answered while all sandboxes are busy (all but ``call``) goes to the group "control".
WorkerActor: Any = ray.remote(  # type: ignore[call-overload]
    num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups={"control": 5, "archives": 2}
)(SandboxWorker)

ArchivesActor: Any = ray.remote(num_cpus=0, max_restarts=-1, concurrency_groups={"archives": 2})(Archives)  # type: ignore[call-overload]

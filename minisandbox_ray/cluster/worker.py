"""The actor that hosts sandboxes: one object per lease, each made from a class that the pool was given."""

import atexit
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from minisandbox_ray.errors import ClusterError, MiniSandboxError

if TYPE_CHECKING:
    from minisandbox_ray.environments import NodeStore
    from minisandbox_ray.sandbox import Isolation

WATCH_SECONDS = 5.0


@dataclass
class HostContext:
    """What a hosted object finds on its node."""

    archives: Path
    """Where environment archives lie; the same path on every node."""
    store_bytes: int
    """Bytes that the node store may take."""
    isolation: "Isolation" = "strict"
    """Of the node's sandboxes."""

    def unpacked_bytes(self, environment: str) -> int:
        """Size of an environment once unpacked. Raises ArchiveError when its manifest is missing or bad."""
        from minisandbox_ray.environments import read_manifest

        return read_manifest(self.archives, environment).unpacked_bytes

    @cached_property
    def store(self) -> "NodeStore":
        """The store of this node's unpacked environments, shared by its workers."""
        return node_store(self.store_bytes, self.isolation)


def node_store(budget_bytes: int, isolation: "Isolation" = "strict") -> "NodeStore":
    """The store of the node that this process runs on."""
    from minisandbox_ray.environments import NodeStore, cache_root

    return NodeStore(cache_root() / "store", budget_bytes, isolation)


@dataclass(frozen=True)
class Opening:
    """What a lease's first call brings along: how to make its object, and the environment that it needs."""

    environment: str | None
    """Digest of the environment; None needs none."""
    options: dict[str, Any]
    """Keyword arguments of the hosted class."""


@dataclass(frozen=True)
class Reply:
    """What a call came back with."""

    value: Any = None
    error: MiniSandboxError | None = None
    ended: bool = False
    """The hosted object has finished and is closed: the slot is free."""


@dataclass(frozen=True)
class Missing:
    """The call was not made: this node does not hold the lease's environment yet."""

    environment: str
    unpacked_bytes: int


@dataclass
class _Hosted:
    instance: Any
    lock: threading.Lock = field(default_factory=threading.Lock)


class SandboxWorker:
    """Hosts one object per lease and runs its methods, several leases at a time.

    ``host(context, **options)`` makes the object. It has a ``close()`` that may be called from another thread while a
    method runs, and makes that method return or raise; ``ended`` (False where missing) tells that it needs its
    sandbox no more. A MiniSandboxError that a method raises is returned in the Reply. ``host.prepare(context)``, where
    there is one, is called once before the worker takes leases: what it raises keeps the pool from starting.
    """

    def __init__(self, host: Callable[..., Any], context: HostContext) -> None:
        self._host = host
        self._context = context
        self._hosted: dict[int, _Hosted] = {}
        self._released: set[int] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        atexit.register(self.close)
        if hasattr(host, "prepare"):
            host.prepare(context)

    def call(self, lease_id: int, opening: Opening | None, method: str, args: tuple, kwargs: dict) -> Reply | Missing:
        """Call a method of the lease's object, which is made first where ``opening`` is given."""
        try:
            if opening is not None and lease_id not in self._hosted:
                if opening.environment is not None and not self._context.store.contains(opening.environment):
                    return Missing(opening.environment, self._context.unpacked_bytes(opening.environment))
                self._open(lease_id, opening)
            hosted = self._hosted.get(lease_id)
            if hosted is None:
                raise ClusterError(f"lease {lease_id} was released or never opened")
            with hosted.lock:
                value = getattr(hosted.instance, method)(*args, **kwargs)
        except MiniSandboxError as error:
            return Reply(error=error)
        if not getattr(hosted.instance, "ended", False):
            return Reply(value)
        self._close(lease_id)
        return Reply(value, ended=True)

    def _open(self, lease_id: int, opening: Opening) -> None:
        instance = self._host(self._context, **opening.options)
        with self._lock:
            released = lease_id in self._released or self._stopping.is_set()
            self._released.discard(lease_id)
            if not released:
                self._hosted[lease_id] = _Hosted(instance)
        if released:
            instance.close()

    def _close(self, lease_id: int) -> None:
        with self._lock:
            hosted = self._hosted.pop(lease_id, None)
        if hosted is not None:
            hosted.instance.close()

    def release(self, lease_id: int) -> None:
        """Close the lease's object, also in the middle of a call; a first call that is still to come is refused."""
        with self._lock:
            if lease_id not in self._hosted:
                self._released.add(lease_id)
        self._close(lease_id)

    def ping(self) -> int:
        """Process id of the worker."""
        return os.getpid()

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
    num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups={"control": 5}
)(SandboxWorker)

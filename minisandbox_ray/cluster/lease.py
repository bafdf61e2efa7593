"""The right to one sandbox slot of a pool."""

import asyncio
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from minisandbox_ray.cluster.nodes import Node
from minisandbox_ray.cluster.worker import Missing, Opening, Reply
from minisandbox_ray.errors import ClusterError

if TYPE_CHECKING:
    from minisandbox_ray.cluster.pool import Pool


@dataclass
class Worker:
    """A worker as the pool sees it."""

    worker_id: str
    node: Node
    capacity: int
    actor: Any
    attempt: int
    ready: Future = field(default_factory=Future)

    def control(self, method: str, *args: Any) -> Any:
        """Call a method that is answered while all sandboxes are busy."""
        return getattr(self.actor, method).options(concurrency_group="control").remote(*args)


class Lease:
    """The right to one sandbox slot. It opens with its first call, and ends with ``release``, with an object that says
    that it has ended, with its worker, or with its deadline."""

    def __init__(
        self, pool: "Pool", lease_id: int, worker: Worker, opening: Opening, *, deadline: float, wait_seconds: float
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._opening = opening
        self.lease_id = lease_id
        self.worker_id = worker.worker_id
        self.node = worker.node
        self.deadline = deadline
        """On time.monotonic's clock; the pool takes the slot back then."""
        self.opened = False
        self.ended: str | None = None
        """Why the lease has ended; None while it has not."""
        self.wait_seconds = wait_seconds
        """How long it took to get."""
        self.unpack_seconds = 0.0
        """How long its first call waited for the environment."""

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the hosted object: one Ray call, from any event loop.

        The first call of a lease waits until the node holds the environment. Raises what the method raised, and
        ClusterError when the lease has ended or ends meanwhile.
        """
        try:
            reply = await self._send(method, args, kwargs)
            if isinstance(reply, Missing):
                started = time.monotonic()
                await asyncio.wrap_future(self._pool.unpack(self.node, reply))
                self.unpack_seconds = time.monotonic() - started
                self.opened = False
                reply = await self._send(method, args, kwargs)
        except RayError as error:
            raise self._lost(error) from error
        return self._finish(reply)

    def call_sync(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """``call`` for code without an event loop."""
        try:
            reply = ray.get(self._send(method, args, kwargs))
            if isinstance(reply, Missing):
                started = time.monotonic()
                self._pool.unpack(self.node, reply).result()
                self.unpack_seconds = time.monotonic() - started
                self.opened = False
                reply = ray.get(self._send(method, args, kwargs))
        except RayError as error:
            raise self._lost(error) from error
        return self._finish(reply)

    def release(self) -> None:
        """Close the hosted object and give the slot back, without waiting; a second call does nothing."""
        self._pool.release(self)

    def _send(self, method: str, args: tuple, kwargs: dict) -> Any:
        if self.ended is not None:
            raise ClusterError(f"lease {self.lease_id} on node {self.node.address} has ended: {self.ended}")
        opening = None if self.opened else self._opening
        self.opened = True
        return self._worker.actor.call.remote(self.lease_id, opening, method, args, kwargs)

    def _finish(self, reply: Reply | Missing) -> Any:
        if isinstance(reply, Missing):
            raise ClusterError(
                f"node {self.node.address} evicted environment {reply.environment} before it was used: raise store_gib"
            )
        if reply.ended:
            self._pool.forget(self)
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _lost(self, error: RayError) -> Exception:
        if isinstance(error, RayTaskError):  # a bug in the hosted class, not a failure of the cluster
            return error
        if isinstance(error, RayActorError):
            self._pool.worker_lost(self._worker, error)
        return ClusterError(f"worker {self.worker_id} on node {self.node.address} was lost: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

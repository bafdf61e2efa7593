"""The right to one sandbox slot of a pool."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from minisandbox_ray.cluster.messages import (
    Grant,
    Message,
    Missing,
    Opening,
    Release,
    Reply,
    Suspect,
    Unpacked,
)
from minisandbox_ray.cluster.nodes import Node
from minisandbox_ray.errors import ClusterError, MiniSandboxError, first_line

CALL_MARGIN_SECONDS = 60.0


class Keeper(Protocol):
    """What a lease needs of its pool."""

    def tell(self, message: Message) -> None: ...

    def forget(self, lease_id: str) -> None: ...

    def unpack(self, node_id: str, environment: str) -> Any: ...


class Lease:
    """The right to a sandbox slot. It opens with its first call, and ends with ``release``, with an object that says
    that it has ended, with its worker, with its client, or with its deadline."""

    def __init__(self, pool: Keeper, grant: Grant, opening: Opening, lease_seconds: float) -> None:
        self._pool = pool
        self._actor = grant.actor
        self._opening = opening
        self._is_cold = grant.is_cold
        self._is_opened = False
        self.lease_id = grant.lease_id
        self.worker_id = grant.worker_id
        self.node: Node = grant.node
        self.deadline = time.monotonic() + lease_seconds
        """On time.monotonic's clock; the pool takes the slot back then."""
        self.ended: str | None = None
        """Why the lease has ended; None while it has not."""
        self.wait_seconds = grant.wait_seconds
        """How long it took to get."""
        self.unpack_seconds = 0.0
        """How long its first call waited for the environment, of which…"""
        self.slot_seconds = 0.0
        """…the environment waited for unpack slots."""

    async def call(self, method: str, *args: Any, within: float | None = None, **kwargs: Any) -> Any:
        """Call a method of the hosted object: one Ray call, from any event loop.

        The first call of a lease waits until the node holds the environment. ``within``: seconds that the call itself
        may take (None: until the lease's deadline). Raises what the method raised, and ClusterError when the lease has
        ended or ends meanwhile, or the worker does not answer in time.
        """
        try:
            if self._is_cold:
                await self._fetch()
            reply = await self._answer(self._send(method, args, kwargs), within)
            if isinstance(reply, Missing):
                await self._fetch()
                reply = await self._answer(self._send(method, args, kwargs), within)
        except (RayError, TimeoutError) as error:
            raise self._lost(error) from error
        return self._finish(reply)

    def call_sync(self, method: str, *args: Any, within: float | None = None, **kwargs: Any) -> Any:
        """``call`` for code without an event loop."""
        try:
            if self._is_cold:
                self._fetch_sync()
            reply = ray.get(self._send(method, args, kwargs), timeout=self._patience(within))
            if isinstance(reply, Missing):
                self._fetch_sync()
                reply = ray.get(self._send(method, args, kwargs), timeout=self._patience(within))
        except (RayError, TimeoutError) as error:
            raise self._lost(error) from error
        return self._finish(reply)

    def release(self) -> None:
        """Close the hosted object and give the slot back, without waiting; a second call does nothing."""
        self.end("it was released", is_closed=not self._is_opened)

    def end(self, reason: str, *, is_closed: bool) -> None:
        """End it from this side."""
        if self.ended is None:
            self.ended = reason
            self._pool.forget(self.lease_id)
            self._pool.tell(Release(self.lease_id, reason, is_closed))

    def _patience(self, within: float | None) -> float:
        left = self.deadline + CALL_MARGIN_SECONDS - time.monotonic()
        return max(left if within is None else min(left, within), 0.0)

    async def _answer(self, reply: Any, within: float | None) -> Reply | Missing:
        return await asyncio.wait_for(reply, self._patience(within))

    async def _fetch(self) -> None:
        started = time.monotonic()
        environment = self._opening.environment or ""
        with self._fetching(environment):
            unpacked = self._pool.unpack(self.node.node_id, environment)
            outcome = await asyncio.wait_for(unpacked, self._patience(None))
        self._fetched(started, outcome)

    def _fetch_sync(self) -> None:
        started = time.monotonic()
        environment = self._opening.environment or ""
        with self._fetching(environment):
            outcome = ray.get(self._pool.unpack(self.node.node_id, environment), timeout=self._patience(None))
        self._fetched(started, outcome)

    @contextmanager
    def _fetching(self, environment: str) -> Iterator[None]:
        """Around what asks the scheduler, not the worker."""
        try:
            yield
        except (RayError, TimeoutError) as error:
            what = f"environment {environment[:12]} did not come to node {self.node}"
            if isinstance(error, TimeoutError):
                raise ClusterError(f"{what} before the lease's deadline") from None
            raise ClusterError(f"{what}: the pool's scheduler was lost: {first_line(error)}") from error

    def _fetched(self, started: float, outcome: Unpacked | MiniSandboxError) -> None:
        if isinstance(outcome, MiniSandboxError):
            raise outcome
        self._is_cold = self._is_opened = False
        self.unpack_seconds += time.monotonic() - started
        self.slot_seconds += outcome.seconds.get("slots", 0.0)

    def _send(self, method: str, args: tuple, kwargs: dict) -> Any:
        if self.ended is not None:
            raise ClusterError(f"lease {self.lease_id} on node {self.node} has ended: {self.ended}")
        opening = None if self._is_opened else self._opening
        self._is_opened = True
        return self._actor.call.remote(self.lease_id, opening, method, args, kwargs)

    def _finish(self, reply: Reply | Missing) -> Any:
        if isinstance(reply, Missing):
            raise ClusterError(
                f"node {self.node} evicted environment {reply.environment[:12]} before it was used: raise store_gib"
            )
        if reply.ended:
            self.end("what it hosted has ended", is_closed=True)
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _lost(self, error: Exception) -> Exception:
        if isinstance(error, RayTaskError):  # a bug in the hosted class, not a failure of the cluster
            return error
        if isinstance(error, RayActorError | TimeoutError | GetTimeoutError):
            self._pool.tell(Suspect(self.worker_id))
        if isinstance(error, TimeoutError | GetTimeoutError):
            self.release()
            return ClusterError(f"worker {self.worker_id} on node {self.node} did not answer in time")
        self.end(f"its worker was lost: {first_line(error)}", is_closed=False)
        return ClusterError(f"worker {self.worker_id} on node {self.node} was lost: {first_line(error)}")

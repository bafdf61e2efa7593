"""All sandbox slots of a cluster, as a client holds them."""

import asyncio
import contextlib
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, ActorUnschedulableError, GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from minisandbox_ray.cluster.config import ClusterConfig
from minisandbox_ray.cluster.crew import START_ATTEMPTS, START_SECONDS
from minisandbox_ray.cluster.lease import Lease
from minisandbox_ray.cluster.messages import (
    Attached,
    Client,
    Ended,
    Event,
    Failed,
    Grant,
    Message,
    Opening,
    Release,
    Request,
)
from minisandbox_ray.cluster.nodes import Node, check_nodes, head_node, sandbox_nodes
from minisandbox_ray.cluster.scheduler import NAMESPACE, STOP_SECONDS, SchedulerActor, pool_settings
from minisandbox_ray.errors import ClusterError, ConfigError, MiniSandboxError, Owner, first_line

REATTACH_SECONDS = 60.0
RETRY_SECONDS = 1.0
ASK_SECONDS = 30.0


@dataclass(eq=False)
class _Waiter:
    """Who waits for a lease."""

    request: Request
    opening: Opening
    future: "Future[Lease]" = field(default_factory=Future)


class Pool:
    """Workers on the nodes of the connected Ray cluster, and leases on their slots.

    Usable from any thread and any event loop. ``host`` is what the workers host (see SandboxWorker), ``archives`` where
    environments come from: a directory, which other nodes need not see, or the URL of one. With ``config.pool`` the
    pool is shared by all drivers that name it, and outlives them. Raises ConfigError when a node advertises no unpack
    slots, runs another version of this package or cannot write its store, or when a shared pool has other settings;
    ClusterError when workers cannot be started.
    """

    def __init__(self, config: ClusterConfig, host: Callable[..., Any], archives: Path | str) -> None:
        source = archives if isinstance(archives, str) and "://" in archives else Path(archives).absolute()
        check_nodes(sandbox_nodes(config.exclude_labels))
        self._settings = pool_settings(config, source)
        self._is_shared = config.pool is not None
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._attachments = itertools.count(1)
        self._client_id = ""  # a new one each time it attaches
        context = ray.get_runtime_context()
        # Only of a driver: a detached actor outlives its job.
        self._job_id = context.get_job_id() if context.get_actor_id() is None else ""
        self._sent = 0
        self._lost_id = ""
        self._submissions: set[asyncio.Future] = set()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._waiters: dict[str, _Waiter] = {}
        self._outbox: list[Message] = []
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="pool-client", daemon=True)
        home = context.get_node_id()
        self._scheduler: Any = None
        try:
            attached = self._start(config, host, source, home)
            if isinstance(attached, MiniSandboxError):
                raise attached
        except BaseException:
            self._is_closed = True
            if self._scheduler is not None and self._is_shared:
                with contextlib.suppress(ClusterError):
                    self._ask("end_if_unused")
            elif self._scheduler is not None:
                self._end_scheduler()
            raise
        self._attached: Attached = attached
        self._thread.start()

    def _start(
        self, config: ClusterConfig, host: Callable[..., Any], source: Path | str, home: str
    ) -> Attached | MiniSandboxError:
        """Find or make the scheduler, and attach to it."""
        client = self._next_client()
        for attempt in range(START_ATTEMPTS):
            self._scheduler = SchedulerActor.options(
                name=config.pool or f"private-{self._name}",
                namespace=NAMESPACE,
                lifetime="detached" if self._is_shared else None,
                get_if_exists=self._is_shared,
                # Each goes down with what it needs anyway: its driver's node, or the head.
                scheduling_strategy=NodeAffinitySchedulingStrategy(
                    head_node() if self._is_shared else home, soft=False
                ),
            ).remote(config, host, source, home)
            try:
                attached = ray.get(self._scheduler.attach.remote(client), timeout=START_SECONDS * (START_ATTEMPTS + 1))
            except ActorUnschedulableError as error:
                # A node that has just joined was to place it, and does not know the others yet.
                if attempt + 1 == START_ATTEMPTS:
                    raise ClusterError(f"the pool's scheduler does not start: {first_line(error)}") from error
                time.sleep(RETRY_SECONDS)
            except RayError as error:
                raise ClusterError(f"the pool does not start: {first_line(error)}") from error
            else:
                self._client_id = client.client_id
                return attached
        raise AssertionError("unreachable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def nodes(self) -> list[Node]:
        """The nodes that hosted sandboxes when this client attached."""
        return self._attached.nodes

    @property
    def lease_seconds(self) -> float:
        """How long a lease may be held."""
        return self._attached.lease_seconds

    @property
    def capacity(self) -> int:
        """Sandboxes that the running workers host at a time."""
        return sum(node["slots"] for node in self.stats()["nodes"].values())

    def stats(self) -> dict[str, Any]:
        """Counts now and since the start, as far as the scheduler has heard.

        ``nodes``, by Ray's node id: ``used`` and ``slots``, ``store`` (bytes), ``hits`` and ``misses`` of it,
        ``unpacking``, the most ``unpack_slots_peak`` and ``unpack_bytes_peak`` at one time, …; ``waiting`` requests;
        ``clients``; ``unpacks``, ``unpacked_bytes`` and ``unpack_seconds`` by part; ``lost_workers``; ``failures`` by
        owner; ``troubles``: why a node has no workers.
        """
        return self._ask("stats")

    # -- leases

    async def acquire(
        self,
        environment: str | None,
        options: dict[str, Any] | None = None,
        *,
        slots: int = 1,
        avoid: frozenset[str] = frozenset(),
        timeout: float | None = None,
    ) -> Lease:
        """Lease a slot, first come, first served; cancelling the call loses none.

        ``environment``: digest of what the sandbox needs (None: nothing); a node that holds it is preferred.
        ``options``: keyword arguments of the hosted class. ``slots``: how many it takes, for what needs more than one's
        share of a node. ``avoid``: worker ids and node ids to use only when nothing else is free. ``timeout``: seconds
        to wait (None: as long as it takes). Raises ClusterError when the time is over, or the pool is closed or lost
        its workers.
        """
        waiter = self._request(environment, options, slots, avoid)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(waiter.future), timeout)
        except BaseException as error:
            raise self._abandon(waiter, error) from error

    def acquire_sync(
        self,
        environment: str | None,
        options: dict[str, Any] | None = None,
        *,
        slots: int = 1,
        avoid: frozenset[str] = frozenset(),
        timeout: float | None = None,
    ) -> Lease:
        """``acquire`` for code without an event loop."""
        waiter = self._request(environment, options, slots, avoid)
        try:
            return waiter.future.result(timeout)
        except BaseException as error:
            raise self._abandon(waiter, error) from error

    def prefetch(self, demand: Mapping[str, int]) -> None:
        """Begin to unpack what leases of so many of each environment would find missing; returns at once."""
        self._scheduler.prefetch.remote(dict(demand))

    def count_failure(self, owner: Owner) -> None:
        """An episode failed; for the pool's counts."""
        self.tell(Failed(owner))

    def _request(
        self, environment: str | None, options: dict[str, Any] | None, slots: int, avoid: frozenset[str]
    ) -> "_Waiter":
        if slots < 1:
            raise ConfigError(f"a lease takes one slot or more, not {slots}")
        request = Request(self._lease_id(), environment, slots, avoid)
        waiter = _Waiter(request, Opening(environment, options or {}))
        waiter.future.set_running_or_notify_cancel()  # who waits and is cancelled must not cancel it: see _abandon
        with self._lock:
            if self._is_closed:
                raise ClusterError("the pool is closed")
            self._waiters[request.lease_id] = waiter
        self.tell(request)
        return waiter

    def _lease_id(self) -> str:
        return f"{self._name}-{next(self._numbers)}"

    def _abandon(self, waiter: "_Waiter", error: BaseException) -> BaseException:
        """Nobody waits for the request any more: take it back, or the lease that it has become. Returns what to raise
        instead of ``error``."""
        with self._lock:
            lease_id = waiter.request.lease_id
            lease = self._leases.get(lease_id)
            waiting = self._waiters.pop(lease_id, None)
        if lease:
            lease.release()
        elif waiting:
            self.tell(Release(lease_id, is_closed=True))
        if isinstance(error, TimeoutError):
            return ClusterError("no sandbox slot was free in time: all are in use")
        return error

    # -- what leases need

    def tell(self, message: Message) -> None:
        """Send it to the scheduler soon, in one call with what else is said meanwhile."""
        with self._lock:
            self._outbox.append(message)
            if len(self._outbox) > 1 or self._is_closed:
                return
        with contextlib.suppress(RuntimeError):  # the loop has ended: so have the leases
            self._loop.call_soon_threadsafe(self._send)

    def forget(self, lease_id: str) -> None:
        """A lease has ended on this side."""
        with self._lock:
            self._leases.pop(lease_id, None)

    def unpack(self, node_id: str, environment: str) -> Any:
        """Reference to how the environment came to the node: Unpacked, or a MiniSandboxError."""
        return self._scheduler.unpack.remote(node_id, environment)

    # -- the client's thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._poll())
            for submission in self._submissions:
                submission.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._submissions, return_exceptions=True))
        finally:
            self._loop.close()

    def _next_client(self) -> Client:
        client_id = f"{self._name}.{next(self._attachments)}"
        return Client(client_id, self._job_id, self._settings, self._client_id)

    def _send(self) -> None:
        """Everything that is to be said, in one call; later, while this client is not attached."""
        with self._lock:
            if not (self._outbox and self._client_id and ray.is_initialized()):
                return
            messages, self._outbox = self._outbox, []
        self._sent += 1
        submitted = self._scheduler.submit.remote(self._client_id, self._sent, messages)
        submission = asyncio.ensure_future(self._deliver(submitted, self._client_id))
        self._submissions.add(submission)
        submission.add_done_callback(self._submissions.discard)

    async def _deliver(self, submitted: Any, client_id: str) -> None:
        try:
            await submitted
        except RayError:
            self._lost_id = client_id  # the scheduler waits for the messages of that number: start anew

    async def _poll(self) -> None:
        while not self._is_closed and ray.is_initialized():
            try:
                events = await self._scheduler.poll.remote(self._client_id)
            except ActorDiedError as error:
                self._fail_all(f"the pool has ended: {first_line(error)}")
                return
            except RayError:
                events = None
            if (events is None or self._lost_id == self._client_id) and not self._is_closed:
                await self._reattach()
                continue  # what was granted to the old attachment has ended with it
            for event in events or []:
                self._take(event)

    def _take(self, event: Event) -> None:
        with self._lock:
            waiter = self._waiters.pop(event.lease_id, None)
            lease = self._leases.pop(event.lease_id, None)
            if isinstance(event, Grant) and waiter:
                granted = self._leases[event.lease_id] = Lease(self, event, waiter.opening, self.lease_seconds)
        if isinstance(event, Ended):
            if lease:
                lease.ended = event.reason
            if waiter:
                waiter.future.set_exception(ClusterError(event.reason))
        elif waiter:
            waiter.future.set_result(granted)
        elif lease is None:  # it was taken back meanwhile
            self.tell(Release(event.lease_id, is_closed=True))

    async def _reattach(self) -> None:
        """The scheduler started anew, or took this client for dead: leases are gone, requests are asked again."""
        client = self._next_client()
        self._client_id = ""
        self._end_leases("the pool's scheduler was restarted, or took this client for dead")
        deadline = time.monotonic() + REATTACH_SECONDS
        while True:
            try:
                outcome = await self._scheduler.attach.remote(client)
                break
            except RayError as error:
                if isinstance(error, ActorDiedError) or time.monotonic() > deadline or not ray.is_initialized():
                    self._fail_all(f"the pool has ended: {first_line(error)}")
                    return
                await asyncio.sleep(0.2 if isinstance(error, ActorUnavailableError) else 1.0)
        if isinstance(outcome, MiniSandboxError):
            self._fail_all(str(outcome))
            return
        with self._lock:
            # What was said to the old one means nothing to the new one: only who still waits does; under new names,
            # as the old ones may stand for leases that are being closed.
            waiters = list(self._waiters.values())
            for waiter in waiters:
                waiter.request = replace(waiter.request, lease_id=self._lease_id())
            self._waiters = {waiter.request.lease_id: waiter for waiter in waiters}
            self._outbox = [waiter.request for waiter in waiters]
        self._client_id, self._sent = client.client_id, 0
        self._send()

    def _end_leases(self, reason: str) -> None:
        with self._lock:
            leases = list(self._leases.values())
            self._leases.clear()
        for lease in leases:
            lease.ended = reason

    def _fail_all(self, reason: str) -> None:
        self._end_leases(reason)
        with self._lock:
            self._is_closed = True
            waiters = list(self._waiters.values())
            self._waiters.clear()
        for waiter in waiters:
            waiter.future.set_exception(ClusterError(reason))

    # -- the end

    def close(self) -> None:
        """Give back all that this client holds, and end the pool if it is this driver's own; who still waits for a
        lease gets a ClusterError."""
        if self._is_closed:
            return
        self._fail_all("the pool was closed")
        if not ray.is_initialized():
            return
        with contextlib.suppress(ClusterError):
            self._ask("detach", self._client_id) if self._is_shared else self._ask("close", within=STOP_SECONDS * 2)
        if not self._is_shared:
            self._end_scheduler()
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_SECONDS)

    def _end_scheduler(self) -> None:
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self._scheduler)

    def _ask(self, method: str, *arguments: Any, within: float = ASK_SECONDS) -> Any:
        try:
            return ray.get(getattr(self._scheduler, method).remote(*arguments), timeout=within)
        except GetTimeoutError:
            raise ClusterError(f"the pool's scheduler did not answer within {within:.0f} s: is the cluster overloaded?")
        except RayError as error:
            raise ClusterError(f"the pool has ended: {first_line(error)}") from None

"""All workers of a cluster, and the leases on their sandboxes."""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from minisandbox_ray.cluster.config import ClusterConfig
from minisandbox_ray.cluster.lease import Lease, Worker, first_line
from minisandbox_ray.cluster.ledger import Ledger
from minisandbox_ray.cluster.nodes import Node, check_unpack_slots, sandbox_nodes
from minisandbox_ray.cluster.unpack import start_unpacking
from minisandbox_ray.cluster.worker import HostContext, Missing, Opening, WorkerActor
from minisandbox_ray.errors import ClusterError

START_SECONDS = 120.0
RELEASE_SECONDS = 60.0
STOP_SECONDS = 10.0
# A worker that cannot be started this many times in a row has a cause that another start does not cure.
START_ATTEMPTS = 3


class Pool:
    """Workers on every node of the connected Ray cluster, and the leases on their slots.

    Usable from any thread and any event loop. ``host`` is what the workers host (see SandboxWorker). Raises
    ConfigError when a node advertises no unpack slots, ClusterError when no worker can be started.
    """

    def __init__(self, config: ClusterConfig, host: Callable[..., Any], archives: Path) -> None:
        self._config = config
        self._host = host
        self._context = HostContext(
            archives=Path(archives).absolute(),
            store_bytes=int(config.store_gib * (1 << 30)),
            isolation=config.isolation,
        )
        self._ledger = Ledger()
        self._lock = threading.RLock()
        self._workers: dict[str, Worker] = {}
        self._leases: dict[int, Lease] = {}
        self._requests: dict[int, tuple[Future, Opening, float]] = {}
        self._releasing: dict[int, tuple[float, Worker]] = {}
        self._unpacking: dict[tuple[str, str], Future] = {}
        self._lease_ids = itertools.count(1)
        self._worker_ids = itertools.count(1)
        self._starting = 0
        self._lost_workers = 0
        self._unpacks = 0
        self._closed = False
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        nodes = sandbox_nodes()
        check_unpack_slots(nodes)
        self._keeper = threading.Thread(target=self._keep, name="pool-keeper", daemon=True)
        self._keeper.start()
        try:
            started = [self._start_worker(node, size) for node in nodes for size in config.workers_on(node.cpus)]
            for worker in started:
                worker.ready.result(timeout=START_SECONDS)
        except TimeoutError as error:
            self.close()
            raise ClusterError(f"a sandbox worker did not start within {START_SECONDS:.0f} s") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def capacity(self) -> int:
        """Sandboxes that the running workers host at a time."""
        with self._lock:
            return self._ledger.capacity

    def stats(self) -> dict[str, Any]:
        """Counts now (slots ``used`` and in all by node id, ``waiting`` requests) and since the start (``unpacks``,
        ``lost_workers``)."""
        with self._lock:
            return {
                "workers": len(self._workers),
                "nodes": {node: {"used": used, "slots": all_} for node, (used, all_) in self._by_node().items()},
                "waiting": self._ledger.waiting,
                "unpacks": self._unpacks,
                "lost_workers": self._lost_workers,
            }

    def _by_node(self) -> dict[str, tuple[int, int]]:
        return self._ledger.used_by_node()

    # -- leases

    async def acquire(
        self,
        environment: str | None,
        options: dict[str, Any] | None = None,
        *,
        avoid: frozenset[str] = frozenset(),
        timeout: float | None = None,
    ) -> Lease:
        """Lease a slot, first come, first served; cancelling the call loses none.

        ``environment``: digest of what the sandbox needs (None: nothing); ``options``: keyword arguments of the hosted
        class; ``avoid``: worker ids to use only when there is no other free one; ``timeout``: seconds to wait (None:
        as long as it takes). Raises ClusterError when the time is over, or the pool is closed or lost its workers.
        """
        lease_id, request = self._request(environment, options, avoid)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(request), timeout)
        except BaseException as error:
            raise self._abandon(lease_id, error) from error

    def acquire_sync(
        self,
        environment: str | None,
        options: dict[str, Any] | None = None,
        *,
        avoid: frozenset[str] = frozenset(),
        timeout: float | None = None,
    ) -> Lease:
        """``acquire`` for code without an event loop."""
        lease_id, request = self._request(environment, options, avoid)
        try:
            return request.result(timeout)
        except BaseException as error:
            raise self._abandon(lease_id, error) from error

    def _request(
        self, environment: str | None, options: dict[str, Any] | None, avoid: frozenset[str]
    ) -> tuple[int, Future]:
        request: Future = Future()
        request.set_running_or_notify_cancel()  # a waiter that is cancelled must not cancel it: see _abandon
        lease_id = next(self._lease_ids)
        with self._lock:
            if self._closed:
                raise ClusterError("the pool is closed")
            self._requests[lease_id] = (request, Opening(environment, options or {}), time.monotonic())
            self._ledger.request(lease_id, avoid)
        self._grant()
        return lease_id, request

    def _abandon(self, lease_id: int, error: BaseException) -> BaseException:
        """Nobody waits for the request any more: take it back, or the lease that it has become. Returns what to raise
        instead of ``error``."""
        with self._lock:
            lease = self._leases.get(lease_id)
            waiting = self._requests.pop(lease_id, None)
            if waiting:
                self._ledger.give_back(lease_id)
        if lease:
            lease.release()
        if isinstance(error, TimeoutError):
            return ClusterError(f"no sandbox slot was free in time ({self.capacity} slots, all in use)")
        return error

    def _grant(self) -> None:
        """Hand free slots to those who wait longest."""
        granted: list[tuple[Future, Lease | ClusterError]] = []
        with self._lock:
            for lease_id, worker_id in self._ledger.grants():
                request, opening, asked = self._requests.pop(lease_id)
                now = time.monotonic()
                worker, deadline = self._workers[worker_id], now + self._config.lease_seconds
                lease = Lease(self, lease_id, worker, opening, deadline=deadline, wait_seconds=now - asked)
                self._leases[lease_id] = lease
                granted.append((request, lease))
            if self._closed or not (self._workers or self._starting):
                reason = "the pool was closed" if self._closed else "no sandbox worker is left and none can be started"
                for lease_id in self._ledger.drain():
                    granted.append((self._requests.pop(lease_id)[0], ClusterError(reason)))
        for request, outcome in granted:
            if isinstance(outcome, Lease):
                request.set_result(outcome)
            else:
                request.set_exception(outcome)

    def release(self, lease: Lease) -> None:
        """Close what the lease hosts; its slot is free once that is done."""
        self._end(lease, "it was released")

    def _end(self, lease: Lease, reason: str) -> None:
        with self._lock:
            if self._leases.pop(lease.lease_id, None) is None:
                return
            lease.ended = reason
            if lease.opened:
                worker = self._workers[lease.worker_id]
                self._releasing[lease.lease_id] = (time.monotonic() + RELEASE_SECONDS, worker)
                closing = worker.control("release", lease.lease_id).future()
        if lease.opened:
            closing.add_done_callback(lambda _: self._free(lease.lease_id))
        else:
            self._free(lease.lease_id)

    def forget(self, lease: Lease) -> None:
        """The lease's object has ended and is closed: free its slot."""
        with self._lock:
            if self._leases.pop(lease.lease_id, None) is None:
                return
            lease.ended = "what it hosted has ended"
        self._free(lease.lease_id)

    def _free(self, lease_id: int) -> None:
        with self._lock:
            self._releasing.pop(lease_id, None)
            self._ledger.give_back(lease_id)
        self._grant()

    # -- environments

    def unpack(self, node: Node, missing: Missing) -> Future:
        """Unpack an environment on a node, once for all who ask at the same time. The future's exception is a
        ClusterError (ArchiveError for a bad archive)."""
        key = (node.node_id, missing.environment)
        with self._lock:
            if key in self._unpacking:
                return self._unpacking[key]
            unpacked: Future = Future()
            unpacked.set_running_or_notify_cancel()  # one of several waiters must not cancel it for the others
            self._unpacking[key] = unpacked
            self._unpacks += 1
            task = start_unpacking(missing, node, self._context).future()

        def done(task: Future) -> None:
            with self._lock:
                del self._unpacking[key]
            failure = task.exception()
            if failure is not None:
                text = f"unpacking {missing.environment} on node {node.address} failed: {first_line(failure)}"
                unpacked.set_exception(ClusterError(text))
            elif task.result() is not None:
                unpacked.set_exception(task.result())
            else:
                unpacked.set_result(None)

        task.add_done_callback(done)
        return unpacked

    # -- workers

    def _start_worker(self, node: Node, capacity: int, attempt: int = 1) -> Worker:
        # The name tells nodes and their workers apart in messages and in Ray's own tools.
        worker_id = f"{node.address}/{node.node_id[:6]}/{next(self._worker_ids)}"
        actor = WorkerActor.options(
            max_concurrency=capacity,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        ).remote(self._host, self._context)
        worker = Worker(worker_id, node, capacity, actor, attempt)
        with self._lock:
            self._starting += 1
        # Callbacks run on a thread of Ray's that must not call Ray: they leave the work to the keeper.
        ping = worker.control("ping").future()
        ping.add_done_callback(lambda ping: self._jobs.put(lambda: self._started(worker, ping)))
        return worker

    def _started(self, worker: Worker, ping: Future) -> None:
        with self._lock:
            self._starting -= 1
            failure = ping.exception()
            if failure is None and not self._closed:
                self._workers[worker.worker_id] = worker
                self._ledger.add_worker(worker.worker_id, worker.node.node_id, worker.capacity)
        if failure is not None:
            self._replace(worker, failure)
        elif self._closed:
            ray.kill(worker.actor)
        else:
            self._watch(worker)
            worker.ready.set_result(None)
        self._grant()

    def _watch(self, worker: Worker) -> None:
        def done(watch: Future) -> None:
            failure = watch.exception()
            if failure is not None:
                self.worker_lost(worker, failure)
            elif not self._closed:
                self._jobs.put(lambda: self._watch(worker))

        worker.control("watch").future().add_done_callback(done)

    def worker_lost(self, worker: Worker, reason: BaseException | str | None) -> None:
        """Take a worker that died (or answers no more) out, with its leases, and start another in its place."""
        text = reason if isinstance(reason, str) else first_line(reason) if reason else "it stopped"
        with self._lock:
            if self._workers.pop(worker.worker_id, None) is None or self._closed:
                return
            self._lost_workers += 1
            for lease_id in self._ledger.remove_worker(worker.worker_id):
                self._releasing.pop(lease_id, None)
                lease = self._leases.pop(lease_id, None)
                if lease:
                    lease.ended = f"its worker was lost: {text}"
            self._starting += 1  # the one to come: who waits goes on waiting
        self._jobs.put(lambda: self._restart(worker))

    def _restart(self, worker: Worker) -> None:
        ray.kill(worker.actor)
        self._replace(worker, None)
        with self._lock:
            self._starting -= 1
        self._grant()

    def _replace(self, worker: Worker, failure: BaseException | None) -> None:
        """Start a worker like this one, unless its node is gone or it failed to start too often."""
        attempt = 1 if failure is None else worker.attempt + 1
        alive = any(node.node_id == worker.node.node_id for node in sandbox_nodes())
        if alive and attempt <= START_ATTEMPTS and not self._closed:
            replacement = self._start_worker(worker.node, worker.capacity, attempt)
            replacement.ready = worker.ready if not worker.ready.done() else replacement.ready
        elif not worker.ready.done():
            # Ray puts the exception that ended a start at the end of a traceback.
            text = str(failure).strip().splitlines()[-1] if failure else "its node is gone"
            worker.ready.set_exception(ClusterError(f"no sandbox worker starts on node {worker.node.address}: {text}"))

    def _keep(self) -> None:
        """The keeper thread: what must not run on the caller's thread or on Ray's callback thread."""
        while True:
            try:
                job = self._jobs.get(timeout=1.0)
            except queue.Empty:
                job = self._expire
            if job is None:
                return
            if ray.is_initialized():  # calls of Ray's would start a cluster otherwise
                job()

    def _expire(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [lease for lease in self._leases.values() if lease.deadline < now]
            stuck = [worker for deadline, worker in self._releasing.values() if deadline < now]
        for lease in late:
            self._end(lease, f"it was held longer than lease_seconds={self._config.lease_seconds:g}")
        for worker in stuck:
            self.worker_lost(worker, f"it did not close a sandbox within {RELEASE_SECONDS:.0f} s")

    def close(self) -> None:
        """Close all sandboxes and stop the workers; who still waits for a lease gets a ClusterError."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            workers = list(self._workers.values())
            for lease in self._leases.values():
                lease.ended = "the pool was closed"
            self._leases.clear()
        self._grant()
        self._jobs.put(None)
        if ray.is_initialized():
            closing = [worker.control("close") for worker in workers]
            ray.wait(closing, num_returns=len(closing), timeout=STOP_SECONDS) if closing else None
            for worker in workers:
                ray.kill(worker.actor)
        self._keeper.join(timeout=STOP_SECONDS)

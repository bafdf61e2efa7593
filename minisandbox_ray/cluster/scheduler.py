"""The actor that hands out a pool's slots: one per pool, whoever its clients are."""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from minisandbox_ray import __version__
from minisandbox_ray.cluster.config import ClusterConfig
from minisandbox_ray.cluster.crew import Crew, Worker
from minisandbox_ray.cluster.ledger import Ledger
from minisandbox_ray.cluster.messages import (
    Attached,
    Client,
    Ended,
    Event,
    Failed,
    Grant,
    Message,
    Release,
    Request,
    Suspect,
    Unpacked,
)
from minisandbox_ray.cluster.metrics import Metrics
from minisandbox_ray.cluster.nodes import Node, all_nodes, ended_jobs
from minisandbox_ray.cluster.unpack import Unpacking
from minisandbox_ray.cluster.worker import ArchivesActor, HostContext
from minisandbox_ray.errors import ClusterError, ConfigError, MiniSandboxError, StoreFullError, first_line

NAMESPACE = "minisandbox"
"""Ray namespace of the schedulers."""
POLL_SECONDS = 2.0
"""How long a poll of a client waits for news."""
SILENCE_SECONDS = 15.0
"""A client that has not polled for so long is gone."""
RELEASE_SECONDS = 60.0
STOP_SECONDS = 10.0
NODES_SECONDS = 2.0
REPORT_SECONDS = 10.0
METRICS_SECONDS = 2.0
LATE_SECONDS = 3.0


@dataclass
class _Lease:
    client_id: str
    worker: Worker
    environment: str | None
    deadline: float
    closing_until: float | None = None


@dataclass
class _Client:
    job_id: str
    events: list[Event] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    seen: float = field(default_factory=time.monotonic)
    heard: int = 0
    """The number of the last messages that were heard."""
    early: dict[int, list[Message]] = field(default_factory=dict)
    """Those that came before their turn."""

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self.news.set()


class Scheduler:
    """Grants leases, ends them, and keeps workers and environments where they are needed.

    One event loop runs it all: what has no ``await`` in it is atomic.
    """

    def __init__(self, config: ClusterConfig, host: Callable[..., Any], source: Path | str, home: str) -> None:
        """``home``: Ray's id of the node whose archives are the likeliest to be complete, the first driver's."""
        self._config, self._source, self._home = config, source, home
        self._ledger = Ledger()
        self._leases: dict[str, _Lease] = {}
        self._requests: dict[str, tuple[str, str | None, float]] = {}
        self._clients: dict[str, _Client] = {}
        self._held: dict[str, set[str]] = {}
        self._failures: Counter[str] = Counter()
        self._full: dict[str, tuple[int, float]] = {}
        self._waits: deque[float] = deque(maxlen=1000)
        self._granted = 0
        self._expired = time.monotonic()
        self._started: asyncio.Task | None = None
        self._keeping: list[asyncio.Task] = []
        self._tasks: set[asyncio.Task] = set()
        self._is_closed = False
        self._archives: Any = None
        self._crew = Crew(config, host, self._context_of, self._worker_started, self._worker_lost, self._node_drains)
        self._unpacking = Unpacking(self._context_of, self._actors_near, self._unpacked)
        self._metrics = Metrics()

    # -- clients

    async def attach(self, client: Client) -> Attached | MiniSandboxError:
        """Take a client in once the workers run. Its settings must be the pool's."""
        self._drop_client(client.replaces, "its client lost the connection")
        mine, its = pool_settings(self._config, self._source), client.settings
        differing = [f"{name} is {mine.get(name)}, not {its.get(name)}" for name in mine if mine[name] != its.get(name)]
        if differing:
            return ConfigError(
                f"the pool {self._config.pool} runs with other settings: {'; '.join(differing)}; take those, choose "
                f"another cluster.pool, or end it with `python -m minisandbox_ray pool stop {self._config.pool}`"
            )
        started = self._started = self._started or asyncio.create_task(self._crew.start())
        try:
            await asyncio.shield(started)
        except MiniSandboxError as error:
            if self._started is started:
                self._started = None  # the next one may find it mended
            return error
        if not self._keeping:
            works = [
                (1.0, self._expire),
                (NODES_SECONDS, self._crew.refresh),
                (NODES_SECONDS, self._drop_ended_jobs),
                (REPORT_SECONDS, self._collect_reports),
                (METRICS_SECONDS, self._update_metrics),
            ]
            self._keeping = [asyncio.create_task(self._keep(seconds, work)) for seconds, work in works]
        self._clients[client.client_id] = _Client(client.job_id)
        return Attached(list(self._crew.nodes.values()), self._config.lease_seconds)

    async def end_if_unused(self) -> None:
        """End this actor if no client got in."""
        if not self._clients and self._started is None:
            ray.actor.exit_actor()

    async def detach(self, client_id: str) -> None:
        """The client is done: whatever it holds is taken back."""
        self._drop_client(client_id, "its client has left")
        self._grant()

    async def submit(self, client_id: str, number: int, messages: list[Message]) -> None:
        """What a client wants, in the order of its numbers (from 1 on): Ray may deliver them in another one."""
        client = self._clients.get(client_id)
        if client is None:
            return  # it learns that by its next poll
        client.early[number] = messages
        while client.heard + 1 in client.early:
            client.heard += 1
            for message in client.early.pop(client.heard):
                self._hear(client_id, message)
        self._grant()

    def _hear(self, client_id: str, message: Message) -> None:
        match message:
            case Request():
                self._request(client_id, message)
            case Release():
                self._release(message)
            case Suspect():
                self._crew.suspect(message.worker_id)
            case Failed():
                self._failures[message.owner] += 1

    async def poll(self, client_id: str) -> list[Event] | None:
        """News for a client, as soon as there is any. None: it is not known here (any more), and holds nothing."""
        client = self._clients.get(client_id)
        if client is None:
            return None
        client.seen = time.monotonic() + POLL_SECONDS
        if not client.events:
            try:
                await asyncio.wait_for(client.news.wait(), POLL_SECONDS)
            except TimeoutError:
                pass
        client.seen = time.monotonic()
        client.news.clear()
        events, client.events = client.events, []
        return events

    def _drop_client(self, client_id: str, reason: str) -> None:
        client = self._clients.pop(client_id, None)
        if client is None:
            return
        for lease_id in [lease_id for lease_id, (owner, *_) in self._requests.items() if owner == client_id]:
            self._release(Release(lease_id, reason))
        for lease_id in [lease_id for lease_id, lease in self._leases.items() if lease.client_id == client_id]:
            self._release(Release(lease_id, reason))

    # -- leases

    def _request(self, client_id: str, request: Request) -> None:
        if request.lease_id in self._requests or request.lease_id in self._leases:
            return  # asked again by a client that was attaching meanwhile
        if request.slots > max(self._crew.largest, 1):
            reason = f"no worker hosts {request.slots} slots: the largest has {self._crew.largest}"
            self._clients[client_id].tell(Ended(request.lease_id, reason))
            return
        self._requests[request.lease_id] = client_id, request.environment, time.monotonic()
        self._ledger.request(request.lease_id, client_id, request.environment, request.slots, request.avoid)

    def _grant(self) -> None:
        """Hand free slots out."""
        now = time.monotonic()
        for lease_id, worker_id in self._ledger.grants():
            client_id, environment, asked = self._requests.pop(lease_id)
            worker = self._crew.workers[worker_id]
            node = worker.node
            self._leases[lease_id] = _Lease(client_id, worker, environment, now + self._config.lease_seconds)
            self._granted += 1
            self._waits.append(now - asked)
            self._metrics.waited(now - asked)
            is_cold = environment is not None and environment not in self._held[node.node_id]
            if environment is not None and is_cold:
                self._unpacking.start(node, environment)
            grant = Grant(lease_id, worker_id, worker.actor, node, now - asked, is_cold)
            self._clients[client_id].tell(grant)
        if self._crew.is_hopeless or self._is_closed:
            reason = "the pool was closed" if self._is_closed else "no sandbox worker is left and none can be started"
            for lease_id in self._ledger.drain():
                self._tell(self._requests.pop(lease_id)[0], Ended(lease_id, reason))

    def _tell(self, client_id: str, event: Event) -> None:
        if client_id in self._clients:
            self._clients[client_id].tell(event)

    def _release(self, release: Release) -> None:
        """Take back a request, or a lease; its slot is free once the worker has closed what it hosts."""
        lease_id = release.lease_id
        if self._requests.pop(lease_id, None):
            self._ledger.give_back(lease_id)
        lease = self._leases.get(lease_id)
        if lease is None or lease.closing_until is not None:
            return
        if release.is_closed:
            self._free(lease_id)
        else:
            lease.closing_until = time.monotonic() + RELEASE_SECONDS
            self._spawn(self._close_lease(lease_id, lease.worker, release.reason))

    async def _close_lease(self, lease_id: str, worker: Worker, reason: str) -> None:
        try:
            await worker.control("release", lease_id, reason)
        except RayError:
            return  # the worker's watch takes it out
        self._free(lease_id)
        self._grant()

    def _free(self, lease_id: str) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        self._ledger.give_back(lease_id)
        node_id = lease.worker.node.node_id
        if node_id not in self._crew.nodes and not any(
            other.worker.node.node_id == node_id for other in self._leases.values()
        ):
            for worker in self._crew.on(node_id):
                self._retire(worker)

    def _retire(self, worker: Worker) -> None:
        self._ledger.remove_worker(worker.worker_id)
        self._spawn(self._crew.retire(worker))

    # -- workers and nodes

    def _context_of(self, node: Node) -> HostContext:
        store_bytes = int(self._config.store_gib * (1 << 30))
        return HostContext(self._source, store_bytes, self._config.isolation, node.store_key)

    def _actors_near(self, node: Node, environment: str) -> Iterator[tuple[Node, Any]]:
        """The node itself, the first driver's, then those that hold the environment."""
        holders = [other for other in sorted(self._ledger.holders(environment)) if environment in self._held[other]]
        order = [node.node_id, self._home, *holders, *sorted(self._crew.nodes)]
        for node_id in dict.fromkeys(order):
            worker = next(iter(self._crew.on(node_id)), None)
            if worker is not None:
                yield worker.node, worker.actor
            elif node_id == self._home:
                yield from self._home_archives()

    def _home_archives(self) -> Iterator[tuple[Node, Any]]:
        """The first driver's node when it hosts no sandboxes: an actor there reads its archives to the others."""
        home = next((node for node in all_nodes() if node.node_id == self._home), None)
        if home is None:
            return  # it is gone
        if self._archives is None:
            there = NodeAffinitySchedulingStrategy(self._home, soft=False)
            self._archives = ArchivesActor.options(scheduling_strategy=there).remote(self._context_of(home))
        yield home, self._archives

    def _worker_started(self, worker: Worker) -> None:
        node_id = worker.node.node_id
        self._held.setdefault(node_id, set())
        self._ledger.add_worker(worker.worker_id, node_id, worker.capacity)
        self._note_held(node_id, worker.report.held)
        self._grant()

    def _note_held(self, node_id: str, held: frozenset[str]) -> None:
        """What a node's store holds by its own account."""
        known = self._held[node_id]
        for environment in known - held:
            if not self._unpacking.is_running(node_id, environment):
                known.discard(environment)
                self._ledger.set_held(node_id, environment, False)
        for environment in held - known:
            known.add(environment)
            self._ledger.set_held(node_id, environment)

    def _worker_lost(self, worker: Worker, reason: str) -> None:
        for lease_id in self._ledger.remove_worker(worker.worker_id):
            lease = self._leases.pop(lease_id, None)
            if lease is not None and lease.closing_until is None:
                self._tell(lease.client_id, Ended(lease_id, f"its worker was lost: {reason}"))
        self._grant()

    def _node_drains(self, node_id: str) -> None:
        self._ledger.retire_node(node_id)
        if not any(lease.worker.node.node_id == node_id for lease in self._leases.values()):
            for worker in self._crew.on(node_id):
                self._retire(worker)

    async def _keep(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do something by the clock. Each work has a loop of its own: one that waits for Ray holds none of the others
        up, and one that fails (Ray's control service is away for a while) is tried again."""
        while not self._is_closed:
            due = time.monotonic() + seconds
            try:
                await work()
            except Exception as error:
                self._metrics.trouble(f"{work.__name__}: {first_line(error)}")
            await asyncio.sleep(max(due - time.monotonic(), 0.1))

    async def _expire(self) -> None:
        now = time.monotonic()
        late, self._expired = now - self._expired - LATE_SECONDS, now
        if late > 0:  # this process did not run for a while: nobody could poll
            for client in self._clients.values():
                client.seen += late + LATE_SECONDS
        for lease_id, lease in list(self._leases.items()):
            if lease.closing_until is None and lease.deadline < now:
                reason = f"it was held longer than lease_seconds={self._config.lease_seconds:g}"
                self._tell(lease.client_id, Ended(lease_id, reason))
                self._release(Release(lease_id, reason))
            elif lease.closing_until is not None and lease.closing_until < now:
                self._crew.declare_lost(lease.worker, f"it did not close a sandbox within {RELEASE_SECONDS:.0f} s")
        for client_id, client in list(self._clients.items()):
            if client.seen + SILENCE_SECONDS < now:
                self._drop_client(client_id, "its client is gone")
        self._grant()

    async def _drop_ended_jobs(self) -> None:
        """Clients whose driver is gone: Ray hears of that long before their silence tells."""
        if not self._clients:
            return
        ended = await asyncio.to_thread(ended_jobs)
        for client_id, client in list(self._clients.items()):
            if client.job_id in ended:
                self._drop_client(client_id, "its driver has ended")
        self._grant()

    async def _update_metrics(self) -> None:
        self._metrics.update(await self.stats())

    async def _collect_reports(self) -> None:
        now = time.monotonic()
        first_on = {worker.node.node_id: worker for worker in reversed(self._crew.workers.values())}
        every = list(self._crew.workers.values())
        reports = await asyncio.gather(*(self._report_of(worker) for worker in every))
        for worker, report in zip(every, reports, strict=True):
            if report is not None:
                worker.report = report
                if first_on[worker.node.node_id] is worker:
                    self._note_held(worker.node.node_id, report.held)
                    needed, until = self._full.get(worker.node.node_id, (0, now))
                    if report.store["free_bytes"] > needed or until <= now:
                        self._full.pop(worker.node.node_id, None)
                        self._ledger.refuse_new(worker.node.node_id, False)
        self._grant()

    async def _report_of(self, worker: Worker) -> Any:
        try:
            return await asyncio.wait_for(worker.control("report"), REPORT_SECONDS)
        except (RayError, TimeoutError):
            return None

    # -- environments

    async def unpack(self, node_id: str, environment: str) -> Unpacked | MiniSandboxError:
        """Bring an environment to a node; several who ask at a time wait for one."""
        node = self._crew.nodes.get(node_id)
        if node is None:
            return ClusterError(f"node {node_id[:8]} is gone, or is to go and takes nothing new")
        return await self._unpacking.ensure(node, environment)

    async def prefetch(self, demand: dict[str, int]) -> int:
        """Begin to unpack what leases of so many of each environment would find missing; -> how many unpacks."""
        count = 0
        for node_id, environment in self._ledger.plan(demand):
            if node_id in self._crew.nodes and environment not in self._held[node_id]:
                self._ledger.set_held(node_id, environment)
                self._unpacking.start(self._crew.nodes[node_id], environment)
                count += 1
        return count

    def _unpacked(self, node: Node, environment: str, outcome: Unpacked | MiniSandboxError) -> None:
        is_held = isinstance(outcome, Unpacked)
        if isinstance(outcome, Unpacked):
            self._metrics.unpacked(outcome)
        if node.node_id not in self._held:
            return
        if is_held:
            self._held[node.node_id].add(environment)
        else:
            self._held[node.node_id].discard(environment)
            size = self._unpacking.size(environment)
            if isinstance(outcome, StoreFullError) and size <= self._config.store_gib * (1 << 30):
                self._full[node.node_id] = 2 * size + FULL_BYTES, time.monotonic() + FULL_SECONDS
                self._ledger.refuse_new(node.node_id, True)
        self._ledger.set_held(node.node_id, environment, is_held)

    # -- the rest

    async def stats(self) -> dict[str, Any]:
        """Counts now and since the start; see `Pool.stats`."""
        usage = self._ledger.used_by_node()
        clients = {name: (0, 0) for name in self._clients} | self._ledger.client_usage()
        crew: dict[str, list[Worker]] = defaultdict(list)
        for worker in self._crew.workers.values():
            crew[worker.node.node_id].append(worker)
        unpacking = self._unpacking.running()
        nodes = {}
        for node_id, (used, slots) in usage.items():
            workers = crew[node_id]
            if not workers:
                continue
            slots_peak, bytes_peak = self._unpacking.peak(node_id)
            nodes[node_id] = {
                "name": str(workers[0].node),
                "used": used,
                "slots": slots,
                "workers": len(workers),
                "draining": node_id not in self._crew.nodes,
                "environments": len(self._held[node_id]),
                "store": dict(workers[0].report.store),
                "hits": sum(worker.report.hits for worker in workers),
                "misses": sum(worker.report.misses for worker in workers),
                "unpacking": unpacking[node_id],
                "unpack_slots": workers[0].node.unpack_slots,
                "unpack_slots_peak": slots_peak,
                "unpack_bytes_peak": bytes_peak,
            }
        return {
            "pool": self._config.pool,
            "scheduler_node": ray.get_runtime_context().get_node_id(),
            "workers": len(self._crew.workers),
            "nodes": nodes,
            "troubles": dict(self._crew.troubles),
            "waiting": self._ledger.waiting,
            "clients": {name: dict(zip(("held", "waiting"), counts, strict=True)) for name, counts in clients.items()},
            "granted": self._granted,
            "wait_seconds": sorted(self._waits),
            "unpacks": self._unpacking.count,
            "unpacked_bytes": self._unpacking.bytes,
            "unpack_seconds": dict(self._unpacking.seconds),
            "lost_workers": self._crew.lost,
            "failures": dict(self._failures),
        }

    async def close(self) -> None:
        """Close all sandboxes and stop the workers; who still waits for a lease is told so."""
        self._is_closed = True
        self._grant()
        for lease_id, lease in self._leases.items():
            self._tell(lease.client_id, Ended(lease_id, "the pool was closed"))
        self._leases.clear()
        for task in [*self._keeping, self._started, *self._tasks]:
            if task is not None:
                task.cancel()
        await self._crew.close(STOP_SECONDS)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


FULL_BYTES = 128 << 20
"""A node whose disk was full takes new environments again once so much is free, and twice what found no room…"""
FULL_SECONDS = 30.0
"""…or after this time, as leases that have ended meanwhile leave something to evict."""


def pool_settings(config: ClusterConfig, source: Path | str) -> dict[str, str]:
    """What the clients of one pool must agree on."""
    fields = config.model_dump(mode="json", exclude={"address", "pool"})
    names = {name: str(value) for name, value in fields.items()}
    return {**names, "archives": str(source), "minisandbox_ray": __version__}


SchedulerActor: Any = ray.remote(num_cpus=0, max_concurrency=10_000, max_restarts=-1, max_task_retries=0)(Scheduler)  # type: ignore[call-overload]

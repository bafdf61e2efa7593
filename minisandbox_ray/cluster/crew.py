"""The workers of a pool: started on each node, watched, replaced; nodes come and go."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from minisandbox_ray import __version__
from minisandbox_ray.cluster.config import ClusterConfig
from minisandbox_ray.cluster.messages import Report
from minisandbox_ray.cluster.nodes import SANDBOX, Node, check_nodes, draining_nodes, sandbox_nodes
from minisandbox_ray.cluster.worker import HostContext, WorkerActor
from minisandbox_ray.errors import ClusterError, ConfigError, MiniSandboxError, first_line

START_SECONDS = 120.0
PING_SECONDS = 10.0
# A worker that cannot be started this many times in a row has a cause that another start does not cure soon.
START_ATTEMPTS = 3
PAUSE_SECONDS = 1.0
RETRY_SECONDS = 60.0
TAKEN_SECONDS = 15.0

logger = logging.getLogger(__name__)


@dataclass
class Worker:
    """A worker that runs."""

    worker_id: str
    node: Node
    capacity: int
    actor: Any
    report: Report
    watch: asyncio.Task | None = field(default=None, repr=False)

    def control(self, method: str, *arguments: Any) -> Any:
        """Call a method that is answered while all sandboxes are busy."""
        return getattr(self.actor, method).options(concurrency_group="control").remote(*arguments)


class Crew:
    """Keeps as many workers on each node as the configuration says."""

    def __init__(
        self,
        config: ClusterConfig,
        host: Callable[..., Any],
        context_of: Callable[[Node], HostContext],
        on_started: Callable[[Worker], None],
        on_lost: Callable[[Worker, str], None],
        on_draining: Callable[[str], None],
    ) -> None:
        self._config, self._host, self._context_of = config, host, context_of
        self._on_started, self._on_lost, self._on_draining = on_started, on_lost, on_draining
        self.workers: dict[str, Worker] = {}
        self.nodes: dict[str, Node] = {}
        """Those that are alive and not draining."""
        self.troubles: dict[str, str] = {}
        """Why a node has fewer workers than it should, by its id."""
        self.lost = 0
        """Workers that died."""
        self._starting: Counter[str] = Counter()
        self._tasks: set[asyncio.Task] = set()
        self._retry_at: dict[str, float] = {}
        self._number = 0
        self._is_closed = False

    @property
    def is_hopeless(self) -> bool:
        """No worker runs or is being started."""
        return not self.workers and not any(self._starting.values())

    @property
    def largest(self) -> int:
        """Most slots that one worker has, or will have once it has started."""
        sizes = [worker.capacity for worker in self.workers.values()]
        return max(sizes + [size for node in self.nodes.values() for size in self._config.workers_on(node)], default=0)

    async def start(self) -> None:
        """Start the workers of all nodes. Raises ConfigError or ClusterError if one does not start."""
        nodes = await asyncio.to_thread(sandbox_nodes, self._config.exclude_labels)
        check_nodes(nodes)
        draining = await asyncio.to_thread(draining_nodes)
        self.nodes = {node.node_id: node for node in nodes if node.node_id not in draining}
        if not self.nodes:
            raise ClusterError("all nodes of the Ray cluster that may host sandboxes are being drained")
        await self._wait_for_free_slots()
        starts = [self._start(node, size) for node in self.nodes.values() for size in self._config.workers_on(node)]
        failures = [failure for failure in await asyncio.gather(*starts) if failure]
        if failures:
            await self._end_all(0.0)
            self.nodes = {}
            raise min(failures, key=lambda failure: not isinstance(failure, ConfigError))

    async def _wait_for_free_slots(self) -> None:
        """Raise ClusterError when other pools keep the nodes' `sandbox` resource; one that ends is given some time."""
        wanted = sum(sum(self._config.workers_on(node)) for node in self.nodes.values() if node.sandboxes)
        deadline = time.monotonic() + TAKEN_SECONDS
        while wanted:
            available = await asyncio.to_thread(ray.available_resources)
            free = int(available.get(SANDBOX, 0))
            if free >= wanted:
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{free} of the {wanted} `sandbox` that the nodes advertise are free, other pools keep the rest: "
                    "see `python -m minisandbox_ray pool list`; share one (cluster.pool, --pool) or end it with "
                    "`pool stop`"
                )
            await asyncio.sleep(0.5)

    async def refresh(self) -> None:
        """Look at the cluster's nodes: start workers on those that joined, leave those that drain or died."""
        nodes = await asyncio.to_thread(sandbox_nodes, self._config.exclude_labels)
        draining = await asyncio.to_thread(draining_nodes)
        alive = {node.node_id: node for node in nodes if node.node_id not in draining}
        for node_id in [node_id for node_id in self.nodes if node_id not in alive]:
            node = self.nodes.pop(node_id)
            self._retry_at.pop(node_id, None)
            self.troubles.pop(node_id, None)
            if node_id in draining:
                self._on_draining(node_id)
            else:
                for worker in self.on(node_id):
                    self.declare_lost(worker, f"node {node} is gone")
        now = time.monotonic()
        for node_id, node in alive.items():
            is_new = node_id not in self.nodes
            if is_new or self._retry_at.get(node_id, now + 1) <= now:
                self._retry_at.pop(node_id, None)
                self.nodes[node_id] = node
                self._spawn(self._fill(node))

    def on(self, node_id: str) -> list[Worker]:
        """The workers of a node."""
        return [worker for worker in self.workers.values() if worker.node.node_id == node_id]

    def suspect(self, worker_id: str) -> None:
        """Somebody got no answer from this worker: take it out if it does not answer here either."""
        worker = self.workers.get(worker_id)
        if worker:
            self._spawn(self._test(worker))

    def declare_lost(self, worker: Worker, reason: str) -> None:
        """Take a worker out, and start another in its place if its node is still there."""
        if self.workers.pop(worker.worker_id, None) is None or self._is_closed:
            return
        self.lost += 1
        if worker.watch:
            worker.watch.cancel()
        self._spawn(self._replace(worker))
        self._on_lost(worker, reason)

    async def retire(self, worker: Worker) -> None:
        """End a worker that hosts nothing more; nobody takes its place."""
        if self.workers.pop(worker.worker_id, None) is not None and worker.watch:
            worker.watch.cancel()
        await self._end(worker)

    async def close(self, seconds: float) -> None:
        """End all workers, which close what they host within so many seconds."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await self._end_all(seconds)

    async def _end_all(self, seconds: float) -> None:
        workers = list(self.workers.values())
        self.workers.clear()
        for worker in workers:
            if worker.watch:
                worker.watch.cancel()
        await asyncio.gather(*(self._end(worker, seconds) for worker in workers))

    async def _end(self, worker: Worker, seconds: float = 10.0) -> None:
        try:
            await asyncio.wait_for(worker.control("close"), seconds)
        except (RayError, TimeoutError):
            pass  # it is killed below
        ray.kill(worker.actor)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fill(self, node: Node) -> None:
        """Start what a node lacks."""
        has = len(self.on(node.node_id)) + self._starting[node.node_id]
        for size in self._config.workers_on(node)[has:]:
            if node.unpack_slots < 1:
                failure: MiniSandboxError | None = ClusterError(f"node {node} advertises no unpack_slots")
            else:
                failure = await self._start(node, size)
            if failure:
                self._note_trouble(node, failure)
                return

    def _replace(self, worker: Worker) -> Coroutine[Any, Any, None]:
        """What ends a lost worker and starts another; the latter counts as being started from this call on."""
        node = worker.node
        is_wanted = node.node_id in self.nodes
        self._starting[node.node_id] += is_wanted

        async def replace() -> None:
            try:
                ray.kill(worker.actor)
                failure = await self._start(node, worker.capacity) if is_wanted else None
            finally:
                self._starting[node.node_id] -= is_wanted
            if failure:
                self._note_trouble(node, failure)

        return replace()

    def _note_trouble(self, node: Node, failure: MiniSandboxError) -> None:
        logger.warning("%s", failure)
        if node.node_id in self.nodes:
            self.troubles[node.node_id] = str(failure)
            self._retry_at[node.node_id] = time.monotonic() + RETRY_SECONDS

    async def _start(self, node: Node, capacity: int) -> MiniSandboxError | None:
        """Start a worker, in some attempts; -> why that failed."""
        self._starting[node.node_id] += 1
        try:
            failure: MiniSandboxError | None = None
            for _ in range(START_ATTEMPTS):
                failure = await self._attempt(node, capacity)
                is_final = failure is None or isinstance(failure, ConfigError) or self._is_closed
                if is_final or node.node_id not in self.nodes:
                    break
                await asyncio.sleep(PAUSE_SECONDS)  # a node that has just joined is not known to all others at once
            return failure
        finally:
            self._starting[node.node_id] -= 1

    async def _attempt(self, node: Node, capacity: int) -> MiniSandboxError | None:
        self._number += 1
        # The name tells nodes and their workers apart in messages.
        worker_id = f"{node.address}/{node.node_id[:6]}/{self._number}"
        actor = WorkerActor.options(
            max_concurrency=capacity,
            resources={SANDBOX: capacity} if node.sandboxes else {},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        ).remote(self._host, self._context_of(node))
        wanted = f"no sandbox worker starts on node {node}"
        try:
            call = actor.report.options(concurrency_group="control").remote()
            report = await asyncio.wait_for(call, START_SECONDS)
        except TimeoutError:
            ray.kill(actor)
            hint = "its `sandbox` resource may be taken by another pool: see `python -m minisandbox_ray pool list`"
            taken = f" ({hint}; share that one, or end it with `pool stop`)" if node.sandboxes else ""
            return ClusterError(f"{wanted} within {START_SECONDS:.0f} s{taken}")
        except RayError as error:
            # Ray puts the exception that ended a start at the end of a traceback.
            reason = str(error).strip().splitlines()[-1]
            kind = ConfigError if "ConfigError" in reason else ClusterError
            return kind(f"{wanted}: {reason.removeprefix('minisandbox_ray.errors.')}")
        except asyncio.CancelledError:
            ray.kill(actor)
            raise
        if report.version != __version__:
            ray.kill(actor)
            return ConfigError(
                f"node {node} has minisandbox_ray {report.version}, the driver has {__version__}: install the same "
                f"version on every node"
            )
        worker = Worker(worker_id, node, capacity, actor, report)
        if self._is_closed or node.node_id not in self.nodes:
            ray.kill(actor)
            return ClusterError(f"{wanted}: it is no longer wanted")
        self.workers[worker_id] = worker
        self.troubles.pop(node.node_id, None)
        worker.watch = asyncio.create_task(self._watch(worker))
        self._on_started(worker)
        return None

    async def _watch(self, worker: Worker) -> None:
        while True:
            try:
                await worker.control("watch")
            except RayError as error:
                self.declare_lost(worker, first_line(error))
                return

    async def _test(self, worker: Worker) -> None:
        try:
            await asyncio.wait_for(worker.control("ping"), PING_SECONDS)
        except (RayError, TimeoutError) as error:
            self.declare_lost(worker, "it does not answer" if isinstance(error, TimeoutError) else first_line(error))

"""Bringing environments to nodes, as Ray tasks that wait for the node's unpack slots."""

import asyncio
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from minisandbox_ray.cluster.messages import Unpacked
from minisandbox_ray.cluster.nodes import UNPACK_SLOTS, Node
from minisandbox_ray.cluster.worker import HostContext
from minisandbox_ray.errors import ClusterError, MiniSandboxError, first_line

BYTES_PER_SLOT = 512 << 20
PEERS = 8
"""Nodes that are asked for an archive that a node cannot find by itself."""
ANSWER_SECONDS = 60.0
_KEPT = 100  # spans that may overlap with one that ends now


def slots_for(unpacked_bytes: int | None, node: Node) -> int:
    """Unpack slots for an archive: one per 512 MiB of its unpacked size, at most what the node has in all; all of them
    for one of unknown size."""
    if unpacked_bytes is None:
        return node.unpack_slots
    return min(max(1, math.ceil(unpacked_bytes / BYTES_PER_SLOT)), node.unpack_slots)


class Peer:
    """Another node's archives, read through Ray's object store; `environments.provide.Peer`."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self._actor = actor

    def _ask(self, method: str, *arguments: Any) -> Any:
        call = getattr(self._actor, method).options(concurrency_group="archives").remote(*arguments)
        try:
            return ray.get(call, timeout=ANSWER_SECONDS)
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise ClusterError(f"node {self.name} did not send an archive: {first_line(error)}") from None

    def manifest(self, digest: str) -> bytes | None:
        """Of an archive; None if that node has none, or does not answer."""
        try:
            return self._ask("archive_manifest", digest)
        except ClusterError:
            return None

    def read(self, digest: str, offset: int, length: int) -> bytes:
        """A piece of an archive. Raises ClusterError."""
        return self._ask("read_archive", digest, offset, length)

    def read_layer(self, sha256: str, offset: int, length: int) -> bytes:
        """A piece of a layer. Raises ClusterError."""
        return self._ask("read_layer", sha256, offset, length)


@dataclass(frozen=True)
class _Done:
    """What the task came to."""

    outcome: Unpacked | MiniSandboxError
    began: float
    ended: float
    """On the node's clock, in seconds after the epoch."""


@ray.remote(num_cpus=0, max_retries=0)
def _materialise(environment: str, context: HostContext, peers: list[Peer]) -> _Done | None:
    """None: another process of the node is at it; wait for that without slots."""
    from minisandbox_ray.environments.provide import provide

    began, store = time.time(), context.store
    if store.is_being_made(environment):
        return None
    outcome: Unpacked | MiniSandboxError
    try:
        provided = provide(
            environment, archives=context.source, local=context.directories.archives, store=store, peers=peers
        )
        outcome = Unpacked(provided.origin, dict(provided.seconds), provided.unpacked_bytes)
    except MiniSandboxError as error:
        outcome = error
    return _Done(outcome, began, time.time())


@ray.remote(num_cpus=0, max_retries=0)
def _wait_for_other(environment: str, context: HostContext) -> None:
    context.store.wait_until_made(environment)


class Span(NamedTuple):
    """One unpack that is over."""

    began: float
    ended: float
    slots: int
    unpacked_bytes: int


class Unpacking:
    """All unpacks of a pool: each environment once per node at a time, whoever asks."""

    def __init__(
        self,
        context_of: Callable[[Node], HostContext],
        actors_near: Callable[[Node, str], Iterable[tuple[Node, Any]]],
        on_done: Callable[[Node, str, Unpacked | MiniSandboxError], None],
    ) -> None:
        """``actors_near(node, environment)``: workers to ask for its archive, and their nodes, the likeliest first."""
        self._context_of, self._actors_near, self._on_done = context_of, actors_near, on_done
        self._running: dict[tuple[str, str], asyncio.Task] = {}
        self._sizes: dict[str, int] = {}
        self.count = 0
        """How many were started."""
        self.bytes = 0
        """How many bytes were unpacked."""
        self.seconds: dict[str, float] = defaultdict(float)
        """Where their time went, by part (see Unpacked)."""
        self._spans: dict[str, deque[Span]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._peaks: dict[str, tuple[int, int]] = {}

    def running(self) -> Counter[str]:
        """Unpacks that run or wait for slots, by node."""
        return Counter(node_id for node_id, _ in self._running)

    def is_running(self, node_id: str, environment: str) -> bool:
        """Whether it is on its way there."""
        return (node_id, environment) in self._running

    def size(self, environment: str) -> int:
        """Its unpacked bytes, as far as known; else 0."""
        return self._sizes.get(environment, 0)

    def peak(self, node_id: str) -> tuple[int, int]:
        """The most slots, and the most bytes, that were being unpacked at one time on the node."""
        return self._peaks.get(node_id, (0, 0))

    def _note(self, node_id: str, span: Span) -> None:
        spans = self._spans[node_id]
        spans.append(span)
        marks = sorted(
            [(span.ended, -span.slots, -span.unpacked_bytes) for span in spans]
            + [(span.began, span.slots, span.unpacked_bytes) for span in spans]
        )
        slots = size = 0
        most_slots, most_bytes = self.peak(node_id)
        for _, more_slots, more_bytes in marks:
            slots, size = slots + more_slots, size + more_bytes
            most_slots, most_bytes = max(most_slots, slots), max(most_bytes, size)
        self._peaks[node_id] = most_slots, most_bytes

    async def ensure(self, node: Node, environment: str) -> Unpacked | MiniSandboxError:
        """Unpack it there unless it is; several who ask at a time wait for one unpack."""
        return await asyncio.shield(self.start(node, environment))

    def start(self, node: Node, environment: str) -> "asyncio.Task[Unpacked | MiniSandboxError]":
        """`ensure`, begun and not waited for."""
        key = node.node_id, environment
        if key not in self._running:
            self.count += 1
            self._running[key] = asyncio.create_task(self._unpack(node, environment))
        return self._running[key]

    async def _unpack(self, node: Node, environment: str) -> Unpacked | MiniSandboxError:
        outcome: Unpacked | MiniSandboxError
        try:
            outcome = await self._attempt(node, environment)
        except MiniSandboxError as error:
            outcome = error
        except Exception as error:
            text = f"unpacking environment {environment[:12]} on node {node} failed: {first_line(error)}"
            outcome = ClusterError(text)
        finally:
            del self._running[node.node_id, environment]
        self._on_done(node, environment, outcome)
        return outcome

    async def _attempt(self, node: Node, environment: str) -> Unpacked:
        context = self._context_of(node)
        near = list(self._actors_near(node, environment))[: PEERS + 1]
        size = await self._size(near, environment)
        slots = slots_for(size, node)
        here = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        task = _materialise.options(resources={UNPACK_SLOTS: slots}, scheduling_strategy=here)
        wait = _wait_for_other.options(scheduling_strategy=here)
        peers = [Peer(str(other), actor) for other, actor in near if other.node_id != node.node_id][:PEERS]
        asked = time.monotonic()
        while (done := await task.remote(environment, context, peers)) is None:
            await wait.remote(environment, context)
        if isinstance(done.outcome, MiniSandboxError):
            raise done.outcome
        total, busy = time.monotonic() - asked, done.ended - done.began
        unpacked = replace(done.outcome, seconds={**done.outcome.seconds, "slots": max(total - busy, 0.0)})
        for part, seconds in unpacked.seconds.items():
            self.seconds[part] += seconds
        if unpacked.origin != "store":
            self._sizes[environment] = unpacked.unpacked_bytes
            self.bytes += unpacked.unpacked_bytes
            self._note(node.node_id, Span(done.began, done.ended, slots, unpacked.unpacked_bytes))
        return unpacked

    async def _size(self, near: Sequence[tuple[Node, Any]], environment: str) -> int | None:
        """Unpacked bytes, by the manifest of the first node that has a sound one; None if there is none: then
        `provide` says why, or builds the environment again."""
        if environment not in self._sizes:
            for _, actor in near:
                try:
                    call = actor.unpacked_bytes.options(concurrency_group="archives").remote(environment)
                    size = await asyncio.wait_for(call, ANSWER_SECONDS)
                except (ray.exceptions.RayError, TimeoutError):
                    continue
                if size is not None:
                    self._sizes[environment] = size
                    break
        return self._sizes.get(environment)

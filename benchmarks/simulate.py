"""Scaling by simulation: the pool's own scheduler (cluster/ledger.py) on virtual nodes and a virtual clock.

    python benchmarks/simulate.py [--quick] [--nodes N …] [--only WORD …] [--json FILE] [--SETTING VALUE …]

What is real: the ledger, call by call, and its processor time (to ask, to grant and to give back). The rest is drawn,
seeded, or assumed: see `Settings`. A rollout asks for a slot, waits until its environment is on the slot's node
(fetched from a storage that all share and unpacked there, once for all who wait for it), runs, is graded, and frees the
slot. Nodes fail and come back empty; their rollouts are asked for again, and replay what they had done, at the pace of
commands without a model. The spread is the most minus the least slots in use on a node: when a step has been placed,
or, asynchronous, always.

Synchronous runs ask for a step's rollouts at once, which takes three quarters of the slots, and go on with an optimiser
step after the last of them; in asynchronous ones the next rollouts always wait. Environments are shared by many tasks,
as in SWE-bench Verified, or each task's own. Lead and window are the ledger's; a lead of "inf" puts locality first.
The first step (asynchronous: until three quarters of all slots were used once) is the cold start, and left out of all
figures that do not say otherwise.

A full run takes less than 5 minutes on one quiet core; a quick one, of 64 small nodes, some seconds.
"""

import argparse
import gc
import heapq
import json
import math
import random
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

from measure import quantile
from rich.console import Console
from rich.table import Table

from minisandbox_ray.cluster.ledger import Ledger

# SWE-bench Verified's 500 tasks by (repo, version), which is what its environments are made for (dataset card).
VERIFIED = (
    *(43, 36, 36, 34, 32, 24, 24, 16, 13, 12, 11, 10, 9, 8, 8, 8, 7, 7, 7, 6, 6),
    *[5] * 6,
    *[4] * 10,
    *[3] * 8,
    *[2] * 14,
    *[1] * 21,
)
LEADS = (0, 1, 8, math.inf)
MB_PER_UNPACK_SLOT = 512
SAMPLE_SECONDS = 15.0
COUNTS = ("asked", "granted", "finished", "replays", "failures", "unpacks", "prefetched", "evictions", "refusals")
IN_TABLE = ("nodes", "synchronous", "own", "lead", "window", "prefetch")


@dataclass(frozen=True)
class Settings:
    """A simulated run. Sizes are in GB of 1e9 bytes, times in seconds where the name does not say more."""

    nodes: int = 1000
    slots: int = 128
    """Sandboxes that a node hosts at a time."""
    worker_slots: int = 16
    """Sandboxes of one worker."""
    synchronous: bool = True
    own: bool = False
    """Each task has an environment of its own, instead of sharing as in SWE-bench Verified."""
    lead: float = 8
    """Slots, see Ledger; infinite: locality first."""
    window: float = 0.0
    """Share of all slots, see Ledger."""
    prefetch: bool = False
    """Of what the next step will miss, once the requests of this one are in the queue."""
    steps: int = 2
    """Of a synchronous run, the first one being the cold start; an asynchronous one uses each slot 1.25 times."""
    fill: float = 0.75
    """Rollouts of a synchronous step, as a share of all slots; an asynchronous one has a third of that."""
    group: int = 8
    """Rollouts of a task in a step."""
    tasks: int = 20_000
    """Of an epoch, which takes them in random order."""
    episode_minutes: float = 3.0
    """Mean time of model and commands: lognormal, for few are long."""
    episode_sigma: float = 0.7
    """Of its logarithm; 0.7 makes the 99th percentile 4 times the mean."""
    limit_minutes: float = 10.0
    """Then the episode is cut off."""
    command_share: float = 0.3
    """Of that time, what commands take: replaying an episode needs no model."""
    grade_seconds: float = 20.0
    """Mean; exponential."""
    start_seconds: float = 0.01
    """A sandbox's start on a node that holds the environment."""
    optimiser_seconds: float = 60.0
    smallest_gb: float = 0.2
    """Unpacked environments: log-uniform between this and the next."""
    largest_gb: float = 3.0
    archive_share: float = 0.3
    """Size of an archive over that of what it unpacks to."""
    unpack_gb_s: float = 0.12
    """Unpacking one archive; benchmarks/sandbox.py measured 311 MiB in 2.6 s."""
    unpack_slots: int = 16
    """Of a node, in units of 512 MiB."""
    storage_gb_s: float = 0.05
    """What the shared storage gives, times the number of nodes; all transfers get equal parts of it."""
    transfer_gb_s: float = 1.25
    """What one transfer gets at most."""
    store_gb: float = 256.0
    """Unpacked environments that a node keeps; the least recently used of those not in use go first."""
    mtbf_hours: float = 100.0
    """Mean time between failures of a node (exponential); pessimistic, so that a short run has some."""
    rejoin_seconds: float = 300.0
    seed: int = 0

    def line(self) -> list[str]:
        """What tells the runs of one table apart."""
        return [
            str(self.nodes),
            "sync" if self.synchronous else "async",
            "own" if self.own else "shared",
            f"{self.lead:g}",
            f"{self.window:g}",
            "prefetch" if self.prefetch else "-",
        ]


@dataclass(eq=False, slots=True)
class Node:
    """A virtual node and its store."""

    node_id: str
    store: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Size of what is unpacked, least recently used first."""
    making: "dict[str, list[Rollout]]" = field(default_factory=dict)
    """Who waits for what is fetched or unpacked, or queues for that."""
    queue: deque[str] = field(default_factory=deque)
    users: Counter[str] = field(default_factory=Counter)
    bytes: float = 0.0
    """GB of store and making together."""
    free_units: int = 0
    refused: bool = False
    alive: bool = True


@dataclass(eq=False, slots=True)
class Rollout:
    """One episode of a task; asked for anew when its node is lost."""

    environment: str
    step: int
    seconds: float
    lease_id: str = ""
    node: Node | None = None
    asked: float = 0.0
    granted: float = 0.0
    began: float | None = None


class Storage:
    """Transfers that share a bandwidth equally, each at most at a node's: a clock of GB that each has got."""

    def __init__(self, total: float, each: float) -> None:
        self._total, self._each = total, each
        self._time = self._each_got = 0.0
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def add(self, now: float, size: float, done: Callable[[], None]) -> None:
        """Begin a transfer of so many GB."""
        self._advance(now)
        self._count += 1
        heapq.heappush(self._ends, (self._each_got + size, self._count, done))

    def next_end(self) -> float:
        """When the first of them ends, if no other begins before."""
        if not self._ends:
            return math.inf
        return self._time + max(0.0, self._ends[0][0] - self._each_got) / self._rate()

    def end_first(self, now: float) -> None:
        """It is that time."""
        self._advance(now)
        heapq.heappop(self._ends)[2]()

    def _rate(self) -> float:
        return min(self._each, self._total / len(self._ends))

    def _advance(self, now: float) -> None:
        if self._ends:
            self._each_got += (now - self._time) * self._rate()
        self._time = now


class Simulation:
    """One run; `run` gives its figures."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._random = random.Random(settings.seed)
        self._failures = random.Random(settings.seed + 1)
        # No lead at all is a lead of all slots.
        endless = math.isinf(settings.lead)
        lead, share = (settings.slots, 1.0) if endless else (int(settings.lead), 0.25)
        self.ledger = Ledger(lead, share, settings.window)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._storage = Storage(settings.storage_gb_s * settings.nodes, settings.transfer_gb_s)
        self._nodes: dict[str, Node] = {}
        self._running: dict[str, Rollout] = {}
        self._worker_node: dict[str, Node] = {}
        self._environments: dict[str, float] = {}
        self._tasks = self._epochs()
        self._next_step: list[str] = []
        self._left: Counter[int] = Counter()
        self._step = 0
        self._slots = settings.nodes * settings.slots
        fill = settings.fill if settings.synchronous else settings.fill / 3
        self._rollouts = max(1, round(fill * self._slots / settings.group)) * settings.group
        self._over = False
        # Figures.
        self._measured_from: float | None = None
        self._ledger_seconds = 0.0
        self._plan_seconds = 0.0
        self._useful = self._all = 0.0
        self._active = 0
        self._slot_waits: list[float] = []
        self._unpack_waits: list[float] = []
        self._spreads: list[tuple[int, float]] = []
        self._step_seconds: list[float] = []
        self._step_began = 0.0
        self.counts: Counter[str] = Counter()
        self._gb = {"cold": 0.0, "warm": 0.0}
        self._warm_grants = 0
        self._cold_seconds = 0.0

    # -- the clock

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self._now + seconds, self._serial, action))

    def run(self) -> dict[str, float | None]:
        """From an idle, empty cluster to the end of the last step."""
        for _ in range(self.settings.nodes):
            self._join()
        if not self.settings.synchronous:
            self._at(SAMPLE_SECONDS, self._sample)
        self._submit_step()
        while not self._over:
            end = self._storage.next_end()
            if end < self._events[0][0]:
                self._account(end)
                self._storage.end_first(end)
            else:
                at, _, action = heapq.heappop(self._events)
                self._account(at)
                action()
        return self._figures()

    def _account(self, now: float) -> None:
        if self._measured_from is not None:
            self._useful += (now - self._now) * self._active
            self._all += (now - self._now) * self.ledger.capacity
        self._now = now

    def _timed[T](self, call: Callable[..., T], *args: object) -> T:
        begin = time.thread_time()
        result = call(*args)
        self._ledger_seconds += time.thread_time() - begin
        return result

    # -- tasks

    def _epochs(self) -> Iterator[str]:
        """The environment of each task, epoch after epoch."""
        if self.settings.own:
            tasks = [f"task-{number}" for number in range(self.settings.tasks)]
        else:
            each = [f"version-{number}" for number, count in enumerate(VERIFIED) for _ in range(count)]
            tasks = [each[number % len(each)] for number in range(self.settings.tasks)]
        while True:
            self._random.shuffle(tasks)
            yield from tasks

    def _size(self, environment: str) -> float:
        if environment not in self._environments:
            drawn = random.Random(f"{self.settings.seed} {environment}").random()
            ratio = self.settings.largest_gb / self.settings.smallest_gb
            self._environments[environment] = self.settings.smallest_gb * ratio**drawn
        return self._environments[environment]

    def _draw_step(self) -> list[str]:
        return [next(self._tasks) for _ in range(self._rollouts // self.settings.group)]

    def _draw_seconds(self) -> float:
        sigma, mean = self.settings.episode_sigma, self.settings.episode_minutes * 60
        episode = self._random.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
        return min(episode, self.settings.limit_minutes * 60) + self._random.expovariate(
            1 / self.settings.grade_seconds
        )

    def _submit_step(self) -> None:
        tasks = self._next_step or self._draw_step()
        self._step += 1
        self._step_began = self._now
        for environment in tasks:
            for _ in range(self.settings.group):
                self._ask(Rollout(environment, self._step, self._draw_seconds()))
        self._left[self._step] = self._rollouts
        self._next_step = self._draw_step()
        self._grant()
        if self.settings.synchronous:
            self._note_spread()
        if self.settings.prefetch:
            demand: Counter[str] = Counter()
            for environment in self._next_step:
                demand[environment] += self.settings.group
            begin = time.perf_counter()
            planned = self.ledger.plan(demand)
            self._plan_seconds = max(self._plan_seconds, time.perf_counter() - begin)
            for node_id, environment in planned:
                node = self._nodes[node_id]
                self.ledger.set_held(node_id, environment)
                self._make(node, environment, [])
                self.counts["prefetched"] += 1

    # -- rollouts

    def _ask(self, rollout: Rollout) -> None:
        self._serial += 1
        rollout.lease_id, rollout.node, rollout.began, rollout.asked = f"l{self._serial}", None, None, self._now
        self._running[rollout.lease_id] = rollout
        self.counts["asked"] += 1
        self._timed(self.ledger.request, rollout.lease_id, "trainer", rollout.environment)

    def _grant(self) -> None:
        for lease_id, worker_id in self._timed(self.ledger.grants):
            rollout, node = self._running[lease_id], self._worker_node[worker_id]
            rollout.node, rollout.granted = node, self._now
            self.counts["granted"] += 1
            self._warm_grants += self._measured_from is not None
            if self._measured_from is not None:
                self._slot_waits.append(self._now - rollout.asked)
            environment = rollout.environment
            node.users[environment] += 1
            if environment in node.store:
                node.store.move_to_end(environment)
                self._begin(rollout)
            elif environment in node.making:
                node.making[environment].append(rollout)
            else:
                self._make(node, environment, [rollout])
        while not self.settings.synchronous and self.ledger.waiting < self._rollouts:
            self._submit_step()

    def _begin(self, rollout: Rollout) -> None:
        rollout.began = self._now
        self._active += 1
        if self._measured_from is not None:
            self._unpack_waits.append(self._now - rollout.granted + self.settings.start_seconds)
        lease_id = rollout.lease_id
        self._at(self.settings.start_seconds + rollout.seconds, partial(self._finish, rollout, lease_id))

    def _finish(self, rollout: Rollout, lease_id: str) -> None:
        node = rollout.node
        if rollout.lease_id != lease_id or node is None:
            return  # its node was lost meanwhile
        del self._running[lease_id]
        self._active -= 1
        self.counts["finished"] += 1
        self._timed(self.ledger.give_back, lease_id)
        node.users[rollout.environment] -= 1
        if node.refused:
            self._evict(node)
        self._left[rollout.step] -= 1
        self._grant()
        if self.settings.synchronous:
            if not self._left[rollout.step]:
                self._end_step()
        elif self.counts["finished"] == self._slots * 3 // 4:
            self._start_measuring()
        elif self.counts["finished"] >= self._slots * 5 // 4:
            self._over = True

    def _end_step(self) -> None:
        if self._measured_from is None:
            self._start_measuring()
        else:
            self._step_seconds.append(self._now - self._step_began)
        if self._step >= self.settings.steps:
            self._over = True
        else:
            self._at(self.settings.optimiser_seconds, self._submit_step)

    def _start_measuring(self) -> None:
        self._measured_from = self._cold_seconds = self._now

    # -- environments on nodes

    def _units(self, environment: str) -> int:
        units = math.ceil(self._size(environment) * 1e3 / 1.048576 / MB_PER_UNPACK_SLOT)
        return min(max(1, units), self.settings.unpack_slots)

    def _make(self, node: Node, environment: str, waiting: list[Rollout]) -> None:
        node.making[environment] = waiting
        node.queue.append(environment)
        node.bytes += self._size(environment)
        self._evict(node)
        self._pump(node)

    def _pump(self, node: Node) -> None:
        while node.queue and self._units(node.queue[0]) <= node.free_units:
            environment = node.queue.popleft()
            node.free_units -= self._units(environment)
            size = self._size(environment) * self.settings.archive_share
            self._storage.add(self._now, size, partial(self._fetched, node, environment))

    def _fetched(self, node: Node, environment: str) -> None:
        if node.alive:
            self._at(self._size(environment) / self.settings.unpack_gb_s, partial(self._unpacked, node, environment))

    def _unpacked(self, node: Node, environment: str) -> None:
        if not node.alive:
            return
        self.counts["unpacks"] += 1
        self._gb["cold" if self._measured_from is None else "warm"] += self._size(environment)
        node.free_units += self._units(environment)
        node.store[environment] = self._size(environment)
        for rollout in node.making.pop(environment):
            self._begin(rollout)
        self._pump(node)

    def _evict(self, node: Node) -> None:
        if node.bytes > self.settings.store_gb:
            for environment in [environment for environment in node.store if not node.users[environment]]:
                node.bytes -= node.store.pop(environment)
                self.ledger.set_held(node.node_id, environment, False)
                self.counts["evictions"] += 1
                if node.bytes <= self.settings.store_gb:
                    break
        refused = node.bytes > self.settings.store_gb
        if refused != node.refused:
            node.refused = refused
            self.counts["refusals"] += refused
            self.ledger.refuse_new(node.node_id, refused)

    # -- nodes

    def _join(self) -> None:
        self._serial += 1
        node = Node(f"n{self._serial}", free_units=self.settings.unpack_slots)
        self._nodes[node.node_id] = node
        for number in range(self.settings.slots // self.settings.worker_slots):
            worker_id = f"{node.node_id}/{number}"
            self._worker_node[worker_id] = node
            self.ledger.add_worker(worker_id, node.node_id, self.settings.worker_slots)
        self._at(self._failures.expovariate(1 / (self.settings.mtbf_hours * 3600)), partial(self._fail, node))

    def _rejoin(self) -> None:
        self._join()
        self._grant()

    def _fail(self, node: Node) -> None:
        node.alive = False
        del self._nodes[node.node_id]
        lost: set[str] = set()
        for worker_id in [worker_id for worker_id, at in self._worker_node.items() if at is node]:
            lost |= self.ledger.remove_worker(worker_id)
            del self._worker_node[worker_id]
        self.ledger.retire_node(node.node_id)
        self.counts["failures"] += 1
        for lease_id in sorted(lost):
            rollout = self._running.pop(lease_id)
            if rollout.began is not None:
                done = min(self._now - rollout.began, rollout.seconds)
                rollout.seconds += done * (self.settings.command_share - 1)
                self._active -= 1
            self.counts["replays"] += 1
            self._ask(rollout)
        self._grant()
        self._at(self.settings.rejoin_seconds, self._rejoin)

    # -- figures

    def _sample(self) -> None:
        self._note_spread()
        self._at(SAMPLE_SECONDS, self._sample)

    def _note_spread(self) -> None:
        if self._measured_from is not None:
            used = [used for used, _ in self.ledger.used_by_node().values()]
            self._spreads.append((max(used) - min(used), sum(used) / len(used)))

    def _figures(self) -> dict[str, float | None]:
        spread = sum(spread for spread, _ in self._spreads) / len(self._spreads)
        mean = sum(mean for _, mean in self._spreads) / len(self._spreads)
        return {
            "utilisation": self._useful / self._all,
            "step_minutes": quantile(self._step_seconds) / 60 if self._step_seconds else None,
            "slot_wait_p50_s": quantile(self._slot_waits),
            "slot_wait_p99_s": quantile(self._slot_waits, 0.99),
            "ready_p50_s": quantile(self._unpack_waits),
            "ready_p99_s": quantile(self._unpack_waits, 0.99),
            "gb_per_rollout": self._gb["warm"] / max(1, self._warm_grants),
            "cold_tb": self._gb["cold"] / 1e3,
            "cold_minutes": self._cold_seconds / 60,
            "spread_slots": spread,
            "spread_share": spread / mean,
            "us_per_grant": 1e6 * self._ledger_seconds / self.counts["granted"],
            "plan_ms": 1e3 * self._plan_seconds if self.settings.prefetch else None,
            "minutes": self._now / 60,
            "not_finished": len(self._running),
            **{name: self.counts[name] for name in COUNTS},
        }


def runs(quick: bool, nodes: list[int], chosen: Settings) -> Iterator[Settings]:
    """The table's lines: all leads with and without prefetch, where they matter or the cluster is small."""
    for number in nodes:
        base = replace(chosen, nodes=number)
        for own in (True, False):
            sync = replace(base, own=own)
            leads = LEADS if own or number <= 64 else (0, 8)
            for lead in leads:
                yield replace(sync, lead=lead)
                if own or lead == 8:
                    yield replace(sync, lead=lead, prefetch=True)
            for window in (0.0, 0.25):
                waiting = replace(sync, synchronous=False, window=window)
                if number <= 64 and not quick and not window:
                    yield from (replace(waiting, lead=lead) for lead in LEADS if lead != waiting.lead)
                yield waiting
                if own:
                    yield replace(waiting, prefetch=True)


COLUMNS = {
    "utilisation": ("slots\nbusy", "{:.1%}"),
    "step_minutes": ("step\nmin", "{:.1f}"),
    "slot_wait_p50_s": ("wait for\nslot\np50 s", "{:.1f}"),
    "slot_wait_p99_s": ("\n\np99 s", "{:.1f}"),
    "ready_p50_s": ("then\nready\np50 s", "{:.2f}"),
    "ready_p99_s": ("\n\np99 s", "{:.1f}"),
    "gb_per_rollout": ("unpacked\nGB/\nrollout", "{:.3f}"),
    "cold_tb": ("cold\nTB", "{:.1f}"),
    "spread_slots": ("spread\nslots", "{:.1f}"),
    "spread_share": ("\nof\nmean", "{:.0%}"),
    "failures": ("nodes\nlost", "{:.0f}"),
    "us_per_grant": ("ledger\nµs/\ngrant", "{:.0f}"),
    "plan_ms": ("plan\nms", "{:.0f}"),
}


def main() -> None:
    """Simulate each line of the table, print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="64 nodes of 32 slots, fewer lines")
    parser.add_argument("--nodes", type=int, nargs="+", metavar="N", help="default: 64 and 1000")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="lines with all of these: sync, own …")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures by line")
    drawn = [each for each in fields(Settings) if each.name not in IN_TABLE]
    for each in drawn:
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=type(each.default), metavar="VALUE")
    arguments = parser.parse_args()
    given = {each.name: value for each in drawn if (value := getattr(arguments, each.name)) is not None}
    chosen = Settings(**{"slots": 32, "worker_slots": 8, **given} if arguments.quick else given)
    lines = [
        line
        for line in runs(arguments.quick, arguments.nodes or ([64] if arguments.quick else [64, 1000]), chosen)
        if set(arguments.only) <= set(line.line())
    ]
    table = Table(title=f"{chosen.slots} slots a node; see the settings in benchmarks/simulate.py")
    for heading in ("nodes", "run", "environ-\nments", "lead", "win-\ndow", "pre-\nfetch"):
        table.add_column(heading)
    for heading, _ in COLUMNS.values():
        table.add_column(heading, justify="right")
    console = Console()
    console.width = console.width if console.is_terminal else 170
    figures = []
    gc.disable()  # hundreds of thousands of rollouts, and no cycles among them
    with console.status("") as status:
        for number, line in enumerate(lines, 1):
            status.update(f"{number}/{len(lines)}: {' '.join(line.line())}")
            found = Simulation(line).run()
            lead = None if math.isinf(line.lead) else line.lead  # JSON has no infinity
            figures.append({name: getattr(line, name) for name in IN_TABLE} | {"lead": lead} | found)
            values = [(found[name], text) for name, (_, text) in COLUMNS.items()]
            table.add_row(
                *line.line()[:-1],
                "yes" if line.prefetch else "",
                *("" if value is None else text.format(value) for value, text in values),
            )
            gc.collect()
    console.print(table)
    if arguments.json:
        settings = {each.name: getattr(chosen, each.name) for each in drawn}
        arguments.json.write_text(json.dumps({"settings": settings, "runs": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()

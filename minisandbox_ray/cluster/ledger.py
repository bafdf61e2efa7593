"""Who holds which slot: the scheduling of a pool, without Ray, threads or clock."""

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Slots:
    """A worker's slots and the leases that hold them."""

    worker_id: str
    node_id: str
    capacity: int
    leases: set[int] = field(default_factory=set)


class Ledger:
    """Grants slots first come, first served; each on the node, and there the worker, with the lowest share in use.

    Counts of equally large nodes differ by at most one while leases are only granted.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Slots] = {}
        self._waiting: deque[tuple[int, frozenset[str]]] = deque()
        self._holder: dict[int, str] = {}

    @property
    def capacity(self) -> int:
        """Slots of all workers."""
        return sum(worker.capacity for worker in self._workers.values())

    @property
    def waiting(self) -> int:
        """Requests that have no slot yet."""
        return len(self._waiting)

    def used_by_node(self) -> dict[str, tuple[int, int]]:
        """Slots in use and slots in all, by node id."""
        usage: dict[str, tuple[int, int]] = {}
        for worker in self._workers.values():
            used, capacity = usage.get(worker.node_id, (0, 0))
            usage[worker.node_id] = (used + len(worker.leases), capacity + worker.capacity)
        return usage

    def add_worker(self, worker_id: str, node_id: str, capacity: int) -> None:
        """Count a worker's slots in."""
        self._workers[worker_id] = Slots(worker_id, node_id, capacity)

    def remove_worker(self, worker_id: str) -> set[int]:
        """Count a worker out; returns the leases that it takes with it."""
        worker = self._workers.pop(worker_id, None)
        leases = worker.leases if worker else set()
        for lease_id in leases:
            del self._holder[lease_id]
        return leases

    def request(self, lease_id: int, avoid: frozenset[str] = frozenset()) -> None:
        """Queue for a slot, on a worker that is not in ``avoid`` where one is left."""
        self._waiting.append((lease_id, avoid))

    def give_back(self, lease_id: int) -> None:
        """Free the lease's slot, or take its request from the queue; unknown leases are fine."""
        worker_id = self._holder.pop(lease_id, None)
        if worker_id is not None:
            self._workers[worker_id].leases.discard(lease_id)
        else:
            self._waiting = deque(entry for entry in self._waiting if entry[0] != lease_id)

    def grants(self) -> list[tuple[int, str]]:
        """Give free slots to the head of the queue: (lease, worker) of each."""
        granted = []
        while self._waiting:
            lease_id, avoid = self._waiting[0]
            worker = self._least_loaded(avoid)
            if worker is None:
                break
            self._waiting.popleft()
            worker.leases.add(lease_id)
            self._holder[lease_id] = worker.worker_id
            granted.append((lease_id, worker.worker_id))
        return granted

    def drain(self) -> list[int]:
        """Empty the queue; returns who waited."""
        waiting = [lease_id for lease_id, _ in self._waiting]
        self._waiting.clear()
        return waiting

    def _least_loaded(self, avoid: frozenset[str]) -> Slots | None:
        free = [worker for worker in self._workers.values() if len(worker.leases) < worker.capacity]
        free = [worker for worker in free if worker.worker_id not in avoid] or free
        usage = self.used_by_node()

        def load(worker: Slots) -> tuple[float, float]:
            used, capacity = usage[worker.node_id]
            return used / capacity, len(worker.leases) / worker.capacity

        return min(free, key=load, default=None)

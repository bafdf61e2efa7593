"""Who holds which slot: the scheduling of a pool, without Ray, threads or clock."""

import heapq
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# By benchmarks/simulate.py, for groups of 8 rollouts on nodes of 128 slots: with a lead of 8 an environment is unpacked
# once for a group, with 1 four times, with 0 eight times. More saves nothing where each task has an environment of its
# own, and lets nodes differ by 80 slots where many share one.
LOCALITY_LEAD = 8
# The same for small nodes, where 8 slots are many.
LOCALITY_SHARE = 0.25
# While all slots are taken and requests wait, one node at a time has a slot to give, and a lead alone decides nothing.
# By benchmarks/simulate.py for 1,000 nodes where each task has an environment of its own: without a window 36 % of the
# slots are busy (the others wait for unpacks), with 0.25 they all are. Overtaken are a client's own requests only, each
# by no more than a quarter as many as there are slots.
LOCALITY_WINDOW = 0.25


@dataclass(eq=False, slots=True)
class Node:
    """A node's workers. ``bit`` stands for it in the masks, which are sets of nodes as Python integers."""

    node_id: str
    bit: int
    workers: "dict[str, Slots]" = field(default_factory=dict)
    environments: set[str] = field(default_factory=set)
    used: int = 0
    capacity: int = 0
    room: int = 0
    retired: bool = False


@dataclass(eq=False, slots=True)
class Slots:
    """A worker's slots and the leases that hold them."""

    worker_id: str
    node: Node
    capacity: int
    leases: "dict[str, Request]" = field(default_factory=dict)
    used: int = 0
    reserved: bool = False

    @property
    def free(self) -> int:
        return self.capacity - self.used


@dataclass(eq=False, slots=True)
class Request:
    """What a lease asked for, and the worker that it got."""

    lease_id: str
    client_id: str
    environment: str | None
    slots: int
    avoid: frozenset[str]
    number: int
    """Its place among all that its client has asked for."""
    worker: Slots | None = None


@dataclass(eq=False, slots=True)
class Queue:
    """A client's requests that wait, in the order that they came in."""

    requests: "OrderedDict[str, Request]" = field(default_factory=OrderedDict)
    by_environment: "dict[str, OrderedDict[str, Request]]" = field(default_factory=dict)
    unheld: list[tuple[int, str]] = field(default_factory=list)
    """A heap: the environments that no node holds, by the number of the first request; others are left out late."""
    asked: int = 0

    def add(self, request: Request) -> None:
        """At the end."""
        self.asked = request.number
        self.requests[request.lease_id] = request
        if request.environment:
            alike = self.by_environment.setdefault(request.environment, OrderedDict())
            alike[request.lease_id] = request
            if len(alike) == 1:
                self.note_unheld(request.environment)

    def note_unheld(self, environment: str) -> None:
        """Perhaps no node holds it now."""
        if environment in self.by_environment:
            heapq.heappush(self.unheld, (self.first(environment).number, environment))
        if len(self.unheld) > 2 * len(self.by_environment) + 100:
            self.unheld = [(self.first(environment).number, environment) for environment in self.by_environment]
            heapq.heapify(self.unheld)

    def remove(self, request: Request) -> None:
        """From wherever it is."""
        del self.requests[request.lease_id]
        if request.environment:
            alike = self.by_environment[request.environment]
            del alike[request.lease_id]
            if not alike:
                del self.by_environment[request.environment]

    def first(self, environment: str | None = None) -> Request:
        """The one that came first, of all or of those for an environment."""
        return next(iter((self.by_environment[environment] if environment else self.requests).values()))

    def first_held(self, held: set[str]) -> Request | None:
        """The one that came first of those for one of these environments."""
        firsts = (self.first(environment) for environment in held & self.by_environment.keys())
        return min(firsts, key=lambda request: request.number, default=None)

    def first_unheld(self, holders: Mapping[str, int]) -> Request | None:
        """The one that came first of those for environments without holders."""
        while self.unheld:
            number, environment = self.unheld[0]
            if environment in holders or environment not in self.by_environment:
                heapq.heappop(self.unheld)
                continue
            request = self.first(environment)
            if request.number == number:
                return request
            heapq.heapreplace(self.unheld, (request.number, environment))
        return None


class Loads:
    """Sets of nodes by load, the share of their slots in use: where the next of some nodes is found.

    A cluster has few different loads at a time, and a set of 1,000 nodes is an integer of 125 bytes, so that a look at
    each load in turn takes microseconds.
    """

    def __init__(self) -> None:
        self.usage: dict[int, tuple[int, int]] = {}
        self._loads: list[float] = []
        self._nodes: dict[float, int] = {}

    def set(self, bit: int, used: int, capacity: int) -> None:
        """Note what a node uses, and how many slots it has; none: it is left out."""
        before = self.usage.pop(bit, None)
        if before:
            load = before[0] / before[1]
            self._nodes[load] ^= bit
            if not self._nodes[load]:
                del self._nodes[load], self._loads[bisect_left(self._loads, load)]
        if capacity:
            self.usage[bit] = (used, capacity)
            load = used / capacity  # equal quotients are equal floats
            if load not in self._nodes:
                insort(self._loads, load)
                self._nodes[load] = 0
            self._nodes[load] |= bit

    def least(self, nodes: int) -> int:
        """The bit of the first of the least loaded among ``nodes``; 0 if there is none."""
        for load in self._loads:
            found = self._nodes[load] & nodes
            if found:
                return found & -found
        return 0

    def choose(self, nodes: int, holders: int, lead: int, share: float) -> int:
        """The bit of the node among ``nodes`` that a lease goes to, when ``holders`` have its environment (see Ledger);
        0 if there is none."""
        least = self.least(nodes)
        holder = 0 if least & holders else self.least(nodes & holders)
        if not holder:
            return least
        used, capacity = self.usage[holder]
        least_used, least_capacity = self.usage[least]
        bound = min(lead, max(1, int(share * capacity)))
        return holder if used * least_capacity - least_used * capacity <= bound * least_capacity else least


class Ledger:
    """Grants slots: in which order, and where.

    Order: each client's requests first come, first served; clients that wait take turns, a lease each. With a
    ``window``, a request that would have its environment unpacked gives way to the client's first one for what the node
    holds, or else, if another node holds the environment, to the first one for what no node holds; but one that came
    in more than that share of all slots later overtakes none, which bounds how often a request is. A request for
    more slots than a worker has free keeps its client's turn, and the first such reserves the worker where it will fit
    soonest, as far as can be told: that one takes nothing else until the request has found its place, there or
    elsewhere. So it waits for the leases of one worker at most, while all other workers serve the others.

    Place: on the least loaded node (share of slots in use), or on the least loaded that holds the environment, where
    that is at most ``lead`` slots ahead of the other's load, nor more ahead than ``share`` of its slots (at least one);
    there on the least loaded worker; of equals always the same one. While leases of one slot are only granted,
    equal nodes differ by at most one if all or none of them hold what is asked for, and by ``lead`` + 1 if some do.
    """

    def __init__(
        self, lead: int = LOCALITY_LEAD, share: float = LOCALITY_SHARE, window: float = LOCALITY_WINDOW
    ) -> None:
        self._lead = lead
        self._share = share
        self._window = window
        self._nodes: dict[str, Node] = {}
        self._by_bit: dict[int, Node] = {}
        self._free_bits: list[int] = []
        self._workers: dict[str, Slots] = {}
        self._sizes: Counter[int] = Counter()
        self._leases: dict[str, Request] = {}
        # Of the clients that wait, in the order of their turns.
        self._queues: OrderedDict[str, Queue] = OrderedDict()
        self._reservation: tuple[Request, Slots] | None = None
        self._held_slots: Counter[str] = Counter()
        self._retired: set[str] = set()
        # Sets of nodes: by load; with a worker that has so many slots free, or more; by environment; with a full disk.
        self._loads = Loads()
        self._room: list[int] = [0, 0]
        self._holders: dict[str, int] = {}
        self._refused = 0

    # -- what there is

    @property
    def capacity(self) -> int:
        """Slots of all workers whose node is not retired."""
        return sum(size * count for size, count in self._sizes.items())

    @property
    def largest(self) -> int:
        """Most slots on one worker whose node is not retired: a request for more waits until a larger one comes."""
        return max(self._sizes, default=0)

    @property
    def waiting(self) -> int:
        """Requests that have no slot yet."""
        return sum(len(queue.requests) for queue in self._queues.values())

    def used_by_node(self) -> dict[str, tuple[int, int]]:
        """Slots in use and slots in all, by node id; retired nodes are there until their last worker is removed."""
        return {node.node_id: (node.used, node.capacity) for node in self._nodes.values() if node.workers}

    def client_usage(self) -> dict[str, tuple[int, int]]:
        """Slots held and requests waiting, by client, of those who have either."""
        usage = {client: (held, 0) for client, held in self._held_slots.items()}
        for client, queue in self._queues.items():
            usage[client] = (self._held_slots[client], len(queue.requests))
        return usage

    def holders(self, environment: str) -> frozenset[str]:
        """Ids of the nodes where an environment is unpacked, or on its way."""
        return frozenset(self._by_bit[bit].node_id for bit in _bits(self._holders.get(environment, 0)))

    # -- nodes and their workers

    def add_worker(self, worker_id: str, node_id: str, capacity: int) -> None:
        """Count a worker's slots in. Raises ValueError for an id that is in use and for less than one slot."""
        if worker_id in self._workers or capacity < 1:
            raise ValueError(f"worker {worker_id!r} with {capacity} slots cannot be added")
        node = self._node(node_id)
        self._workers[worker_id] = node.workers[worker_id] = Slots(worker_id, node, capacity)
        node.capacity += capacity
        if not node.retired:
            self._sizes[capacity] += 1
        self._room.extend([0] * (capacity + 1 - len(self._room)))
        self._update(node)

    def remove_worker(self, worker_id: str) -> set[str]:
        """Count a worker out; returns the leases that it takes with it. Unknown is fine.

        What a node holds is remembered, as workers come back; a lost node is to be retired, besides.
        """
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return set()
        if worker.reserved:
            self._cancel_reservation()
        node = worker.node
        for lease in worker.leases.values():
            del self._leases[lease.lease_id]
            _count(self._held_slots, lease.client_id, -lease.slots)
        del node.workers[worker_id]
        node.used -= worker.used
        node.capacity -= worker.capacity
        if not node.retired:
            _count(self._sizes, worker.capacity, -1)
        self._update(node)
        self._forget_if_gone(node)
        return set(worker.leases)

    def retire_node(self, node_id: str) -> None:
        """Grant nothing more on a node, for good; its running leases stay. It is forgotten with its last worker."""
        self._retired.add(node_id)
        node = self._nodes.get(node_id)
        if node is None or node.retired:
            return
        node.retired = True
        for worker in node.workers.values():
            _count(self._sizes, worker.capacity, -1)
            if worker.reserved:
                self._cancel_reservation()
        self._update(node)
        self._forget_if_gone(node)

    def refuse_new(self, node_id: str, refused: bool) -> None:
        """Whether a node takes only leases whose environment it holds, or that need none, as its disk is full."""
        if node_id not in self._retired:
            bit = self._node(node_id).bit
            self._refused = self._refused | bit if refused else self._refused & ~bit

    def set_held(self, node_id: str, environment: str, held: bool = True) -> None:
        """Note that an environment is unpacked on a node or on its way there, or that it is not any more."""
        if node_id in self._retired and node_id not in self._nodes:
            return
        node = self._node(node_id)
        if held:
            node.environments.add(environment)
            self._holders[environment] = self._holders.get(environment, 0) | node.bit
        elif environment in node.environments:
            node.environments.remove(environment)
            self._holders[environment] ^= node.bit
            if not self._holders[environment]:
                del self._holders[environment]
                for queue in self._queues.values():
                    queue.note_unheld(environment)

    # -- leases

    def request(
        self,
        lease_id: str,
        client_id: str,
        environment: str | None = None,
        slots: int = 1,
        avoid: frozenset[str] = frozenset(),
    ) -> None:
        """Queue for slots on one worker, where one is left on none of the workers and nodes whose ids are in ``avoid``.

        Raises ValueError for an id that is in use and for less than one slot.
        """
        if lease_id in self._leases or slots < 1:
            raise ValueError(f"lease {lease_id!r} for {slots} slots cannot be requested")
        queue = self._queues.setdefault(client_id, Queue())
        request = self._leases[lease_id] = Request(lease_id, client_id, environment, slots, avoid, queue.asked + 1)
        queue.add(request)

    def give_back(self, lease_id: str) -> None:
        """Free the lease's slots, or take its request from the queue; unknown is fine."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        worker = lease.worker
        if worker is None:
            self._unqueue(lease)
            return
        del worker.leases[lease_id]
        worker.used -= lease.slots
        worker.node.used -= lease.slots
        _count(self._held_slots, lease.client_id, -lease.slots)
        self._update(worker.node)

    def grants(self) -> list[tuple[str, str]]:
        """Give free slots to those whose turn it is: (lease, worker) of each.

        A lease's environment counts as held on its node from then on, being on its way there.
        """
        granted: list[tuple[str, str]] = []
        if self._reservation:
            request, worker = self._reservation
            if not self._allowed(request, worker.node):
                self._cancel_reservation()
            elif worker.free >= request.slots:
                granted.append(self._take(request, worker))
        # Whose turn it is, but whose request fits nowhere now: they are the first ones again next time.
        passed: list[tuple[str, Queue]] = []
        while self._queues and self._room[1]:
            client_id, queue = self._queues.popitem(last=False)
            request, place = self._next(queue)
            if place is None:
                passed.append((client_id, queue))
                if request.slots > 1 and self._reservation is None:
                    self._reserve(request)
                continue
            self._queues[client_id] = queue
            if self._reservation and self._reservation[0] is request:
                self._restore_turns(passed)  # what it had reserved elsewhere may do for them now
            granted.append(self._take(request, place))
        self._restore_turns(passed)
        return granted

    def drain(self) -> list[str]:
        """Empty the queue; returns who waited."""
        waiting = [lease_id for queue in self._queues.values() for lease_id in queue.requests]
        for lease_id in waiting:
            self.give_back(lease_id)
        return waiting

    def plan(self, demand: Mapping[str, int]) -> list[tuple[str, str]]:
        """What to prefetch: the (node, environment) pairs that would be missing if so many leases of each environment,
        of one slot each, came in this order to an idle pool. What exceeds its capacity is not planned for."""
        loads, missing, nodes = Loads(), [], 0
        for bit, node in self._by_bit.items():
            if node.workers and not node.retired:
                loads.set(bit, 0, node.capacity)
                nodes |= bit
        for environment, count in demand.items():
            holders = self._holders.get(environment, 0)
            for _ in range(count):
                bit = loads.choose(nodes & ~(self._refused & ~holders), holders, self._lead, self._share)
                if not bit:
                    break
                if not bit & holders:
                    holders |= bit
                    missing.append((self._by_bit[bit].node_id, environment))
                used, capacity = loads.usage[bit]
                loads.set(bit, used + 1, capacity)
                if used + 1 == capacity:
                    nodes ^= bit
        return missing

    # -- placement

    def _next(self, queue: Queue) -> tuple[Request, Slots | None]:
        """Which of a client's requests is next, and where it goes now; None if the first one fits nowhere."""
        request = queue.first()
        place = self._place(request)
        last = request.number + int(self._window * self.capacity)
        if last == request.number or place is None or request.slots > 1 or not request.environment:
            return request, place
        node = place.node
        if request.environment in node.environments:
            return request, place
        other = queue.first_held(node.environments)
        if (other is None or other.number > last) and request.environment in self._holders:
            other = queue.first_unheld(self._holders)
        if other is None or other.number > last or node.node_id in other.avoid:
            return request, place
        worker = self._least_loaded(node, other.slots, other.avoid)
        return (other, worker) if worker else (request, place)

    def _place(self, request: Request) -> Slots | None:
        """Where a request goes now; None if it fits nowhere."""
        if request.slots >= len(self._room):
            return None
        holders = self._holders.get(request.environment, 0) if request.environment else 0
        nodes = self._room[request.slots]
        if request.environment:
            nodes &= ~self._refused | holders
        avoid = request.avoid
        if avoid:
            left = nodes & ~self._avoided(request)
            nodes, avoid = (left, avoid) if left else (nodes, frozenset())
        bit = self._loads.choose(nodes, holders, self._lead, self._share)
        if not bit:
            return None
        return self._least_loaded(self._by_bit[bit], request.slots, avoid)

    def _least_loaded(self, node: Node, slots: int, avoid: frozenset[str]) -> Slots | None:
        """Of a node's workers that have so many slots free, but for those to avoid."""
        workers = [
            worker
            for worker in node.workers.values()
            if worker.capacity - worker.used >= slots and not worker.reserved and worker.worker_id not in avoid
        ]
        return min(workers, key=lambda worker: worker.used / worker.capacity, default=None)

    def _avoided(self, request: Request) -> int:
        """The nodes that are avoided, or have room on avoided workers only."""
        avoided = 0
        for avoid in request.avoid:
            if avoid in self._nodes:
                avoided |= self._nodes[avoid].bit
            elif avoid in self._workers:
                node = self._workers[avoid].node
                if not self._least_loaded(node, request.slots, request.avoid):
                    avoided |= node.bit
        return avoided

    def _take(self, request: Request, worker: Slots) -> tuple[str, str]:
        """Give a worker's slots to a request; its client's next turn comes after everybody else's."""
        self._unqueue(request)
        if request.client_id in self._queues:
            self._queues.move_to_end(request.client_id)
        request.worker = worker
        worker.leases[request.lease_id] = request
        worker.used += request.slots
        worker.node.used += request.slots
        _count(self._held_slots, request.client_id, request.slots)
        self._update(worker.node)
        if request.environment:
            self.set_held(worker.node.node_id, request.environment)
        return request.lease_id, worker.worker_id

    def _unqueue(self, request: Request) -> None:
        if self._reservation and self._reservation[0] is request:
            self._cancel_reservation()
        queue = self._queues[request.client_id]
        queue.remove(request)
        if not queue.requests:
            del self._queues[request.client_id]

    def _restore_turns(self, passed: list[tuple[str, Queue]]) -> None:
        while passed:
            client_id, queue = passed.pop()
            self._queues[client_id] = queue
            self._queues.move_to_end(client_id, last=False)

    def _reserve(self, request: Request) -> None:
        """Keep the worker that has most slots free of those that are large enough; all workers are looked at."""
        if request.slots > self.largest:
            return
        able = [
            worker
            for worker in self._workers.values()
            if worker.capacity >= request.slots and self._allowed(request, worker.node)
        ]
        able = [worker for worker in able if not request.avoid & {worker.worker_id, worker.node.node_id}] or able
        worker = max(able, key=lambda worker: worker.free, default=None)
        if worker:
            worker.reserved = True
            self._reservation = (request, worker)
            self._update(worker.node)

    def _cancel_reservation(self) -> None:
        if self._reservation:
            worker = self._reservation[1]
            self._reservation = None
            worker.reserved = False
            self._update(worker.node)

    def _allowed(self, request: Request, node: Node) -> bool:
        refused = self._refused & node.bit and request.environment and request.environment not in node.environments
        return not node.retired and not refused

    # -- sets of nodes

    def _node(self, node_id: str) -> Node:
        """A node's record, made when there is none."""
        node = self._nodes.get(node_id)
        if node is None:
            bit = heapq.heappop(self._free_bits) if self._free_bits else 1 << len(self._by_bit)
            node = Node(node_id, bit, retired=node_id in self._retired)
            self._nodes[node_id] = self._by_bit[bit] = node
        return node

    def _forget_if_gone(self, node: Node) -> None:
        if node.retired and not node.workers:
            self._refused &= ~node.bit
            for environment in list(node.environments):
                self.set_held(node.node_id, environment, False)
            del self._nodes[node.node_id], self._by_bit[node.bit]
            heapq.heappush(self._free_bits, node.bit)

    def _update(self, node: Node) -> None:
        """Sort a node in after its workers, or what they use, have changed."""
        self._loads.set(node.bit, node.used, node.capacity)
        room = 0
        if not node.retired:
            for worker in node.workers.values():
                free = worker.capacity - worker.used
                if free > room and not worker.reserved:
                    room = free
        for slots in range(min(room, node.room) + 1, max(room, node.room) + 1):
            self._room[slots] ^= node.bit
        node.room = room


def _bits(nodes: int) -> Iterator[int]:
    while nodes:
        bit = nodes & -nodes
        nodes ^= bit
        yield bit


def _count[Key](counter: Counter[Key], key: Key, change: int) -> None:
    """Add to a count, and leave out what has come to 0."""
    counter[key] += change
    if not counter[key]:
        del counter[key]

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest

from minisandbox_ray.cluster.ledger import LOCALITY_LEAD, LOCALITY_SHARE, Ledger


def make(*workers: tuple[str, str, int], lead: int = LOCALITY_LEAD) -> Ledger:
    ledger = Ledger(lead)
    for worker_id, node_id, capacity in workers:
        ledger.add_worker(worker_id, node_id, capacity)
    return ledger


def take(
    ledger: Ledger, leases: str | list[str], environment: str | None = None, client: str = "c", **more: object
) -> list[tuple[str, str]]:
    for lease_id in leases:
        ledger.request(lease_id, client, environment, **more)  # type: ignore[arg-type]
    return ledger.grants()


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def used(ledger: Ledger) -> list[int]:
    return [used for used, _ in ledger.used_by_node().values()]


# -- balance


def test_equal_nodes_differ_by_at_most_one() -> None:
    ledger = make(*((f"{node}{worker}", node, 3) for node in "abcd" for worker in "12"))
    for lease_id in names("l", 24):
        take(ledger, [lease_id])
        assert max(used(ledger)) - min(used(ledger)) <= 1
    assert used(ledger) == [6, 6, 6, 6]


def test_equal_nodes_differ_by_at_most_one_when_all_hold_the_environment() -> None:
    ledger = make(*((node, node, 40) for node in "abcd"))
    for node in "abcd":
        ledger.set_held(node, "env")
    for lease_id in names("l", 160):
        take(ledger, [lease_id], "env")
        assert max(used(ledger)) - min(used(ledger)) <= 1


def test_unequal_nodes_fill_in_proportion() -> None:
    ledger = make(("small", "a", 4), ("large", "b", 12))
    take(ledger, names("l", 8))
    assert ledger.used_by_node() == {"a": (2, 4), "b": (6, 12)}


def test_workers_of_a_node_fill_in_proportion() -> None:
    ledger = make(("small", "a", 2), ("large", "a", 6))
    assert Counter(worker for _, worker in take(ledger, names("l", 4))) == {"small": 1, "large": 3}


# -- locality


def test_holders_are_ahead_by_the_lead_at_most() -> None:
    ledger = make(*((node, node, 40) for node in "abc"), lead=5)
    ledger.set_held("b", "env")
    take(ledger, names("l", 6), "env")
    assert used(ledger) == [0, 6, 0]
    assert ledger.holders("env") == {"b"}
    take(ledger, ["more"], "env")
    assert used(ledger) == [1, 6, 0]
    assert ledger.holders("env") == {"a", "b"}  # on its way to a
    for number in range(113):
        take(ledger, [f"m{number}"], "env")
        assert max(used(ledger)) - min(used(ledger)) <= 6


def test_without_a_lead_locality_only_decides_between_equals() -> None:
    ledger = make(*((node, node, 40) for node in "abc"), lead=0)
    ledger.set_held("c", "env")
    take(ledger, ["l0"], "env")
    assert used(ledger) == [0, 0, 1]
    take(ledger, ["l1"], "env")
    assert used(ledger) == [1, 0, 1]


def test_small_nodes_are_ahead_by_a_share_at_most() -> None:
    ledger = make(("v", "a", 8), ("w", "b", 8))
    ledger.set_held("b", "env")
    take(ledger, names("l", 5), "env")
    assert used(ledger) == [2, 3]


def test_an_environment_that_is_gone_attracts_nothing() -> None:
    ledger = make(("v", "a", 8), ("w", "b", 8))
    ledger.set_held("b", "env")
    ledger.set_held("b", "env", False)
    ledger.set_held("b", "never there", False)
    assert ledger.holders("env") == frozenset()
    assert take(ledger, ["l"], "env") == [("l", "v")]


def test_groups_share_unpacks() -> None:
    """Eight rollouts of each of 40 tasks on 10 nodes: with a lead of 8 each environment goes to one node or two."""
    unpacks = {}
    for lead in (0, 8):
        ledger = make(*((f"n{number}", f"n{number}", 64) for number in range(10)), lead=lead)
        for task in range(40):
            take(ledger, names(f"t{task}-", 8), f"env{task}")
        unpacks[lead] = sum(len(ledger.holders(f"env{task}")) for task in range(40))
    assert unpacks[8] <= 80
    assert unpacks[0] > 3 * unpacks[8]


# -- order


def test_first_come_first_served() -> None:
    ledger = make(("w", "a", 1))
    assert take(ledger, "0123") == [("0", "w")]
    ledger.give_back("2")  # leaves the queue
    served = []
    for holder in "01":
        ledger.give_back(holder)
        served += ledger.grants()
    assert served == [("1", "w"), ("3", "w")]


def test_clients_take_turns() -> None:
    ledger = make(("w", "a", 4))
    take(ledger, names("many", 1000), client="many")
    take(ledger, names("few", 3), client="few")
    assert ledger.client_usage() == {"many": (4, 996), "few": (0, 3)}
    served = []
    for holder in [*names("many", 4), "few0", "many4"]:
        ledger.give_back(holder)
        served += [lease for lease, _ in ledger.grants()]
    assert served == ["many4", "few0", "many5", "few1", "many6", "few2"]
    assert ledger.client_usage() == {"many": (2, 993), "few": (2, 0)}


def test_clients_that_wait_get_equal_shares() -> None:
    """Whatever ends when: between two times at which both wait, no client gets two leases more than another."""
    generator = random.Random(3)
    ledger = make(*((f"w{number}", f"n{number}", 5) for number in range(4)))
    for client in "abc":
        take(ledger, names(client, 200), client=client)
    running = [f"a{number}" for number in range(20)]  # a was there alone
    served: Counter[str] = Counter()
    for _ in range(400):
        for _ in range(generator.randrange(1, 4)):
            ledger.give_back(running.pop(generator.randrange(len(running))))
        new = [lease for lease, _ in ledger.grants()]
        running += new
        served.update(lease[0] for lease in new)
        if served["a"] >= 179:
            break
        assert max(served.values()) - min(served[client] for client in "abc") <= 1
    assert sum(served.values()) > 500


def test_drain_empties_the_queue() -> None:
    ledger = make(("w", "a", 1))
    take(ledger, "012")
    assert ledger.waiting == 2
    assert ledger.drain() == ["1", "2"]
    assert (ledger.waiting, ledger.drain(), ledger.client_usage()) == (0, [], {"c": (1, 0)})


@pytest.mark.parametrize("slots", [1, 0])
def test_an_id_is_used_once_and_slots_are_positive(slots: int) -> None:
    ledger = make(("w", "a", 1))
    take(ledger, "0")
    with pytest.raises(ValueError):
        ledger.request("0" if slots else "1", "c", slots=slots)
    with pytest.raises(ValueError):
        ledger.add_worker("w" if slots else "v", "a", slots)


def test_within_a_window_what_a_node_holds_comes_first() -> None:
    """Groups of 4 for 4 tasks on full nodes: each task is unpacked once, and nobody is overtaken too often."""
    requests = [f"{task}{number}" for task in "abcd" for number in range(4)]
    for window, unpacks in ((0.0, 16), (0.75, 4)):
        ledger = Ledger(window=window)
        for node in names("n", 4):
            ledger.add_worker(node, node, 4)
        take(ledger, names("old", 16), client="old")
        for lease_id in requests:
            ledger.request(lease_id, "c", f"env-{lease_id[0]}")
        order = []
        for holder in names("old", 16):  # spread over the nodes: each frees a slot in turn
            ledger.give_back(holder)
            order += [lease for lease, _ in ledger.grants()]
        assert sorted(order) == requests
        assert sum(len(ledger.holders(f"env-{task}")) for task in "abcd") == unpacks
        for place, lease in enumerate(order):
            overtaken_by = [other for other in order[:place] if requests.index(other) > requests.index(lease)]
            assert len(overtaken_by) <= window * 16


# -- requests for several slots


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """Small requests without end, of its own client and of others: it waits for the leases of one worker."""
    ledger = make(("v", "a", 4), ("w", "b", 4))
    take(ledger, names("s", 8), client="small")
    take(ledger, ["large"], client="large", slots=3)
    take(ledger, names("l", 50), client="large")
    take(ledger, names("t", 50), client="small")
    running = names("s", 8)
    for _ in range(8):
        ledger.give_back(running.pop(0))
        running += [lease for lease, _ in ledger.grants()]
        if "large" in running:
            break
    assert "large" in running
    assert sum(used(ledger)) == 8
    ledger.give_back(running.pop(0))
    assert len(ledger.grants()) == 1  # nothing stays reserved


def test_other_workers_serve_others_meanwhile() -> None:
    ledger = make(("v", "a", 2), ("w", "b", 2))
    take(ledger, "0123", client="small")
    take(ledger, ["large"], client="large", slots=2)
    take(ledger, "4567", client="small")
    ledger.give_back("0")  # on v, which is reserved from now on
    assert ledger.grants() == []
    ledger.give_back("1")
    assert ledger.grants() == [("4", "w")]
    ledger.give_back("2")
    assert ledger.grants() == [("large", "v")]


@pytest.mark.parametrize("how", ["give back", "remove", "retire", "refuse"])
def test_a_reservation_ends(how: str) -> None:
    ledger = make(("v", "a", 2), ("w", "b", 2))
    take(ledger, "0123", client="small")
    take(ledger, ["large"], "env", client="large", slots=2)
    take(ledger, "45", client="small")
    ledger.give_back("0")
    assert ledger.grants() == []  # v is reserved
    if how == "give back":
        ledger.give_back("large")
        assert ledger.grants() == [("4", "v")]
        return
    if how == "remove":
        assert ledger.remove_worker("v") == {"2"}
    elif how == "retire":
        ledger.retire_node("a")
    else:
        ledger.refuse_new("a", True)
        assert ledger.grants() == [("4", "v")]
    ledger.give_back("1")
    ledger.grants()
    ledger.give_back("3")
    assert ("large", "w") in ledger.grants()


def test_a_request_larger_than_any_worker_waits_for_a_larger_one() -> None:
    ledger = make(("v", "a", 2))
    assert ledger.largest == 2
    assert take(ledger, ["large"], client="large", slots=3) == []
    assert take(ledger, "01", client="small") == [("0", "v"), ("1", "v")]
    ledger.add_worker("w", "a", 3)
    assert ledger.largest == 3
    assert ledger.grants() == [("large", "w")]


# -- workers and nodes come and go


def test_avoided_worker_is_used_when_it_is_the_only_one() -> None:
    ledger = make(("v", "a", 1), ("w", "b", 1))
    assert take(ledger, "01", avoid=frozenset({"v"})) == [("0", "w"), ("1", "v")]


def test_avoided_node_is_used_when_it_is_the_only_one() -> None:
    ledger = make(("u", "a", 1), ("v", "a", 1), ("w", "b", 1))
    ledger.set_held("a", "env")
    granted = take(ledger, "012", "env", avoid=frozenset({"a", "gone"}))
    assert granted == [("0", "w"), ("1", "u"), ("2", "v")]


def test_avoided_worker_does_not_exclude_its_node() -> None:
    ledger = make(("u", "a", 4), ("v", "a", 4), ("w", "b", 8))
    ledger.set_held("a", "env")
    granted = take(ledger, "012", "env", avoid=frozenset({"u"}))
    assert [worker for _, worker in granted] == ["v", "v", "v"]


def test_removed_worker_takes_its_leases() -> None:
    ledger = make(("v", "a", 2), ("w", "b", 2))
    granted = dict(take(ledger, "01234"))
    assert ledger.remove_worker("v") == {lease for lease, worker in granted.items() if worker == "v"}
    assert ledger.remove_worker("v") == set()
    assert ledger.capacity == 2
    assert ledger.grants() == []
    ledger.give_back(next(lease for lease, worker in granted.items() if worker == "w"))
    assert ledger.grants() == [("4", "w")]


def test_what_a_node_holds_outlives_its_workers_but_not_the_node() -> None:
    ledger = make(("v", "a", 2), ("w", "b", 2))
    ledger.set_held("b", "env")
    ledger.remove_worker("w")
    assert ledger.used_by_node() == {"a": (0, 2)}
    ledger.add_worker("x", "b", 2)
    assert take(ledger, ["l"], "env") == [("l", "x")]
    ledger.remove_worker("x")
    ledger.retire_node("b")
    assert ledger.holders("env") == frozenset()
    ledger.set_held("b", "env")  # too late
    assert ledger.holders("env") == frozenset()


def test_retired_node_gets_no_leases_and_keeps_its_own() -> None:
    ledger = make(("v", "a", 2), ("w", "b", 4))
    take(ledger, "01")
    ledger.retire_node("b")
    assert (ledger.capacity, ledger.largest) == (2, 2)
    assert [worker for _, worker in take(ledger, "2345")] == ["v"]
    assert ledger.used_by_node() == {"a": (2, 2), "b": (1, 4)}
    ledger.add_worker("x", "b", 4)
    assert ledger.grants() == []
    assert ledger.remove_worker("w") == {"1"}
    ledger.remove_worker("x")
    assert ledger.used_by_node() == {"a": (2, 2)}
    ledger.retire_node("unknown")


def test_a_full_disk_takes_only_what_needs_no_more() -> None:
    ledger = make(("v", "a", 4), ("w", "b", 1))
    ledger.set_held("a", "old")
    ledger.refuse_new("a", True)
    assert take(ledger, "0", "new") == [("0", "w")]
    assert take(ledger, "1", "new") == []
    assert take(ledger, "2", "old", client="d") == [("2", "v")]
    assert take(ledger, "3", None, client="d") == [("3", "v")]
    ledger.refuse_new("a", False)
    assert ledger.grants() == [("1", "v")]


# -- prefetch


def test_plan_is_what_leases_would_miss() -> None:
    generator = random.Random(5)
    for _ in range(20):
        ledgers = [Ledger(), Ledger()]
        nodes = names("n", generator.randrange(1, 8))
        capacities = {node: generator.choice([4, 32]) for node in nodes}
        held = [(generator.choice(nodes), f"e{generator.randrange(6)}") for _ in range(8)]
        refused = generator.choice(nodes)
        demand = {f"e{number}": generator.randrange(20) for number in range(6)}
        for ledger in ledgers:
            for node in nodes:
                ledger.add_worker(f"w{node}", node, capacities[node])
            for node, environment in held:
                ledger.set_held(node, environment)
            ledger.refuse_new(refused, True)
        planned = ledgers[0].plan(demand)
        before = {environment: ledgers[1].holders(environment) for environment in demand}
        for environment, count in demand.items():
            take(ledgers[1], names(environment, count), environment, client=environment)
        missed = {(node, env) for env in demand for node in ledgers[1].holders(env) - before[env]}
        assert set(planned) == missed
        assert len(planned) == len(missed)
        assert all(ledgers[0].holders(environment) == before[environment] for environment in demand)
    assert Ledger().plan({"e": 3}) == []


# -- against models


@dataclass
class Model:
    """The policy again, for leases of one slot, by looking at everything each time."""

    lead: int
    window: float = 0.0
    workers: dict[str, tuple[str, int]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    held: set[tuple[str, str]] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    queues: dict[str, list[tuple[str, str | None, frozenset[str]]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    running: dict[str, str] = field(default_factory=dict)

    def used(self, worker: str) -> int:
        return sum(holder == worker for holder in self.running.values())

    def load(self, node: str) -> tuple[int, int]:
        mine = [worker for worker, (place, _) in self.workers.items() if place == node]
        return sum(map(self.used, mine)), sum(self.workers[worker][1] for worker in mine)

    def place(self, environment: str | None, avoid: frozenset[str]) -> str | None:
        def takes(node: str) -> bool:
            full = node in self.refused and environment is not None and (node, environment) not in self.held
            return node not in self.retired and not full

        free = [w for w, (node, capacity) in self.workers.items() if takes(node) and self.used(w) < capacity]
        free = [w for w in free if w not in avoid and self.workers[w][0] not in avoid] or free
        if not free:
            return None

        def share(node: str) -> float:
            used, capacity = self.load(node)
            return used / capacity

        nodes = sorted({self.workers[worker][0] for worker in free}, key=self.order.index)
        least = min(nodes, key=share)
        holder = min((node for node in nodes if (node, environment) in self.held), key=share, default=least)
        used, capacity = self.load(holder)
        if used - share(least) * capacity > min(self.lead, max(1, int(capacity * LOCALITY_SHARE))) + 1e-9:
            holder = least
        return min(
            (worker for worker in free if self.workers[worker][0] == holder),
            key=lambda worker: self.used(worker) / self.workers[worker][1],
        )

    def next(
        self, client: str, queue: list[tuple[str, str | None, frozenset[str]]]
    ) -> tuple[tuple[str, str | None, frozenset[str]], str | None]:
        head = queue[0]
        worker = self.place(head[1], head[2])
        if worker is None or head[1] is None:
            return head, worker
        node = self.workers[worker][0]
        if (node, head[1]) in self.held:
            return head, worker
        slots = sum(capacity for place, capacity in self.workers.values() if place not in self.retired)
        mine = [lease for lease in self.asked if lease.startswith(client)]
        allowed = mine[: mine.index(head[0]) + int(self.window * slots) + 1]
        near = [entry for entry in queue if entry[0] in allowed and entry[1] is not None]
        held_somewhere = {environment for _, environment in self.held}
        others = [entry for entry in near if (node, entry[1]) in self.held]
        if head[1] in held_somewhere:
            others = others or [entry for entry in near if entry[1] not in held_somewhere]
        for entry in others[:1]:
            free = [w for w, (place, size) in self.workers.items() if place == node and self.used(w) < size]
            free = [w for w in free if w not in entry[2] and node not in entry[2]]
            if free:
                return entry, min(free, key=lambda w: self.used(w) / self.workers[w][1])
        return head, worker

    def grants(self) -> list[tuple[str, str]]:
        granted = []
        progress = True
        while progress:
            progress = False
            for client, queue in list(self.queues.items()):
                (lease, environment, _), worker = self.next(client, queue)
                if worker is None:
                    continue
                self.running[lease] = worker
                if environment is not None:
                    self.held.add((self.workers[worker][0], environment))
                del self.queues[client]
                if queue[1:]:
                    self.queues[client] = [entry for entry in queue if entry[0] != lease]
                granted.append((lease, worker))
                progress = True
                break
        return granted

    def end(self, lease: str) -> None:
        self.running.pop(lease, None)
        queues = {client: [entry for entry in queue if entry[0] != lease] for client, queue in self.queues.items()}
        self.queues = {client: queue for client, queue in queues.items() if queue}


@pytest.mark.parametrize("seed", range(12))
def test_random_operations_agree_with_a_model_that_looks_at_everything(seed: int) -> None:
    generator = random.Random(seed)
    lead, window = generator.choice([0, 1, 3, 8]), [0.0, 0.0, 0.2, 0.5][seed % 4]
    ledger, model = Ledger(lead, window=window), Model(lead, window)
    nodes, environments, clients = names("n", 6), [None, *names("e", 5)], names("c", 3)
    # All nodes are there from the start, so that who came first is known; spares only keep them in that order.
    for node in nodes:
        ledger.set_held(node, "always")
        model.order.append(node)
        model.held.add((node, "always"))
    total = 0
    for step in range(1200):
        node, worker = generator.choice(nodes), f"w{generator.randrange(10)}"
        action = generator.choices(
            ["request", "end", "add", "remove", "refuse", "held", "drain", "retire"], [50, 40, 8, 2, 2, 4, 0.2, 0.1]
        )[0]
        if action == "request":
            client = generator.choices(clients, [8, 2, 1])[0]
            avoid = frozenset({worker, node} if step % 5 == 0 else ())
            entry = (f"{client}-{step}", generator.choice(environments), avoid)
            if client not in model.queues:
                model.asked = [lease for lease in model.asked if not lease.startswith(client)]
            model.asked.append(entry[0])
            ledger.request(entry[0], client, entry[1], avoid=entry[2])
            model.queues.setdefault(client, []).append(entry)
        elif action == "end":
            known = [*model.running, *(entry[0] for queue in model.queues.values() for entry in queue)]
            lease = generator.choice([*known, "unknown"])
            ledger.give_back(lease)
            model.end(lease)
        elif action == "add" and worker not in model.workers:
            capacity = generator.choice([1, 4, 4, 12])
            ledger.add_worker(worker, node, capacity)
            model.workers[worker] = (node, capacity)
        elif action == "remove":
            lost = {lease for lease, holder in model.running.items() if holder == worker}
            assert ledger.remove_worker(worker) == lost
            model.workers.pop(worker, None)
            for lease in lost:
                del model.running[lease]
        elif action == "refuse":
            refused = generator.random() < 0.5
            ledger.refuse_new(node, refused)
            (model.refused.add if refused else model.refused.discard)(node)
        elif action == "held":
            environment = generator.choice(environments[1:])
            held = generator.random() < 0.5
            ledger.set_held(node, environment or "", held)
            (model.held.add if held else model.held.discard)((node, environment or ""))
        elif action == "drain":
            drained = ledger.drain()
            assert drained == [entry[0] for queue in model.queues.values() for entry in queue]
            model.queues = {}
        elif action == "retire" and any(place == node for place, _ in model.workers.values()):
            ledger.retire_node(node)
            model.retired.add(node)
        granted = model.grants()
        assert ledger.grants() == granted
        total += len(granted)
        placed = {place for place, _ in model.workers.values()}
        assert ledger.used_by_node() == {place: model.load(place) for place in placed}
        assert ledger.waiting == sum(map(len, model.queues.values()))
        open_sizes = [size for place, size in model.workers.values() if place not in model.retired]
        assert (ledger.capacity, ledger.largest) == (sum(open_sizes), max(open_sizes, default=0))
    assert total > 200


@pytest.mark.parametrize("seed", range(6))
def test_random_requests_for_several_slots(seed: int) -> None:
    """No slot is lost or granted twice, nobody is overtaken within a client, nothing waits beside free slots that are
    not kept for somebody, and in the end everybody was served."""
    generator = random.Random(seed)
    ledger = Ledger(window=0.0)
    workers: dict[str, tuple[str, int]] = {}
    running: dict[str, tuple[str, int]] = {}
    waiting: dict[str, list[tuple[str, int]]] = defaultdict(list)

    def add_worker(number: int) -> None:
        workers[f"w{number}"] = (f"n{number % 4}", generator.choice([4, 6, 8]))
        ledger.add_worker(f"w{number}", *workers[f"w{number}"])

    def free(worker: str) -> int:
        return workers[worker][1] - sum(slots for holder, slots in running.values() if holder == worker)

    def grant() -> None:
        for lease, worker in ledger.grants():
            client = next(client for client, queue in waiting.items() if queue and queue[0][0] == lease)
            running[lease] = (worker, waiting[client].pop(0)[1])
            assert free(worker) >= 0
        usage: dict[str, tuple[int, int]] = {}
        for worker, (node, capacity) in workers.items():
            used, slots = usage.get(node, (0, 0))
            usage[node] = (used + capacity - free(worker), slots + capacity)
        assert ledger.used_by_node() == usage
        assert sum(held for held, _ in ledger.client_usage().values()) == sum(used for used, _ in usage.values())
        heads = [queue[0][1] for queue in waiting.values() if queue]
        if heads:
            # One worker at most is kept, and for a request of several slots only.
            idle = sorted((free(worker) for worker in workers), reverse=True)[1 if max(heads) > 1 else 0 :]
            assert max(idle) < min(heads)

    for number in range(8):
        add_worker(number)
    for step in range(1500):
        action = generator.choices(["request", "end", "cancel", "lose"], [50, 45, 2, 1])[0]
        if action == "request":
            client, slots = f"c{generator.randrange(3)}", generator.choices([1, 2, 4], [8, 2, 1])[0]
            ledger.request(f"l{step}", client, f"e{generator.randrange(9)}", slots)
            waiting[client].append((f"l{step}", slots))
        elif action == "end" and running:
            lease = generator.choice(list(running))
            ledger.give_back(lease)
            del running[lease]
        elif action == "cancel":
            client = f"c{generator.randrange(3)}"
            if waiting[client]:
                ledger.give_back(waiting[client].pop(generator.randrange(len(waiting[client])))[0])
        elif action == "lose":
            number = generator.randrange(8)
            lost = {lease for lease, (worker, _) in running.items() if worker == f"w{number}"}
            assert ledger.remove_worker(f"w{number}") == lost
            for lease in lost:
                del running[lease]
            add_worker(number)
        grant()
    for _ in range(5000):
        if not running:
            break
        lease = generator.choice(list(running))
        ledger.give_back(lease)
        del running[lease]
        grant()
    assert not running
    assert not any(waiting.values())
    assert (ledger.waiting, ledger.client_usage()) == (0, {})
    assert all(used == 0 for used, _ in ledger.used_by_node().values())

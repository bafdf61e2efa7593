from minisandbox_ray.cluster.ledger import Ledger


def make(*workers: tuple[str, str, int]) -> Ledger:
    ledger = Ledger()
    for worker_id, node_id, capacity in workers:
        ledger.add_worker(worker_id, node_id, capacity)
    return ledger


def take(ledger: Ledger, leases: range, avoid: frozenset[str] = frozenset()) -> list[tuple[int, str]]:
    for lease_id in leases:
        ledger.request(lease_id, avoid)
    return ledger.grants()


def test_equal_nodes_differ_by_at_most_one() -> None:
    ledger = make(*((f"{node}{worker}", node, 3) for node in "abcd" for worker in "12"))
    for lease_id in range(24):
        take(ledger, range(lease_id, lease_id + 1))
        used = [used for used, _ in ledger.used_by_node().values()]
        assert max(used) - min(used) <= 1
    assert used == [6, 6, 6, 6]


def test_unequal_nodes_fill_in_proportion() -> None:
    ledger = make(("small", "a", 4), ("large", "b", 12))
    take(ledger, range(8))
    assert ledger.used_by_node() == {"a": (2, 4), "b": (6, 12)}


def test_first_come_first_served() -> None:
    ledger = make(("w", "a", 1))
    assert take(ledger, range(4)) == [(0, "w")]
    ledger.give_back(2)  # leaves the queue
    served = []
    for holder in (0, 1):
        ledger.give_back(holder)
        served += ledger.grants()
    assert served == [(1, "w"), (3, "w")]


def test_avoided_worker_is_used_when_it_is_the_only_one() -> None:
    ledger = make(("v", "a", 1), ("w", "b", 1))
    assert take(ledger, range(2), avoid=frozenset({"v"})) == [(0, "w"), (1, "v")]


def test_removed_worker_takes_its_leases() -> None:
    ledger = make(("v", "a", 2), ("w", "b", 2))
    granted = dict(take(ledger, range(5)))
    assert ledger.remove_worker("v") == {lease for lease, worker in granted.items() if worker == "v"}
    assert ledger.capacity == 2
    assert ledger.grants() == []
    ledger.give_back(next(lease for lease, worker in granted.items() if worker == "w"))
    assert ledger.grants() == [(4, "w")]

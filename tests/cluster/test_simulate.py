"""The simulator loses no rollout, and what is better by construction comes out better."""

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VERIFIED = ROOT.parent / "shared" / "data" / "swe_bench_verified.parquet"
ACTUAL = ("us_per_grant", "plan_ms")  # measured, not simulated


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import simulate

    yield simulate
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The figures of a quick run."""
    file = tmp_path_factory.mktemp("simulate") / "figures.json"
    command = [sys.executable, "benchmarks/simulate.py", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    assert "GB" in done.stdout
    return json.loads(file.read_text(), parse_constant=pytest.fail)["runs"]


def pick(runs: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    (run,) = [run for run in runs if all(run[name] == value for name, value in wanted.items())]
    return run


def test_rollouts_are_conserved(quick: list[dict[str, Any]]) -> None:
    assert len(quick) == 19
    for run in quick:
        assert run["asked"] == run["finished"] + run["replays"] + run["not_finished"]
        assert run["finished"] <= run["granted"] <= run["asked"]
        assert 0 < run["utilisation"] <= 1
        if run["synchronous"]:
            assert run["not_finished"] == 0
            assert run["finished"] == 2 * 64 * 32 * 0.75
            assert run["slot_wait_p99_s"] == 0  # there are more slots than rollouts


def test_a_lead_of_a_group_unpacks_once_for_it(quick: list[dict[str, Any]]) -> None:
    for own in (True, False):
        gb = [
            pick(quick, synchronous=True, own=own, lead=lead, prefetch=False)["gb_per_rollout"]
            for lead in (0, 1, 8, None)
        ]
        assert gb[0] > 1.5 * gb[1] > 3 * gb[2]
        assert gb[2] >= gb[3]
    # 192 tasks a step, and what was lost with a node.
    run = pick(quick, synchronous=True, own=True, lead=8, prefetch=False)
    assert 2 * 192 <= run["unpacks"] <= 2 * 192 + run["replays"] + 192 // 8


def test_the_lead_bounds_the_spread(quick: list[dict[str, Any]]) -> None:
    for own in (True, False):
        for lead in (0, 1, 8):
            assert pick(quick, synchronous=True, own=own, lead=lead, prefetch=False)["spread_slots"] <= lead + 1


def test_prefetch_makes_resets_warm(quick: list[dict[str, Any]]) -> None:
    for lead in (0, 1, 8, None):
        cold = pick(quick, synchronous=True, own=True, lead=lead, prefetch=False)
        warm = pick(quick, synchronous=True, own=True, lead=lead, prefetch=True)
        assert cold["ready_p50_s"] > 1
        assert warm["ready_p50_s"] == pytest.approx(0.01)  # a sandbox's start
        assert warm["step_minutes"] <= cold["step_minutes"]


def test_a_window_saves_unpacks_where_requests_always_wait(quick: list[dict[str, Any]]) -> None:
    for own in (True, False):
        strict = pick(quick, synchronous=False, own=own, window=0, prefetch=False)
        window = pick(quick, synchronous=False, own=own, window=0.25, prefetch=False)
        assert window["gb_per_rollout"] < strict["gb_per_rollout"] / 3
        assert window["utilisation"] > strict["utilisation"]
        assert strict["spread_slots"] <= 1  # no slot is free while somebody waits


@pytest.mark.parametrize("synchronous", [True, False])
def test_lost_nodes_cost_no_rollout_and_a_seed_decides_all(simulate: Any, synchronous: bool) -> None:
    settings = simulate.Settings(nodes=16, slots=16, worker_slots=4, synchronous=synchronous, own=True, mtbf_hours=1)
    runs = []
    for seed in (1, 1, 2):
        simulation = simulate.Simulation(replace(settings, seed=seed))
        run = simulation.run()
        assert run["failures"] > 0 and run["replays"] > 0
        assert run["asked"] == run["finished"] + run["replays"] + run["not_finished"]
        used = sum(used for used, _ in simulation.ledger.used_by_node().values())
        assert used == run["granted"] - run["finished"] - run["replays"]
        assert run["asked"] - run["granted"] == simulation.ledger.waiting
        runs.append({name: value for name, value in run.items() if name not in ACTUAL})
    assert runs[0] == runs[1] != runs[2]


def test_a_small_store_evicts_and_keeps_what_is_in_use(simulate: Any) -> None:
    settings = simulate.Settings(nodes=8, slots=16, worker_slots=4, synchronous=False, own=True, store_gb=12)
    run = simulate.Simulation(settings).run()
    assert run["evictions"] > 0
    assert run["refusals"] > 0  # 16 sandboxes may need more than 12 GB
    assert run["finished"] == 8 * 16 * 5 // 4


def test_transfers_share_the_storage(simulate: Any) -> None:
    """2 GB/s for all, 1 GB/s for each: one of 3 GB alone for a second, then with three more of 1 GB."""
    storage, ends = simulate.Storage(2.0, 1.0), []
    storage.add(0.0, 3.0, lambda: ends.append("large"))
    assert storage.next_end() == 3.0
    for number in range(3):
        storage.add(1.0, 1.0, lambda number=number: ends.append(number))
    times = []
    while not math.isinf(storage.next_end()):
        times.append(storage.next_end())
        storage.end_first(times[-1])
    assert times == [3.0, 3.0, 3.0, 4.0]  # half a GB/s each, then one that has 1 GB left
    assert ends == [0, 1, 2, "large"]


def test_popularity_is_that_of_swe_bench_verified(simulate: Any) -> None:
    assert sum(simulate.VERIFIED) == 500
    if not VERIFIED.exists():
        pytest.skip("needs ../shared/data/swe_bench_verified.parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(VERIFIED, columns=["repo", "version"]).to_pylist()
    counts = Counter((row["repo"], row["version"]) for row in rows)
    assert sorted(counts.values(), reverse=True) == list(simulate.VERIFIED)

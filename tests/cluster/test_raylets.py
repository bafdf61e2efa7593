"""Pools on several raylets of this machine, in processes of their own: see raylets.py and started.py."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@contextmanager
def seen_by(script: str) -> Iterator[dict[str, Any]]:
    directory = Path(tempfile.mkdtemp(prefix="msr-test-"))
    (directory / "cache" / "archives").mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "RAY_TMPDIR": str(directory),
        "MINISANDBOX_CACHE": str(directory / "cache"),
    }
    command = [sys.executable, str(Path(__file__).with_name(script))]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=900, check=False, env=environment, cwd=directory
        )
        assert run.returncode == 0, run.stderr[-3000:]
        yield json.loads(run.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def raylets() -> Iterator[dict[str, Any]]:
    """What raylets.py saw."""
    with seen_by("raylets.py") as results:
        yield results


@pytest.fixture(scope="module")
def started() -> Iterator[dict[str, Any]]:
    """What started.py saw."""
    with seen_by("started.py") as results:
        assert not [name for name in results if name.endswith("_failed")], results
        yield results


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: hides directories from a node by mounts")


# -- placement


def test_node_without_unpack_slots_stops_with_one_line(raylets: dict[str, Any]) -> None:
    assert """ray start --resources='{"unpack_slots": 4}'""" in raylets["without_slots"]
    assert "1 of 3 nodes" in raylets["without_slots"]


def test_leases_differ_by_at_most_one_between_nodes(raylets: dict[str, Any]) -> None:
    assert raylets["capacity"] == 128
    assert all(spread[-1] - spread[0] <= 1 for spread in raylets["steps"])
    assert raylets["none_holds"] == [16] * 4


def test_node_that_holds_the_environment_comes_first_and_gets_no_more(raylets: dict[str, Any]) -> None:
    assert raylets["comes_back"]
    assert sum(raylets["one_holds"]) == 64
    assert all(abs(used - 16) <= 1 for used in raylets["one_holds"])
    assert raylets["calls"] == [1] * 64
    assert raylets["unpacks"] == 4


def test_nodes_with_an_excluded_label_are_left_out(raylets: dict[str, Any]) -> None:
    assert raylets["excluded"]


def test_node_that_joins_is_used(raylets: dict[str, Any]) -> None:
    assert raylets["joined"]
    assert raylets["with_joined"] == [8] * 5


def test_node_that_drains_gets_nothing_new_and_keeps_what_it_has(raylets: dict[str, Any]) -> None:
    assert raylets["drain_accepted"]
    assert raylets["drains"]
    assert raylets["new_there"] == 0
    assert raylets["kept"] == [1]
    assert raylets["drained"]
    assert raylets["lost_by_drain"] == 0


def test_lost_node_costs_its_leases_and_no_others(raylets: dict[str, Any]) -> None:
    assert raylets["after_loss"].count("ClusterError") == 4
    assert raylets["after_loss"].count("SandboxError") == 12  # released in the middle of their calls
    assert raylets["gone"]
    assert raylets["again"] == [1] * 96


def test_leases_follow_the_capacity_of_unequal_nodes(raylets: dict[str, Any]) -> None:
    assert raylets["capacities"] == [8, 8, 8, 12]  # the last has one cpu, and the resource "sandbox"
    assert raylets["follows"] == [4, 4, 4, 6]


def test_pool_says_who_keeps_the_sandboxes_or_waits_until_they_are_free(raylets: dict[str, Any]) -> None:
    assert "0 of the 12 `sandbox`" in raylets["taken"] and "pool list" in raylets["taken"]
    assert raylets["waits"]
    assert raylets["then_has"] == sum(raylets["capacities"])


def test_no_actor_is_left(raylets: dict[str, Any], started: dict[str, Any]) -> None:
    assert raylets["actors"] == []
    assert started["shared"]["actors"] == []


# -- a pool that drivers share


def test_drivers_share_workers_and_settings(started: dict[str, Any]) -> None:
    shared = started["shared"]
    assert shared["same_worker"]
    kind, text = shared["other_settings"]
    assert kind == "ConfigError"
    assert "lease_seconds is 7200.0, not 5.0" in text
    assert "\n" not in text


def test_killed_driver_gives_its_slots_back_to_clients_in_turn(started: dict[str, Any]) -> None:
    seconds, granted = started["shared"]["turns"]
    assert granted == ["a0", "a1", "b0"]
    assert seconds < 15  # before its silence would have told
    assert started["shared"]["workers_kept"]  # though it had made the pool


def test_killed_scheduler_starts_anew(started: dict[str, Any]) -> None:
    shared = started["shared"]
    assert shared["served"] == 2
    assert all("scheduler was restarted" in reason for reason in shared["ended"])
    assert shared["old_worker_gone"]
    assert shared["free"]
    assert shared["capacity"] == 4


def test_silent_driver_loses_its_slots_and_comes_back(started: dict[str, Any]) -> None:
    assert started["shared"]["silent"]
    reason, count = started["shared"]["silent_driver"]
    assert "took this client for dead" in reason
    assert count == 1


def test_verbs(started: dict[str, Any]) -> None:
    shared = started["shared"]
    code, clients = shared["status"]
    assert code == 0
    assert len(clients) >= 2
    assert shared["unknown"] == [2, "", "minisandbox_ray pool: no pool uncommon on this Ray cluster (there: common)\n"]
    assert shared["stop"] == [0, "pool common has ended\n", ""]
    assert "closed" in shared["after_stop"] or "ended" in shared["after_stop"]
    assert shared["lease_after_stop"]
    assert shared["worker_gone"]


def test_private_pool_outlives_its_scheduler(started: dict[str, Any]) -> None:
    assert started["private"]["served"] == 1
    assert "scheduler was restarted" in started["private"]["ended"]


def test_a_step_is_one_call_and_messages_go_together(started: dict[str, Any]) -> None:
    calls = started["private"]["calls"]
    assert calls["call"] == 200
    assert calls["submit"] <= 2
    assert set(calls) <= {"call", "submit", "poll"}
    assert started["private"]["many"] < 40  # of some 400 messages


def test_worker_that_does_not_answer_is_taken_out(started: dict[str, Any]) -> None:
    private = started["private"]
    kind, text = private["stopped"]
    assert kind == "ClusterError"
    assert "did not answer in time" in text
    assert private["taken_out"]
    assert private["again"] == [1] * 3
    assert private["stopped_worker_gone"]


def test_metrics_are_scraped_from_ray(started: dict[str, Any]) -> None:
    names = {name.partition("{")[0] for name in started["metrics"]}
    gauges = {"sandbox_slots", "leases", "unpack_queue", "store_bytes", "waiting_requests", "lost_workers"}
    assert names >= {f"ray_minisandbox_{name}" for name in gauges | {"unpacks_total", "lease_wait_seconds_count"}}
    # Ray goes on telling, for a while, what pools that have ended said last.
    assert 3 in [value for name, value in started["metrics"].items() if "_sandbox_slots{" in name]


# -- archives and nodes


@as_root
def test_archive_travels_through_the_object_store(started: dict[str, Any]) -> None:
    assert started["directory"] == ["archives", "peer"]
    assert started["url"] == ["url", "peer"]
    assert started["from_a_node_without_sandboxes"] == "peer"


@as_root
def test_node_with_a_full_disk_refuses_what_is_new_and_recovers(started: dict[str, Any]) -> None:
    assert started["full"] == ["StoreFullError", "ClusterError", 2, 1, 1]


@as_root
def test_mixed_versions_and_unwritable_store_are_one_line(started: dict[str, Any]) -> None:
    for name, said in {
        "mixed_versions": "has minisandbox_ray 0.0.1, the driver has",
        "unwritable_store": "Read-only file system",
    }.items():
        kind, text = started[name]
        assert kind == "ConfigError"
        assert said in text
        assert "\n" not in text
    assert started["mended"] == 1


@as_root
def test_bad_node_that_joins_is_told_and_left_out(started: dict[str, Any]) -> None:
    assert len(started["trouble"]) == 1
    assert "has minisandbox_ray 0.0.1" in started["trouble"][0]
    assert started["still"] == [1, 1]

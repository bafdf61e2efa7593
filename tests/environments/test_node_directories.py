import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from minisandbox_ray.environments import NodeStore, cache_root
from minisandbox_ray.environments.node_directories import hold_node, node_directories, sweep_nodes
from minisandbox_ray.errors import ConfigError

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path))
    return tmp_path


def age(key: str) -> None:
    alive = cache_root() / "nodes" / key / "alive"
    os.utime(alive if alive.exists() else alive.parent, (time.time() - 3600,) * 2)


def test_without_a_key_they_are_the_caches_own(root: Path) -> None:
    assert node_directories(None) == (root / "store", root / "archives")
    hold_node(None).close()
    assert list(root.iterdir()) == []


def test_with_a_key_they_are_the_nodes(root: Path) -> None:
    assert node_directories("ab12") == (root / "nodes/ab12/store", root / "nodes/ab12/archives")
    for bad in ("", "..", "a/b", "../x", ".x"):
        with pytest.raises(ConfigError):
            node_directories(bad)


def _hold(key: str, held, release) -> None:  # type: ignore[no-untyped-def]
    hold = hold_node(key)
    NodeStore(hold.directories.store)
    held.set()
    release.wait()


def test_what_a_process_holds_stays_until_it_dies(root: Path) -> None:
    held, release = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=_hold, args=("mine", held, release))
    process.start()
    held.wait()
    NodeStore(node_directories("gone").store)
    hold_node("gone").close()
    hold_node("young").close()
    for key in ("mine", "gone"):
        age(key)
    assert sweep_nodes() == ["gone"]
    assert sorted(path.name for path in (root / "nodes").iterdir()) == ["mine", "young"]
    mine = hold_node("mine")  # a second holder
    process.kill()
    process.join()
    age("mine")
    assert sweep_nodes() == []
    mine.close()
    assert sweep_nodes() == ["mine"]


def test_rests_of_starts_and_sweeps_that_were_killed_go(root: Path) -> None:
    (root / "nodes/half").mkdir(parents=True)
    (root / "nodes/.other-0123/store").mkdir(parents=True)
    assert sweep_nodes() == []
    age("half")
    assert sweep_nodes() == ["half"]
    assert list((root / "nodes").iterdir()) == []


def test_holding_and_sweeping_at_once_never_loses_a_held_node(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minisandbox_ray.environments.node_directories.SWEEP_SECONDS", -1.0)
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            sweep_nodes()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for _ in range(300):
            hold = hold_node("x")
            hold.directories.store.mkdir(exist_ok=True)
            assert hold.directories.store.is_dir()
            hold.close()
    finally:
        stop.set()
        sweeper.join()

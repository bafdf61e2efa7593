import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minisandbox_ray.environments import NodeStore, describe
from minisandbox_ray.environments import store as store_module
from minisandbox_ray.environments.archive import unpack
from minisandbox_ray.errors import ArchiveError

from .conftest import plant, wait_until

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "archives"


def _materialise_counting(root: Path, digest: str, shelf: Path, counter: Path, barrier) -> None:  # type: ignore[no-untyped-def]
    def counting(*args) -> None:  # type: ignore[no-untyped-def]
        with counter.open("a") as file:
            file.write("x")
        unpack(*args)

    store_module.unpack = counting
    store = NodeStore(root)
    barrier.wait()
    threads = [threading.Thread(target=store.materialise, args=(digest, shelf)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.contains(digest)


def test_four_processes_with_threads_unpack_once(shelf: Path, tmp_path: Path) -> None:
    digest = plant(shelf, "a", files=500).digest
    counter, barrier = tmp_path / "counter", SPAWN.Barrier(4)
    workers = [
        SPAWN.Process(target=_materialise_counting, args=(tmp_path / "store", digest, shelf, counter, barrier))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert counter.read_text() == "x"


def test_the_least_recently_used_goes_first(shelf: Path, tmp_path: Path) -> None:
    a, b, c = (plant(shelf, name, files=20, size=1000) for name in "abc")
    store = NodeStore(tmp_path / "store", budget_bytes=2 * a.unpacked_bytes + 100)
    for manifest in (a, b, a):
        store.materialise(manifest.digest, shelf)
    store.materialise(c.digest, shelf)
    assert [store.contains(each.digest) for each in (a, b, c)] == [True, False, True]
    assert [each.digest for each in store.inventory()] == [c.digest, a.digest]
    assert [each.bytes for each in store.inventory()] == [c.unpacked_bytes, a.unpacked_bytes]
    rows = {row["digest"]: row for row in describe(store, shelf)}
    assert {digest: bool(row["unpacked"]) for digest, row in rows.items()} == {
        a.digest[:12]: True,
        b.digest[:12]: False,
        c.digest[:12]: True,
    }


HOLD = """
import sys, time
from pathlib import Path
from minisandbox_ray.environments import NodeStore, describe
root, digest, shelf = sys.argv[1:]
with NodeStore(Path(root)).use(digest, Path(shelf)):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_copy_of_another_version_is_told_of_and_evicted_in_its_turn(shelf: Path, tmp_path: Path) -> None:
    old, new = (plant(shelf, name, files=20, size=1000) for name in "ab")
    store = NodeStore(tmp_path / "store", budget_bytes=old.unpacked_bytes + 100)
    store.materialise(old.digest, shelf)
    manifest = tmp_path / "store" / "environments" / old.digest / "manifest.json"
    manifest.chmod(0o644)
    later = json.loads(manifest.read_text())
    later["spec"]["a_field_of_the_future"] = 1
    manifest.write_text(json.dumps(later))
    with pytest.raises(ArchiveError, match="of another version of this package"):
        store.materialise(old.digest, shelf)
    store = NodeStore(tmp_path / "store", budget_bytes=old.unpacked_bytes + 100)
    assert store.usage().bytes == old.unpacked_bytes
    store.materialise(new.digest, shelf)
    assert not store.contains(old.digest)


def test_what_another_process_uses_is_never_evicted_until_it_dies(shelf: Path, tmp_path: Path) -> None:
    a, b, c = (plant(shelf, name) for name in "abc")
    store = NodeStore(tmp_path / "store", budget_bytes=a.unpacked_bytes + 100)
    with subprocess.Popen([sys.executable, "-c", HOLD, store.root, a.digest, shelf], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        store.materialise(b.digest, shelf)  # over budget, but nothing may go
        assert store.contains(a.digest)
        assert not store.evict(a.digest)
        assert {each.digest: each.in_use for each in store.inventory()} == {a.digest: True, b.digest: False}
        holder.kill()
    store.materialise(c.digest, shelf)
    assert [store.contains(each.digest) for each in (a, b, c)] == [False, False, True]


def test_use_holds_within_one_process_too(shelf: Path, tmp_path: Path) -> None:
    digest = plant(shelf, "a").digest
    store = NodeStore(tmp_path / "store")
    with store.use(digest, shelf) as first, store.use(digest, shelf) as second:
        assert first.root == second.root
        assert not store.evict(digest)
    assert store.evict(digest)
    assert not store.contains(digest)
    assert list((store.root / "scratch").iterdir()) == []


MATERIALISE = """
import sys
from pathlib import Path
from minisandbox_ray.environments import NodeStore, describe
root, digest, shelf = sys.argv[1:]
NodeStore(Path(root)).materialise(digest, Path(shelf))
"""


def test_kill_in_the_middle_of_unpacking_leaves_nothing_that_is_used(shelf: Path, tmp_path: Path) -> None:
    manifest = plant(shelf, "a", files=5000, size=2000)
    root = tmp_path / "store"
    command = [sys.executable, "-c", MATERIALISE, root, manifest.digest, shelf]
    with subprocess.Popen(command) as victim:
        wait_until(lambda: any((root / "scratch").glob("*/tree/testbed/*")))
        os.kill(victim.pid, signal.SIGKILL)
    store_before = list((root / "environments").iterdir())
    assert store_before == [], "it finished before the signal: the archive is too small for this test"
    store = NodeStore(root)
    # Its tar may live on for a moment; nothing it writes reaches the store, and the next start sweeps the rest.
    wait_until(lambda: store._scratch.sweep() == 0 and not any((root / "scratch").iterdir()))
    environment = store.materialise(manifest.digest, shelf)
    assert len(list(environment.testbed.iterdir())) == 5000


def test_sweep_leaves_the_directories_of_the_living(tmp_path: Path) -> None:
    store = NodeStore(tmp_path / "store")
    with store.scratch() as mine:
        NodeStore(tmp_path / "store")
        assert mine.is_dir()
    assert not mine.exists()

"""A full disk stops what needs room, and nothing else; with room again everything works, in the same process."""

import os
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from minisandbox_ray.environments import Environment, Manifest, NodeStore
from minisandbox_ray.environments import store as store_module
from minisandbox_ray.environments.archive import unpack
from minisandbox_ray.environments.provide import provide
from minisandbox_ray.errors import StoreFullError
from minisandbox_ray.sandbox import Sandbox

from .conftest import filled, on_small_disk, plant

MIB = 1 << 20
INTERPRETER = 140
"""MiB that the copy of one may take."""
RESERVE = 64


def is_tidy(store: NodeStore) -> bool:
    return list((store.root / "scratch").iterdir()) == []


def full_line(error: StoreFullError, disk: Path) -> str:
    message = str(error)
    assert "\n" not in message and str(disk) in message and "MiB" in message and "free some space" in message
    return message


def test_larger_than_the_budget_is_refused_at_once(tmp_path: Path) -> None:
    manifest = plant(tmp_path / "archives", "a", files=20, size=1000)
    store = NodeStore(tmp_path / "store", budget_bytes=manifest.unpacked_bytes - 1)
    with pytest.raises(StoreFullError, match="raise store_gib"):
        store.materialise(manifest.digest, tmp_path / "archives")
    assert is_tidy(store) and not store.contains(manifest.digest)


def _room_on_the_disk(disk: Path, shelf: Path, a: Manifest, b: Manifest) -> None:
    store = NodeStore(disk / "store")
    store.materialise(a.digest, shelf)
    with filled(disk, leave=RESERVE * MIB + a.unpacked_bytes // 2):
        store.materialise(b.digest, shelf)  # evicts a, though the budget would hold both
        assert [store.contains(each.digest) for each in (a, b)] == [False, True]
        with store.use(b.digest, shelf), pytest.raises(StoreFullError) as caught:
            store.materialise(a.digest, shelf)
        assert a.digest[:12] in full_line(caught.value, disk)
        assert is_tidy(store) and store.contains(b.digest)
    store.materialise(a.digest, shelf)
    assert [store.contains(each.digest) for each in (a, b)] == [True, True]


def test_room_is_made_on_the_disk_too_and_what_is_in_use_stays(tmp_path: Path) -> None:
    a, b = (plant(tmp_path / "archives", name, files=20, size=MIB) for name in "ab")
    scenario = partial(_room_on_the_disk, shelf=tmp_path / "archives", a=a, b=b)
    on_small_disk(scenario, tmp_path, INTERPRETER + RESERVE + 3 * 20 + 40)


def _full_in_the_middle(disk: Path, shelf: Path, a: Manifest, b: Manifest) -> None:
    store = NodeStore(disk / "store")
    attempts: list[str] = []

    def crowded(*args) -> None:  # type: ignore[no-untyped-def]
        attempts.append("")
        if len(attempts) > 1:
            return unpack(*args)
        ballast.enter_context(filled(disk, leave=5 * MIB))  # somebody else writes, after room was made
        return unpack(*args)

    store.materialise(a.digest, shelf)
    store_module.unpack = crowded
    with ExitStack() as ballast:
        store.materialise(b.digest, shelf)  # the second attempt finds the room that evicting a made
        assert len(attempts) == 2
        assert [store.contains(each.digest) for each in (a, b)] == [False, True]
        assert is_tidy(store)
    store.evict(b.digest)
    attempts.clear()
    with ExitStack() as ballast, pytest.raises(StoreFullError) as caught:
        store.materialise(b.digest, shelf)
    assert b.digest[:12] in full_line(caught.value, disk)
    assert len(attempts) == 1 and is_tidy(store) and not store.contains(b.digest)
    assert len(list(store.materialise(b.digest, shelf).testbed.iterdir())) == b.files - 5


def test_a_disk_that_fills_up_in_the_middle_evicts_and_tries_once_more(tmp_path: Path) -> None:
    a = plant(tmp_path / "archives", "a", files=RESERVE + 40, size=MIB)
    b = plant(tmp_path / "archives", "b", files=20, size=MIB)
    scenario = partial(_full_in_the_middle, shelf=tmp_path / "archives", a=a, b=b)
    on_small_disk(scenario, tmp_path, INTERPRETER + 2 * RESERVE + 40 + 20 + 20)


def _together(disk: Path, shelf: Path, some: list[Manifest]) -> None:
    """Each fits, all together they don't: two that fill the disk together must not both fail."""
    store = NodeStore(disk / "store")
    store.interpreter(some[0].interpreter.version)
    outcomes: list[object] = []

    def materialise(manifest: Manifest) -> None:
        try:
            outcomes.append(store.materialise(manifest.digest, shelf).digest)
        except StoreFullError as error:
            outcomes.append(error)

    size = some[0].unpacked_bytes
    with filled(disk, leave=RESERVE * MIB + size + size // 2):
        threads = [threading.Thread(target=materialise, args=(each,)) for each in some]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == len(some)
        assert any(isinstance(each, str) for each in outcomes), outcomes
        assert is_tidy(store)


def test_unpacking_together_what_fits_only_alone(tmp_path: Path) -> None:
    some = [plant(tmp_path / "archives", name, files=60, size=MIB) for name in "abc"]
    on_small_disk(
        partial(_together, shelf=tmp_path / "archives", some=some), tmp_path, INTERPRETER + RESERVE + 3 * 60 + 40
    )


def _interpreter(disk: Path, shelf: Path, a: Manifest) -> None:
    store = NodeStore(disk / "store")
    with filled(disk, leave=20 * MIB):
        with pytest.raises(StoreFullError) as caught:
            store.materialise(a.digest, shelf)
        assert "a copy of python" in full_line(caught.value, disk)
        assert is_tidy(store) and list((store.root / "interpreters").iterdir()) == []
    assert store.materialise(a.digest, shelf).interpreter is not None


def test_the_copy_of_an_interpreter(tmp_path: Path) -> None:
    a = plant(tmp_path / "archives", "a")
    on_small_disk(partial(_interpreter, shelf=tmp_path / "archives", a=a), tmp_path, INTERPRETER + RESERVE + 20)


def _layer(disk: Path, shelf: Path, inflection: Manifest, a: Manifest, patch: str) -> None:
    store = NodeStore(disk / "store")
    with store.use(inflection.digest, shelf) as environment:
        with filled(disk):
            with pytest.raises(StoreFullError) as caught:
                store.derive(environment, patch)
            assert "layer" in full_line(caught.value, disk)
            assert is_tidy(store) and list(environment.root.glob("layers/*/testbed")) == []
        store.materialise(a.digest, shelf)
        with filled(disk):
            layer = store.derive(environment, patch)
        assert not store.contains(a.digest)
        with Sandbox(environment.sandbox_spec(layer=layer)) as sandbox:
            assert sandbox.run("cat NEW; git status --porcelain").output == "new\n"


NEW = "diff --git a/NEW b/NEW\nnew file mode 100644\n--- /dev/null\n+++ b/NEW\n@@ -0,0 +1 @@\n+new\n"


def test_a_task_layer(sandboxes: None, environment: Environment, archives: Path, tmp_path: Path) -> None:
    a = plant(archives, "for-eviction", files=10, size=MIB)
    scenario = partial(_layer, shelf=archives, inflection=environment.manifest, a=a, patch=NEW)
    on_small_disk(scenario, tmp_path, 400)


def _archives(disk: Path, shelf: Path, a: Manifest) -> None:
    """The node's own directory of archives is on the full disk, its store elsewhere."""
    store = NodeStore(shelf.parent / "store")
    local = disk / "archives"
    with filled(disk, leave=1000):
        with pytest.raises(StoreFullError) as caught:
            provide(a.digest, archives=shelf.as_uri(), local=local, store=store)
        full_line(caught.value, disk)
        assert list(local.iterdir()) == []
    assert provide(a.digest, archives=shelf.as_uri(), local=local, store=store).origin == "url"


def _copies(disk: Path, shelf: Path, some: list[Manifest], own: Manifest) -> None:
    local, store = disk / "archives", NodeStore(disk / "store")
    local.mkdir()
    for path in shelf.glob(f"{own.digest}.*"):
        (local / path.name).write_bytes(path.read_bytes())
    a, b, c = (each.digest for each in some)
    for digest in (a, b, a):
        provide(digest, archives=shelf.as_uri(), local=local, store=store)
        store.evict(digest)
    log: list[str] = []
    # What is free with the copy of b gone is enough for c, packed and unpacked; what stays is more recent, or no copy.
    with filled(disk, leave=RESERVE * MIB + some[0].unpacked_bytes + 2 * MIB):
        assert provide(c, archives=shelf.as_uri(), local=local, store=store, log=log.append).origin == "url"
        assert len(log) == 1 and b[:12] in log[0]
    kept = {path.name for path in local.glob("*.json")}
    assert kept == {f"{each}.json" for each in (a, c, own.digest)}


def test_copies_of_archives_that_can_be_fetched_again_make_room(tmp_path: Path) -> None:
    shelf = tmp_path / "archives"
    some = [plant(shelf, name, files=5, content=os.urandom(4 * MIB)) for name in "abc"]
    own = plant(shelf, "own", files=5, content=os.urandom(4 * MIB))
    on_small_disk(partial(_copies, shelf=shelf, some=some, own=own), tmp_path, INTERPRETER + RESERVE + 7 * 20)


def test_the_directory_that_archives_are_fetched_to(tmp_path: Path) -> None:
    a = plant(tmp_path / "archives", "a")
    on_small_disk(partial(_archives, shelf=tmp_path / "archives", a=a), tmp_path, RESERVE + 20)


def _usage(disk: Path, shelf: Path, a: Manifest) -> None:
    store = NodeStore(disk / "store", budget_bytes=100 * MIB)
    store.materialise(a.digest, shelf)
    usage = store.usage()
    assert (usage.bytes, usage.environments, usage.budget_bytes) == (a.unpacked_bytes, 1, 100 * MIB)
    with filled(disk, leave=3 * MIB):
        assert store.usage().free_bytes <= 3 * MIB < usage.free_bytes
    store.evict(a.digest)
    assert (store.usage().bytes, store.usage().environments) == (0, 0)


def test_usage(tmp_path: Path) -> None:
    a = plant(tmp_path / "archives", "a", files=10, size=MIB)
    on_small_disk(partial(_usage, shelf=tmp_path / "archives", a=a), tmp_path, INTERPRETER + RESERVE + 40)

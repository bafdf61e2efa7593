"""What environments have in common is packed once, lies there once, and is as safe as all the rest."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from minisandbox_ray.environments import NodeStore, read_manifest
from minisandbox_ray.environments.archive import (
    archive_path,
    is_complete,
    manifest_path,
    normalise,
    pack,
    read_manifest_bytes,
    survey,
)
from minisandbox_ray.environments.gc import collect_garbage
from minisandbox_ray.environments.inventory import describe
from minisandbox_ray.environments.package_layers import (
    ALONE,
    GRACE_SECONDS,
    SMALLEST,
    find_groups,
    holding,
    is_sound,
    layer_path,
    pack_layers,
    place_of_layers,
    unneeded,
)
from minisandbox_ray.environments.tar import FIXED_TIME
from minisandbox_ray.environments.verify import verify
from minisandbox_ray.errors import ArchiveError, DamagedArchiveError, MissingArchiveError, StoreFullError

from .conftest import filled, install, on_small_disk, plant, wait_until


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "archives"


def layers(shelf: Path) -> list[str]:
    return sorted(path.name for path in (shelf / "layers").iterdir())


def age(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (time.time() - GRACE_SECONDS - 60,) * 2)


def entries(root: Path) -> dict[str, tuple[int, float, bytes]]:
    found = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (info.st_mode, info.st_mtime, data)
    return found


def test_what_is_unpacked_is_what_was_packed(shelf: Path, fresh: NodeStore) -> None:
    manifest = plant(shelf, "a", packages=["one", "two"])
    assert len(manifest.layers) == 2 and read_manifest(shelf, manifest.digest) == manifest
    assert archive_path(shelf, manifest.digest).stat().st_size == manifest.archive_bytes < SMALLEST
    root = fresh.materialise(manifest.digest, shelf).root
    (root / "manifest.json").unlink()
    found = entries(root)
    assert found == entries(shelf.parent / "tree-a")
    assert {when for _, when, _ in found.values()} == {FIXED_TIME}
    assert survey(root) == (manifest.files, manifest.unpacked_bytes)


def test_a_second_archive_writes_no_layer_again(shelf: Path) -> None:
    first = plant(shelf, "a", packages=["one", "two"])
    before = {path.name: path.stat().st_ino for path in (shelf / "layers").iterdir()}
    second = plant(shelf, "b", packages=["one", "two", "three"])
    after = {path.name: path.stat().st_ino for path in (shelf / "layers").iterdir()}
    assert set(map(str, first.layers)) < set(map(str, second.layers))
    assert len(after) == 3 and before.items() < after.items()
    assert sum(path.stat().st_size for path in (shelf / "layers").iterdir()) == sum(
        each.packed_bytes for each in second.layers
    )


def test_who_packs_mends_a_layer_that_lies_there_damaged(shelf: Path, fresh: NodeStore) -> None:
    first = plant(shelf, "a", packages=["one"])
    (path,) = (shelf / "layers").iterdir()
    sound = path.read_bytes()
    for harm in (damage, cut, empty):
        harm(path)
        (shelf.parent / "tree-b").exists() and shutil.rmtree(shelf.parent / "tree-b")
        assert plant(shelf, "b", packages=["one"]).layers == first.layers
        assert path.read_bytes() == sound
    fresh.materialise(first.digest, shelf)


def test_equal_trees_give_equal_files(shelf: Path) -> None:
    manifest = plant(shelf, "a", packages=["one", "two"])
    again = pack(shelf.parent / "tree-a", shelf.parent / "again", manifest.digest, manifest.interpreter.version)
    assert (again.archive_sha256, again.layers) == (manifest.archive_sha256, manifest.layers)
    for name in layers(shelf):
        assert (shelf.parent / "again/layers" / name).read_bytes() == (shelf / "layers" / name).read_bytes()


def test_an_archive_without_layers_is_as_it_was(shelf: Path, fresh: NodeStore) -> None:
    manifest = plant(shelf, "a")
    assert "layers" not in json.loads(manifest_path(shelf, manifest.digest).read_text())
    assert sorted(path.name for path in shelf.iterdir()) == [f"{manifest.digest}.json", f"{manifest.digest}.tar.zst"]
    assert fresh.materialise(manifest.digest, shelf).manifest == manifest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The site-packages of a tree at `tmp_path`/tree."""
    return tmp_path / "tree" / place_of_layers("3.12.1") / "site-packages"


def groups(place: Path) -> list[list[str]]:
    normalise(place.parents[3])
    found = find_groups(place.parents[3], "3.12.1")
    return [[name.removeprefix("site-packages/") for name in names] for names in found]


def test_modules_go_with_what_was_compiled_of_them_and_apart_from_what_any_python_can_use(place: Path) -> None:
    install(place, "one")
    more = [
        "one/__pycache__/__init__.cpython-312.pyc",
        "one/_fast.cpython-312-x86_64-linux-gnu.so",
        "one.libs/libx.so.1",
    ]
    for name in [*more, "one/unknown.txt"]:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(bytes(SMALLEST))
    record = place / "one-1.dist-info/RECORD"
    record.write_text(record.read_text() + "one/_fast.cpython-312-x86_64-linux-gnu.so,,\none.libs/libx.so.1,,\n")
    assert groups(place) == [["one.libs/libx.so.1"], ["one/__init__.py", *more[:2]]]
    (place / "one.libs/libx.so.1").write_bytes(b"small")
    assert groups(place) == [["one.libs/libx.so.1", "one/__init__.py", *more[:2]]]


def test_what_is_packed_quickly_is_the_same_layer(shelf: Path) -> None:
    tree = shelf.parent / "tree"
    place = tree / place_of_layers("3.12.1") / "site-packages"
    install(place, "one")
    words = [f"word{number}" for number in range(5000)]
    (place / "one/__init__.py").write_text(" ".join(random.Random("text").choices(words, k=ALONE // 6)))
    normalise(tree)
    quick, slow = (
        pack(tree, shelf / name, "a" * 64, "3.12.1", quick=name == "quick").layers[0] for name in ("quick", "slow")
    )
    assert quick.sha256 == slow.sha256 and quick.packed_bytes > slow.packed_bytes
    assert all(is_sound(shelf / name, layer) for name, layer in (("quick", quick), ("slow", slow)))


def test_a_large_file_is_shared_by_itself(shelf: Path) -> None:
    found = []
    for version in "ab":
        tree = shelf.parent / version
        place = tree / place_of_layers("3.12.1") / "site-packages"
        install(place, "one")
        (place / "one/library.so").write_bytes(bytes(ALONE))
        (place / "one/__init__.py").write_text(version * SMALLEST)
        record = place / "one-1.dist-info/RECORD"
        record.write_text(f"{record.read_text()}one/library.so,,\n")
        assert groups(place) == [["one/__init__.py"], ["one/library.so"]]
        found.append(pack(tree, shelf, version * 64, "3.12.1").layers)
    assert len(layers(shelf)) == 3
    assert len({each.sha256 for each in found[0]} & {each.sha256 for each in found[1]}) == 1


def test_what_is_the_builds_own_or_claimed_twice_or_small_gets_no_layer(place: Path) -> None:
    for name in ("own", "one", "two", "three", "link"):
        install(place, name)
    install(place, "small", size=1000)
    (place / "own-1.dist-info/direct_url.json").write_text("{}")
    for name in ("two", "three"):
        (place / f"{name}-1.dist-info/RECORD").write_text("two/__init__.py,,\n")
    (place / "link-1.dist-info/RECORD").unlink()
    (place / "link-1.dist-info/RECORD").symlink_to(place / "one-1.dist-info/RECORD")
    assert groups(place) == [["one/__init__.py"]]


@pytest.mark.parametrize("linked", range(4))
def test_no_link_leads_out_of_the_tree(linked: int, place: Path, tmp_path: Path) -> None:
    install(place, "one")
    link = (place, *place.parents)[linked]
    link.rename(tmp_path / "host")
    link.symlink_to(tmp_path / "host")
    assert find_groups(tmp_path / "tree", "3.12.1") == []


@pytest.mark.parametrize(
    "record",
    ["", "../../../../testbed/x,,\n/etc/passwd,,\n", "a\0b,,\n", '"' * 9, "x" * 200_000, "\udcff,,\n", ",,\n,\n\n"],
)
def test_a_record_that_says_anything_does_no_harm(record: str, place: Path) -> None:
    install(place, "one")
    install(place, "odd")
    (place / "odd-1.dist-info/RECORD").write_text(record, errors="surrogateescape")
    assert groups(place) == [["one/__init__.py"]]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 40)


def swap(path: Path) -> None:
    other = next(each for each in path.parent.iterdir() if each != path)
    path.write_bytes(other.read_bytes())


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [damage, cut, swap, empty, Path.unlink])
def test_a_damaged_layer_is_refused_in_one_line_that_names_who_needs_it(  # type: ignore[no-untyped-def]
    harm, shelf: Path, fresh: NodeStore
) -> None:
    a, b = (plant(shelf, name, packages=["one", "two"]) for name in "ab")
    c = plant(shelf, "c", packages=["two"])
    (mine,) = {each.sha256 for each in a.layers} - {each.sha256 for each in c.layers}
    path = layer_path(shelf, mine)
    harm(path)
    with pytest.raises(ArchiveError) as caught:
        fresh.materialise(a.digest, shelf)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message and a.digest[:12] in message and "build" in message
    if path.exists():
        assert isinstance(caught.value, DamagedArchiveError) and b.digest[:12] in message
        assert c.digest[:12] not in message
    else:
        assert isinstance(caught.value, MissingArchiveError)
        assert [is_complete(shelf, each.digest) for each in (a, b, c)] == [False, False, True]
        assert read_manifest_bytes(shelf, a.digest) is None
    assert not fresh.contains(a.digest) and not list((fresh.root / "scratch").iterdir())
    fresh.materialise(c.digest, shelf)
    said = {found.digest: found.problem for each in (a, b, c) for found in verify(each.digest, [shelf], [])}
    assert [mine[:12] in said[each.digest] for each in (a, b, c)] == [True, True, False]


def test_a_layer_larger_than_its_manifest_says_is_stopped(shelf: Path, fresh: NodeStore) -> None:
    manifest = plant(shelf, "a", packages=["one"])
    path = manifest_path(shelf, manifest.digest)
    said = json.loads(path.read_text())
    said["layers"][0]["plain_bytes"] //= 2
    path.write_text(json.dumps(said))
    with pytest.raises(DamagedArchiveError, match="holds more than its manifest says"):
        fresh.materialise(manifest.digest, shelf)


@pytest.mark.parametrize("sha256", ["../" * 10 + "etc/passwd", "a" * 63, "A" * 64])
def test_a_manifest_cannot_name_any_file_as_its_layer(sha256: str, shelf: Path) -> None:
    manifest = plant(shelf, "a", packages=["one"])
    path = manifest_path(shelf, manifest.digest)
    path.write_text(path.read_text().replace(manifest.layers[0].sha256, sha256))
    with pytest.raises(DamagedArchiveError, match="unreadable"):
        read_manifest(shelf, manifest.digest)


def test_a_manifest_of_a_later_version_is_told_and_not_taken_for_damaged(shelf: Path) -> None:
    manifest = plant(shelf, "a", packages=["one"])
    path = manifest_path(shelf, manifest.digest)
    path.write_text(json.dumps({**json.loads(path.read_text()), "parts": []}))
    with pytest.raises(
        ArchiveError, match="another version of minisandbox_ray, this one does not know parts"
    ) as caught:
        read_manifest(shelf, manifest.digest)
    assert not isinstance(caught.value, DamagedArchiveError) and "\n" not in str(caught.value)


def test_a_copy_is_compared_with_its_layers(shelf: Path, fresh: NodeStore) -> None:
    manifest = plant(shelf, "a", packages=["one", "two"])
    copy = fresh.materialise(manifest.digest, shelf)
    known: set[Path] = set()
    read = [found.bytes for _ in range(2) for found in verify(manifest.digest, [shelf], [fresh], known)]
    assert read == [manifest.packed_bytes, manifest.unpacked_bytes, manifest.archive_bytes, manifest.unpacked_bytes]
    module = copy.venv / place_of_layers(manifest.interpreter.version)[5:] / "site-packages/one/__init__.py"
    data = module.read_bytes()
    module.write_bytes(data[:-2] + b"!\n")
    os.utime(module, (FIXED_TIME,) * 2)
    (problem,) = (found.problem for found in verify(manifest.digest, [shelf], [fresh]) if found.problem)
    assert "one/__init__.py: Contents differ" in problem


def test_a_listing_counts_a_layer_once_per_environment_and_tells_it_apart(shelf: Path, fresh: NodeStore) -> None:
    for name in "ab":
        plant(shelf, name, packages=["one"])
    plant(shelf, "c")
    assert sorted(row["layers"] for row in describe(fresh, shelf)) == ["", "0.3 MB", "0.3 MB"]


def test_gc_removes_a_layer_with_the_last_archive_that_needs_it(shelf: Path, fresh: NodeStore) -> None:
    a, b = plant(shelf, "a", packages=["one", "two"]), plant(shelf, "b", packages=["two"])
    mine, shared = ({f"{each.sha256}.tar.zst" for each in layers} for layers in (a.layers, b.layers))
    mine -= shared
    age(*(shelf / "layers").iterdir())
    dry = [each.name for each in collect_garbage([shelf], [fresh], keep=[b.digest], dry_run=True)]
    assert dry == [a.digest, *mine] and set(layers(shelf)) == mine | shared
    gone = list(collect_garbage([shelf], [fresh], keep=[b.digest]))
    assert [(each.name, each.kind) for each in gone] == [(a.digest, "environment"), (*mine, "layer")]
    assert gone[1].archive_bytes > SMALLEST and set(layers(shelf)) == shared
    fresh.materialise(b.digest, shelf)
    fresh.evict(b.digest)
    assert [each.kind for each in collect_garbage([shelf], [fresh])] == ["environment", "layer"]
    assert layers(shelf) == []


def test_gc_leaves_layers_that_somebody_may_be_about_to_name(shelf: Path, fresh: NodeStore) -> None:
    manifest = plant(shelf, "a", packages=["one"])
    manifest_path(shelf, manifest.digest).unlink()
    assert [each.kind for each in collect_garbage([shelf], [fresh])] == [
        "environment"
    ]  # it is young: on another machine
    (path,) = (shelf / "layers").iterdir()
    age(path)
    with holding(shelf):
        assert list(collect_garbage([shelf], [fresh])) == []
    second = plant(shelf, "b", packages=["one"])  # which makes it young again
    assert second.layers == manifest.layers
    manifest_path(shelf, second.digest).unlink()
    assert [each.kind for each in collect_garbage([shelf], [fresh])] == ["environment"]
    third = plant(shelf, "c", packages=["one"])
    with unneeded(shelf, grace=0) as found:
        assert found == []
    age(path)
    assert list(collect_garbage([shelf], [fresh], keep=[third.digest])) == []


def test_gc_leaves_the_layers_of_a_manifest_that_it_does_not_understand(shelf: Path, fresh: NodeStore) -> None:
    manifest = plant(shelf, "a", packages=["one"])
    (path,) = (shelf / "layers").iterdir()
    (shelf / "other.json").write_text(json.dumps({"parts": {"wheels": [manifest.layers[0].sha256]}}))
    age(path)
    assert [each.kind for each in collect_garbage([shelf], [fresh])] == ["environment"]
    (shelf / "other.json").unlink()
    assert [each.kind for each in collect_garbage([shelf], [fresh])] == ["layer"]


def test_gc_removes_what_was_left_half_written_or_damaged_among_layers(shelf: Path, fresh: NodeStore) -> None:
    (shelf / "layers").mkdir(parents=True)
    name = "ab" * 32
    left = [f"{name}.tar.zst.1-0123abcd.tmp", f".{name}.tar.zst.1-0123abcd.part", f"{name}.tar.zst.damaged-x"]
    for each in [*left, "notes.txt"]:
        (shelf / "layers" / each).write_text("x")
        age(shelf / "layers" / each)
    assert sorted(each.name for each in collect_garbage([shelf], [fresh])) == sorted(left)
    assert layers(shelf) == ["notes.txt"]


PACKING = """
import os, re, signal, sys
from pathlib import Path
from minisandbox_ray.environments import archive
tree, shelf, version, where = sys.argv[1:]
original = os.fsync
def stopping(descriptor):
    original(descriptor)
    if re.search(where, os.readlink(f"/proc/self/fd/{descriptor}")):
        Path(tree, "stopped").touch()
        signal.pause()
archive.os.fsync = stopping
archive.pack(Path(tree), Path(shelf), "0" * 64, version)
"""


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        (r"layers/\w+\.tar\.zst\..*\.tmp$", "half-written file"),
        ("layers$", "layer"),
        (r"0\.tar\.zst\..*\.tmp$", "layer"),
        ("archives$", "layer"),
    ],
)
def test_killed_before_the_manifest_loses_and_breaks_nothing(
    where: str, kind: str, shelf: Path, fresh: NodeStore, tmp_path: Path
) -> None:
    manifest = plant(shelf, "a", packages=["one"])
    version, tree = manifest.interpreter.version, tmp_path / "tree-a"
    install(tree / place_of_layers(version) / "site-packages", "two")
    normalise(tree)
    command = [sys.executable, "-c", PACKING, str(tree), str(shelf), version, where]
    with subprocess.Popen(command) as victim:
        wait_until(lambda: victim.poll() is not None or (tree / "stopped").exists())
        victim.kill()
    assert victim.returncode == -signal.SIGKILL, "it ended by itself"
    with pytest.raises(MissingArchiveError):
        fresh.materialise("0" * 64, shelf)
    fresh.materialise(manifest.digest, shelf)
    age(*shelf.rglob("*.*"))
    assert kind in [each.kind for each in collect_garbage([shelf], [fresh], keep=[manifest.digest])]
    assert is_complete(shelf, manifest.digest)
    assert sorted(str(path.relative_to(shelf)) for path in shelf.rglob("*") if path.is_file()) == [
        f"{manifest.digest}.json",
        f"{manifest.digest}.tar.zst",
        f"layers/{manifest.layers[0].sha256}.tar.zst",
    ]


def _full(disk: Path, version: str, tree: Path) -> None:
    archives = disk / "archives"
    with filled(disk, leave=SMALLEST), pytest.raises(StoreFullError, match="free some space"):
        pack(tree, archives, "0" * 64, version)
    assert [path for path in archives.rglob("*") if path.is_file() and ".tmp" in path.name] == []
    assert pack(tree, archives, "0" * 64, version).layers


def test_a_full_disk_while_a_layer_is_written(shelf: Path, tmp_path: Path) -> None:
    manifest = plant(shelf, "a", packages=["one", "two"])
    on_small_disk(partial(_full, version=manifest.interpreter.version, tree=tmp_path / "tree-a"), tmp_path, 8)


def test_nothing_waits_for_a_layer_when_another_could_not_be_packed(shelf: Path, tmp_path: Path) -> None:
    place = tmp_path / "tree" / place_of_layers("3.12.1") / "site-packages"
    for name in ("one", "two"):
        install(place, name)
    normalise(tmp_path / "tree")
    found = find_groups(tmp_path / "tree", "3.12.1")
    (place / "one/__init__.py").unlink()
    with pytest.raises(ArchiveError, match="tar could not pack"):
        pack_layers(tmp_path / "tree", shelf, "3.12.1", found)
    assert [name for name in layers(shelf) if ".tmp" in name] == []

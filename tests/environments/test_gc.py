"""What goes from the cache, what stays, and what is found out about it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox_ray.environments import Manifest, NodeStore
from minisandbox_ray.environments.archive import archive_path, manifest_path
from minisandbox_ray.environments.gc import Garbage, collect_garbage
from minisandbox_ray.environments.verify import verify
from minisandbox_ray.errors import MissingArchiveError

from .conftest import plant, wait_until


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "archives"


@pytest.fixture
def stores(tmp_path: Path, store: NodeStore) -> list[NodeStore]:
    """Two nodes'. They have the session's interpreters: copying one takes seconds."""
    found = []
    for name in ("store", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "interpreters").symlink_to(store.root / "interpreters")
        found.append(NodeStore(tmp_path / name))
    return found


def age(shelf: Path, stores: list[NodeStore], digest: str, seconds: float) -> None:
    then = time.time() - seconds
    for path in (archive_path(shelf, digest), *(store.root / f"locks/{digest}.use" for store in stores)):
        if path.exists():
            os.utime(path, (then, then))


def test_only_what_nobody_names_goes_with_its_copies(shelf: Path, stores: list[NodeStore]) -> None:
    a, b = (plant(shelf, name) for name in "ab")
    for store in stores:
        for each in (a, b):
            store.materialise(each.digest, shelf)
    expected = [Garbage(b.digest, "environment", *sizes(shelf, b, copies=2))]
    assert list(collect_garbage([shelf], stores, {a.digest}, dry_run=True)) == expected
    assert stores[0].contains(b.digest) and manifest_path(shelf, b.digest).exists()
    assert list(collect_garbage([shelf], stores, {a.digest})) == expected
    assert sorted(path.name for path in shelf.iterdir()) == [f"{a.digest}.json", f"{a.digest}.tar.zst"]
    assert [store.held() for store in stores] == [{a.digest}] * 2
    assert list(collect_garbage([shelf], stores, {a.digest})) == []


def sizes(shelf: Path, manifest: Manifest, copies: int) -> tuple[int, int]:
    files = (archive_path(shelf, manifest.digest), manifest_path(shelf, manifest.digest))
    return sum(path.stat().st_size for path in files), copies * manifest.unpacked_bytes


def test_what_is_in_use_stays_everywhere(shelf: Path, stores: list[NodeStore]) -> None:
    digest = plant(shelf, "a").digest
    stores[0].materialise(digest, shelf)
    for hold in (stores[1].use(digest, shelf), stores[1].providing(digest), stores[1].exclusive(f"build-{digest}")):
        with hold:
            assert [each.in_use for each in collect_garbage([shelf], stores)] == [True]
        assert manifest_path(shelf, digest).exists() and stores[0].contains(digest)
    assert [each.in_use for each in collect_garbage([shelf], stores)] == [False]
    assert not list(shelf.iterdir()) and not stores[0].held()


def test_the_age_is_that_of_the_last_use(shelf: Path, stores: list[NodeStore]) -> None:
    built, used, old = (plant(shelf, name).digest for name in "abc")
    stores[1].materialise(used, shelf)
    for digest in (used, old):
        age(shelf, [], digest, 5000)
    for _ in range(2):  # looking is no use
        assert [each.name for each in collect_garbage([shelf], stores, older_than=3000, dry_run=True)] == [old]
    age(shelf, stores, used, 4000)
    assert {each.name for each in collect_garbage([shelf], stores, older_than=3000)} == {used, old}
    assert archive_path(shelf, built).exists()


def test_what_interrupted_work_left_goes_when_it_is_old(shelf: Path, stores: list[NodeStore]) -> None:
    a = plant(shelf, "a").digest
    left = [f"{a}.tar.zst.1-0123abcd.tmp", f".{a}.json.1-0123abcd.tmp", f".{a}.tar.zst.1-0123abcd.part"]
    left += [f"{a}.tar.zst.damaged-20200101T000000-abcdef"]
    for name in (*left, "notes.txt"):
        (shelf / name).write_text("x")
    assert [each.name for each in collect_garbage([shelf], stores, {a})] == left[3:]
    for name in left[:3]:
        os.utime(shelf / name, (time.time() - 7200,) * 2)
    assert {each.name for each in collect_garbage([shelf], stores, {a})} == set(left[:3])
    assert {path.name for path in shelf.iterdir()} == {f"{a}.json", f"{a}.tar.zst", "notes.txt"}


def test_half_of_an_archive_goes_too(shelf: Path, stores: list[NodeStore]) -> None:
    a, b = (plant(shelf, name).digest for name in "ab")
    archive_path(shelf, a).unlink()
    manifest_path(shelf, b).unlink()
    assert {each.name for each in collect_garbage([shelf], stores)} == {a, b}
    assert not list(shelf.iterdir())


def problems(digest: str, shelf: Path, stores: list[NodeStore]) -> list[str]:
    found = list(verify(digest, [shelf], stores))
    assert all("\n" not in each.problem for each in found)
    return [each.problem for each in found if each.problem]


def rewrite(file: Path) -> None:
    """As somebody who hides it: the size and the times are as they were."""
    before = file.stat()
    file.write_bytes(file.read_bytes()[:-1] + b"\xfe")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def add(file: Path) -> None:
    before = file.stat()
    file.with_name("more").write_bytes(b"")
    os.utime(file.with_name("more"), ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (rewrite, "3.txt: Contents differ"),
        (add, "26 files of 25"),
        (lambda file: file.chmod(0o777), "3.txt: Mode differs"),
        (lambda file: file.write_text("touched"), "3.txt was written since"),
        (lambda file: file.unlink(), "24 files of 25"),
    ],
)
def test_a_copy_that_was_changed_is_found(
    harm: Callable[[Path], None], found: str, shelf: Path, stores: list[NodeStore]
) -> None:
    digest = plant(shelf, "a").digest
    environment = stores[0].materialise(digest, shelf)
    assert problems(digest, shelf, stores) == []
    assert len(list(verify(digest, [shelf], stores))) == 2
    harm(environment.testbed / "3.txt")
    assert [found in each for each in problems(digest, shelf, stores)] == [True]


def test_a_damaged_archive_is_found_and_the_copy_held_against_its_manifest(
    shelf: Path, stores: list[NodeStore]
) -> None:
    digest = plant(shelf, "a").digest
    copy = stores[0].materialise(digest, shelf)
    rewrite(archive_path(shelf, digest))
    assert ["damaged" in each for each in problems(digest, shelf, stores)] == [True]
    archive_path(shelf, digest).unlink()
    (copy.testbed / "3.txt").unlink()
    assert len(problems(digest, shelf, stores)) == 2
    manifest_path(shelf, digest).unlink()
    assert len(problems(digest, shelf, stores)) == 1
    stores[0].evict(digest)
    assert ["no archive and no unpacked copy" in each for each in problems(digest, shelf, stores)] == [True]


PACKING = """
import signal, sys
from pathlib import Path
from minisandbox_ray.environments import archive
archive.os.fsync = lambda descriptor: signal.pause()
archive.pack(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
"""


def test_killed_while_it_packs_leaves_nothing_that_is_taken_for_an_archive(
    shelf: Path, stores: list[NodeStore], tmp_path: Path
) -> None:
    tree, digest = tmp_path / "tree", "0" * 64
    tree.mkdir()
    (tree / "file").write_text("x")
    with subprocess.Popen([sys.executable, "-c", PACKING, tree, shelf, digest]) as victim:
        wait_until(lambda: victim.poll() is not None or any(path.stat().st_size for path in shelf.glob("*")))
        victim.kill()
    assert victim.returncode == -signal.SIGKILL, "it ended by itself"
    (left,) = shelf.iterdir()
    with pytest.raises(MissingArchiveError):
        stores[0].materialise(digest, shelf)
    assert list(collect_garbage([shelf], stores)) == []  # it might be somebody's who still writes
    os.utime(left, (time.time() - 7200,) * 2)
    assert [each.kind for each in collect_garbage([shelf], stores)] == ["half-written file"]
    assert not list(shelf.iterdir())

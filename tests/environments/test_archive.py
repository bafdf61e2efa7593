import os
from pathlib import Path

import pytest

from minisandbox_ray.environments import BaseSystem, Manifest, NodeStore, read_manifest
from minisandbox_ray.environments.archive import archive_path, manifest_path, pack, survey, unpack
from minisandbox_ray.environments.tar import FIXED_TIME
from minisandbox_ray.errors import ArchiveError, DamagedArchiveError, MissingArchiveError

from .conftest import plant


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "archives"


def unpacked(shelf: Path, manifest: Manifest) -> Path:
    target = shelf.parent / "unpacked"
    target.mkdir()
    unpack(shelf, manifest, target)
    return target


def test_round_trip_keeps_modes_links_and_times(shelf: Path) -> None:
    tree = unpacked(shelf, plant(shelf, "a"))
    tool = tree / "venv/bin/tool"
    assert tool.stat().st_mode & 0o777 == 0o755
    assert (tree / "venv/bin/link").readlink() == Path("tool")
    assert (tree / "testbed/3.txt").read_bytes() == bytes([3]) * 1000
    assert {path.lstat().st_mtime for path in tree.rglob("*")} == {FIXED_TIME}


def test_equal_trees_give_equal_archives(shelf: Path) -> None:
    manifest = plant(shelf, "a")
    tree = unpacked(shelf, manifest)
    assert pack(tree, shelf.parent / "again", manifest.digest).archive_sha256 == manifest.archive_sha256


def test_nothing_but_archive_and_manifest_is_left(shelf: Path) -> None:
    digest = plant(shelf, "a").digest
    assert sorted(os.listdir(shelf)) == [f"{digest}.json", f"{digest}.tar.zst"]  # noqa: PTH208


def damage_bytes(shelf: Path, digest: str) -> None:
    path = archive_path(shelf, digest)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def cut_short(shelf: Path, digest: str) -> None:
    os.truncate(archive_path(shelf, digest), archive_path(shelf, digest).stat().st_size - 40)


def empty(shelf: Path, digest: str) -> None:
    archive_path(shelf, digest).write_bytes(b"")


def remove(shelf: Path, digest: str) -> None:
    archive_path(shelf, digest).unlink()


def replace(shelf: Path, digest: str) -> None:
    other = plant(shelf, "other", size=1001)
    archive_path(shelf, other.digest).replace(archive_path(shelf, digest))


def remove_manifest(shelf: Path, digest: str) -> None:
    manifest_path(shelf, digest).unlink()


def cut_manifest(shelf: Path, digest: str) -> None:
    os.truncate(manifest_path(shelf, digest), 100)


def swap_manifest(shelf: Path, digest: str) -> None:
    other = plant(shelf, "other")
    manifest_path(shelf, digest).write_bytes(manifest_path(shelf, other.digest).read_bytes())


def edit_manifest(shelf: Path, digest: str) -> None:
    path = manifest_path(shelf, digest)
    path.write_text(path.read_text().replace('"NAME": "a"', '"NAME": "b"'))


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (damage_bytes, DamagedArchiveError),
        (cut_short, DamagedArchiveError),
        (empty, DamagedArchiveError),
        (remove, MissingArchiveError),
        (replace, DamagedArchiveError),
        (remove_manifest, MissingArchiveError),
        (cut_manifest, DamagedArchiveError),
        (swap_manifest, DamagedArchiveError),
        (edit_manifest, DamagedArchiveError),
    ],
)
def test_a_damaged_archive_is_refused_in_one_line_and_leaves_nothing(  # type: ignore[no-untyped-def]
    harm, kind: type[ArchiveError], shelf: Path, store: NodeStore
) -> None:
    digest = plant(shelf, "a").digest
    harm(shelf, digest)
    with pytest.raises(kind) as caught:
        store.materialise(digest, shelf)
    message = str(caught.value)
    assert "\n" not in message and digest[:12] in message and str(shelf) in message
    assert "build" in message
    assert not store.contains(digest)
    assert list((store.root / "scratch").iterdir()) == []


def test_another_system_is_refused(shelf: Path, store: NodeStore) -> None:
    other = BaseSystem(os="plan9 4", libc="none", arch="m68k")
    digest = plant(shelf, "a", base=other).digest
    with pytest.raises(ArchiveError, match="is for plan9 4, none, m68k, this node is"):
        store.materialise(digest, shelf)


def test_special_files_are_refused_and_set_uid_is_dropped(shelf: Path) -> None:
    manifest = plant(shelf, "a")
    tree = unpacked(shelf, manifest)
    tool = tree / "venv/bin/tool"
    tool.chmod(0o4755)
    packed = pack(tree, shelf, manifest.digest)
    changed = manifest.model_copy(update=vars(packed))
    target = shelf.parent / "second"
    target.mkdir()
    unpack(shelf, changed, target)
    assert (target / "venv/bin/tool").stat().st_mode & 0o7777 == 0o755

    os.mkfifo(tree / "venv/pipe")
    packed = pack(tree, shelf, manifest.digest)
    changed = manifest.model_copy(update=vars(packed))
    target = shelf.parent / "third"
    target.mkdir()
    with pytest.raises(ArchiveError, match="venv/pipe is a device, pipe or socket"):
        unpack(shelf, changed, target)


def test_a_stream_larger_than_the_manifest_says_is_stopped(shelf: Path) -> None:
    manifest = plant(shelf, "a")
    tree = unpacked(shelf, manifest)
    (tree / "venv/zeros").write_bytes(bytes(64 << 20))
    packed = pack(tree, shelf, manifest.digest)
    target = shelf.parent / "second"
    target.mkdir()
    with pytest.raises(ArchiveError, match="holds more than its manifest says"):
        unpack(shelf, manifest.model_copy(update=vars(packed)), target)
    assert survey(target)[1] < 40 << 20


def test_read_manifest_gives_back_what_was_written(shelf: Path) -> None:
    manifest = plant(shelf, "a")
    assert read_manifest(shelf, manifest.digest) == manifest

"""Environments on their way to a machine without a network."""

import io
import json
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from minisandbox_ray.environments import Manifest, NodeStore, read_manifest
from minisandbox_ray.environments.archive import archive_path, fetched_mark
from minisandbox_ray.environments.exchange import Index, export_environments, import_environments
from minisandbox_ray.environments.package_layers import layer_path
from minisandbox_ray.errors import ConfigError, DamagedArchiveError, MissingArchiveError, StoreFullError

from .conftest import filled, on_small_disk, plant, wait_until


@pytest.fixture
def here(tmp_path: Path) -> tuple[Path, NodeStore]:
    return tmp_path / "archives", NodeStore(tmp_path / "store")


@pytest.fixture
def there(tmp_path: Path) -> tuple[Path, NodeStore, Path]:
    return tmp_path / "there/archives", NodeStore(tmp_path / "there/store"), tmp_path / "there/tasks"


@pytest.fixture
def sent(here: tuple[Path, NodeStore], tmp_path: Path) -> tuple[Path, list[Manifest]]:
    archives, store = here
    manifests = [plant(archives, name, size=size) for name, size in (("a", 1000), ("b", 1001))]
    plant_interpreter(store, manifests[0])
    tasks = tmp_path / "some-tasks.jsonl"
    tasks.write_text("{}\n")
    file = tmp_path / "export.tar"
    done = export_environments([each.digest for each in manifests], file, archives, store, [tasks])
    assert done.bytes == file.stat().st_size and done.environments == manifests
    return file, manifests


def copy_of_interpreter(store: NodeStore, manifest: Manifest) -> Path:
    return store.root / f"interpreters/{manifest.interpreter.version}-{manifest.interpreter.build_id[:16]}"


def plant_interpreter(store: NodeStore, manifest: Manifest) -> None:
    """A stand-in: the real one is large."""
    copy_of_interpreter(store, manifest).mkdir()
    (copy_of_interpreter(store, manifest) / "python").write_text("a stand-in\n")


def left(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file() and "locks" not in path.parts}


def test_what_was_sent_arrives_and_can_be_used(
    sent: tuple[Path, list[Manifest]], there: tuple[Path, NodeStore, Path]
) -> None:
    file, manifests = sent
    archives, store, tasks = there
    done = import_environments(file, archives, store, tasks)
    assert (done.environments, done.tasks, done.known) == (manifests, ["some-tasks.jsonl"], 0)
    assert [read_manifest(archives, each.digest) for each in manifests] == manifests
    assert (tasks / "some-tasks.jsonl").read_text() == "{}\n"
    copy = copy_of_interpreter(store, manifests[0])
    assert (copy / "python").read_text().startswith("a stand-in")
    for each in manifests:
        with store.use(each.digest, archives) as environment:
            assert environment.interpreter == copy and (environment.testbed / "3.txt").exists()
    mark = fetched_mark(archives, manifests[0].digest)
    mark.touch()
    assert import_environments(file, archives, store, tasks).known == 3
    assert len(left(archives)) == 4 and not mark.exists()


def change(file: Path, how: Callable[[str, bytes], tuple[str, bytes] | None]) -> None:
    """Write an export anew with other members."""
    with tarfile.open(file) as tar:
        members = [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
    with tarfile.open(file, "w") as tar:
        for name, data in members:
            changed = how(name, data)
            if changed is not None:
                info = tarfile.TarInfo(changed[0])
                info.size = len(changed[1])
                tar.addfile(info, io.BytesIO(changed[1]))


def flip(name: str, data: bytes) -> tuple[str, bytes]:
    return name, data[:-1] + bytes([data[-1] ^ 1]) if name.endswith(".tar.zst") and "archives" in name else data


def leave_out_the_last(name: str, data: bytes) -> tuple[str, bytes] | None:
    names = [member.name for member in LAST.members]
    return None if name == names[-1] else (name, data)


def climb(name: str, data: bytes) -> tuple[str, bytes]:
    return (f"archives/../../{Path(name).name}", data) if name.startswith("archives") else (name, data)


def climb_in_the_index_too(name: str, data: bytes) -> tuple[str, bytes]:
    if name == "export.json":
        return name, data.replace(b"tasks/some-tasks", b"tasks/../some-tasks")
    return name.replace("tasks/some-tasks", "tasks/../some-tasks"), data


def another_format(name: str, data: bytes) -> tuple[str, bytes]:
    return name, json.dumps({**json.loads(data), "format": 2}).encode() if name == "export.json" else data


def no_index(name: str, data: bytes) -> tuple[str, bytes]:
    return name, b"null" if name == "export.json" else data


def another_s_manifest(name: str, data: bytes) -> tuple[str, bytes]:
    """Both hashes are right, and the two do not belong together."""
    if name == "export.json":
        index = json.loads(data)
        packed = [each for each in index["members"] if each["name"].endswith("zst") and "archives" in each["name"]]
        packed[0]["name"], packed[1]["name"] = packed[1]["name"], packed[0]["name"]
        return name, json.dumps(index).encode()
    names = [each.name for each in LAST.members if each.name.endswith("zst") and "archives" in each.name]
    return names[1 - names.index(name)] if name in names else name, data


LAST = Index(format=1, members=[])


@pytest.mark.parametrize(
    "how", [flip, leave_out_the_last, climb, climb_in_the_index_too, another_format, no_index, another_s_manifest]
)
def test_what_was_changed_on_the_way_is_refused_in_one_line_and_nothing_lands(
    how: Callable[[str, bytes], tuple[str, bytes] | None],
    sent: tuple[Path, list[Manifest]],
    there: tuple[Path, NodeStore, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, _ = sent
    archives, store, tasks = there
    with tarfile.open(file) as tar:
        index = Index.model_validate_json(tar.extractfile("export.json").read())  # type: ignore[union-attr]
    monkeypatch.setattr(sys.modules[__name__], "LAST", index)
    change(file, how)
    with pytest.raises(ConfigError) as caught:
        import_environments(file, archives, store, tasks)
    assert "\n" not in str(caught.value) and str(file) in str(caught.value) and ": :" not in str(caught.value)
    assert left(archives.parent) == set()


@pytest.mark.parametrize("text", [b"", b"no tar at all" * 1000])
def test_what_is_no_export_is_refused(text: bytes, tmp_path: Path, there: tuple[Path, NodeStore, Path]) -> None:
    file = tmp_path / "export.tar"
    for content in (text, None):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"export\.tar"):
            import_environments(file, *there)
    assert left(there[0].parent) == set()


def test_a_cut_file_is_refused(sent: tuple[Path, list[Manifest]], there: tuple[Path, NodeStore, Path]) -> None:
    file, _ = sent
    whole = file.read_bytes()
    for size in (len(whole) // 3, len(whole) - 20_000, 700):
        file.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"cut short|no export|was changed"):
            import_environments(file, *there)
    assert left(there[0].parent) == set()


def test_another_file_of_tasks_stays(sent: tuple[Path, list[Manifest]], there: tuple[Path, NodeStore, Path]) -> None:
    there[2].mkdir()
    (there[2] / "some-tasks.jsonl").write_text("mine\n")
    with pytest.raises(ConfigError, match="is there already, and is another"):
        import_environments(sent[0], *there)
    assert left(there[0].parent) == {"tasks/some-tasks.jsonl"}


def test_a_damaged_archive_is_not_sent(here: tuple[Path, NodeStore], tmp_path: Path) -> None:
    archives, store = here
    manifest = plant(archives, "a")
    plant_interpreter(store, manifest)
    digest, path = manifest.digest, archive_path(archives, manifest.digest)
    whole = path.read_bytes()
    for harm in (whole[:-1] + b"!", whole[:-1], whole + b"!"):
        path.write_bytes(harm)
        with pytest.raises(DamagedArchiveError, match=digest[:12]):
            export_environments([digest], tmp_path / "export.tar", archives, store)
    with pytest.raises(MissingArchiveError):
        export_environments(["0" * 64], tmp_path / "export.tar", archives, store)
    assert not list(tmp_path.glob("*export*"))
    assert not list((store.root / "scratch").iterdir())


@pytest.mark.parametrize("name", ["", "none/export.tar", "file/export.tar"])
def test_a_place_for_no_file_is_refused_before_anything_is_packed(
    name: str, here: tuple[Path, NodeStore], tmp_path: Path
) -> None:
    archives, store = here
    manifest = plant(archives, "a")
    archive_path(archives, manifest.digest).unlink()  # who packs would tell of this
    place = tmp_path / "place"
    place.mkdir()
    (place / "file").write_text("")
    with pytest.raises(ConfigError, match="director"):
        export_environments([manifest.digest], place / name, archives, store)
    assert left(place) == {"file"} and not list(tmp_path.glob(".place*"))


def _export_to_a_full_disk(disk: Path, digest: str, archives: Path) -> None:
    store = NodeStore(archives.parent / "store")
    with filled(disk), pytest.raises(StoreFullError) as caught:
        export_environments([digest], disk / "export.tar", archives, store)
    assert "on a larger disk" in str(caught.value) and "MINISANDBOX_CACHE" not in str(caught.value)
    assert not list(disk.iterdir())


def test_a_full_disk_is_told_with_advice_that_helps(here: tuple[Path, NodeStore], tmp_path: Path) -> None:
    archives, store = here
    manifest = plant(archives, "a")
    plant_interpreter(store, manifest)
    on_small_disk(partial(_export_to_a_full_disk, digest=manifest.digest, archives=archives), tmp_path, 4)


STOPPED = """
import os, signal, sys
from pathlib import Path
from minisandbox_ray.environments import NodeStore, exchange
original = os.fsync
def stopping(descriptor):
    original(descriptor)
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".part"):
        signal.pause()
exchange.os.fsync = stopping
place = Path(sys.argv[2])
exchange.import_environments(Path(sys.argv[1]), place / "archives", NodeStore(place / "store"), place / "tasks")
"""


def test_killed_in_the_middle_leaves_no_archive(
    sent: tuple[Path, list[Manifest]], there: tuple[Path, NodeStore, Path]
) -> None:
    archives, store, tasks = there
    command = [sys.executable, "-c", STOPPED, str(sent[0]), str(archives.parent)]
    with subprocess.Popen(command) as victim:
        wait_until(lambda: victim.poll() is not None or any(archives.glob(".*.part")))
        victim.kill()
    assert victim.returncode == -signal.SIGKILL, "it ended by itself"
    assert not [name for name in left(archives) if not name.startswith(".")]
    NodeStore(store.root)
    assert not list((store.root / "scratch").iterdir())
    assert import_environments(sent[0], archives, store, tasks).known == 0


@pytest.fixture
def layered(here: tuple[Path, NodeStore], tmp_path: Path) -> tuple[Path, list[Manifest]]:
    archives, store = here
    manifests = [plant(archives, "a", packages=["one", "two"]), plant(archives, "b", packages=["two"])]
    plant_interpreter(store, manifests[0])
    file = tmp_path / "export.tar"
    export_environments([each.digest for each in manifests], file, archives, store)
    return file, manifests


def test_layers_are_sent_once_and_stay_where_they_are(
    layered: tuple[Path, list[Manifest]], there: tuple[Path, NodeStore, Path]
) -> None:
    file, manifests = layered
    archives, store, _ = there
    with tarfile.open(file) as tar:
        assert len([name for name in tar.getnames() if "layers/" in name]) == 2
    assert import_environments(file, *there).known == 0
    for each in manifests:
        store.materialise(each.digest, archives)
    paths = [layer_path(archives, each.sha256) for each in manifests[0].layers]
    before = [path.stat().st_ino for path in paths]
    assert import_environments(file, *there).known == 3
    paths[0].unlink()
    assert import_environments(file, *there).known == 2
    assert paths[1].stat().st_ino == before[1] and paths[0].exists()
    assert not [name for name in left(archives) if name.endswith(".part")]


def a_layer_less(name: str, data: bytes) -> tuple[str, bytes] | None:
    if name == "export.json":
        index = json.loads(data)
        index["members"] = index["members"][:-1]
        return name, json.dumps(index).encode()
    return None if name == LAST.members[-1].name else (name, data)


def a_layer_of_another_name(name: str, data: bytes) -> tuple[str, bytes]:
    """Its hash in the index is right: it is the name that is not."""
    here, other = (each.name for each in LAST.members if "layers/" in each.name)
    if name == "export.json":
        return name, data.replace(here.encode(), b"?").replace(other.encode(), here.encode()).replace(
            b"?", other.encode()
        )
    return {here: other, other: here}.get(name, name), data


def flip_a_layer(name: str, data: bytes) -> tuple[str, bytes]:
    return name, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:] if "layers/" in name else data


@pytest.mark.parametrize("how", [a_layer_less, a_layer_of_another_name, flip_a_layer])
def test_layers_that_were_changed_on_the_way_are_refused_and_nothing_lands(
    how: Callable[[str, bytes], tuple[str, bytes] | None],
    layered: tuple[Path, list[Manifest]],
    there: tuple[Path, NodeStore, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, _ = layered
    with tarfile.open(file) as tar:
        index = Index.model_validate_json(tar.extractfile("export.json").read())  # type: ignore[union-attr]
    monkeypatch.setattr(sys.modules[__name__], "LAST", index)
    change(file, how)
    with pytest.raises(ConfigError, match="was changed") as caught:
        import_environments(file, *there)
    assert "\n" not in str(caught.value) and left(there[0].parent) == set()


def test_a_damaged_or_missing_layer_is_not_sent(here: tuple[Path, NodeStore], tmp_path: Path) -> None:
    archives, store = here
    manifest = plant(archives, "a", packages=["one"])
    plant_interpreter(store, manifest)
    path = layer_path(archives, manifest.layers[0].sha256)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DamagedArchiveError, match=manifest.digest[:12]):
        export_environments([manifest.digest], tmp_path / "export.tar", archives, store)
    path.unlink()
    with pytest.raises(MissingArchiveError, match=manifest.digest[:12]):
        export_environments([manifest.digest], tmp_path / "export.tar", archives, store)
    assert not list(tmp_path.glob("*export*"))

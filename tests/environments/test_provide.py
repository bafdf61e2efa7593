"""Archives from wherever they are to the node that needs them; damage costs an attempt, never a wrong file."""

import http.server
import multiprocessing
import os
import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from minisandbox_ray.environments import EnvSpec, Manifest, NodeStore, Source, build_environment
from minisandbox_ray.environments.archive import (
    archive_path,
    manifest_path,
    pack,
    read_manifest,
    read_manifest_bytes,
    read_piece,
)
from minisandbox_ray.environments.package_layers import layer_path
from minisandbox_ray.environments.provide import Provided, provide
from minisandbox_ray.environments.room import RESERVE_BYTES
from minisandbox_ray.environments.sources import PIECE_BYTES
from minisandbox_ray.errors import ConfigError, DamagedArchiveError, MissingArchiveError, StoreFullError
from minisandbox_ray.sandbox.starter import syscalls

from .conftest import INFLECTION, filled, on_small_disk, plant, wait_until
from .test_archive import cut_manifest, cut_short, damage_bytes, remove, remove_manifest

SPAWN = multiprocessing.get_context("spawn")


class DirectoryPeer:
    """What the cluster does over its object store, over a directory."""

    def __init__(self, directory: Path, name: str = "a") -> None:
        self.name, self.directory = name, directory
        self.reads: list[tuple[int, int]] = []
        self.layers: list[str] = []

    def manifest(self, digest: str) -> bytes | None:
        return read_manifest_bytes(self.directory, digest)

    def read(self, digest: str, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        return read_piece(archive_path(self.directory, digest), offset, length)

    def read_layer(self, sha256: str, offset: int, length: int) -> bytes:
        self.layers.append(sha256)
        return read_piece(layer_path(self.directory, sha256), offset, length)


class DyingPeer(DirectoryPeer):
    def read(self, digest: str, offset: int, length: int) -> bytes:
        raise ConnectionError("the node died\nmore about it")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "archives"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "local"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Knows no ranges. Below /broken/ it breaks off in the middle of archives, below /flaky/ the first time that it is
    asked; below /secret/ it refuses."""

    def __init__(self, *args, asked: list[str], **kwargs) -> None:  # type: ignore[no-untyped-def]
        self.asked = asked
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        place, _, name = self.path.removeprefix("/").partition("/")
        self.asked.append(self.path)
        if place == "secret":
            self.send_error(403)
        elif name.endswith(".zst") and (place == "broken" or (place == "flaky" and self.asked.count(self.path) < 2)):
            assert self.directory
            data = Path(self.directory, name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
        else:
            self.path = f"/{name}" if place in ("broken", "flaky") else self.path
            super().do_GET()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def asked() -> list[str]:
    """Paths that the web server was asked for, in order."""
    return []


@pytest.fixture
def web(shelf: Path, asked: list[str]) -> Iterator[str]:
    def handler(*args, **kwargs) -> Handler:  # type: ignore[no-untyped-def]
        return Handler(*args, asked=asked, directory=os.fspath(shelf), **kwargs)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def names(directory: Path) -> list[str]:
    """What people see of a directory."""
    return sorted(path.name for path in directory.iterdir() if not path.name.endswith(".fetched"))


def both(digest: str) -> list[str]:
    return [f"{digest}.json", f"{digest}.tar.zst"]


def line(error: BaseException, digest: str) -> str:
    message = str(error)
    assert "\n" not in message and digest[:12] in message
    return message


def test_the_store_then_archives_then_local(shelf: Path, local: Path, fresh: NodeStore) -> None:
    manifest = plant(shelf, "a")
    first = provide(manifest.digest, archives=shelf, local=local, store=fresh)
    assert (first.origin, first.unpacked_bytes, first.quarantined) == ("archives", manifest.unpacked_bytes, [])
    assert first.seconds["unpack"] > 0 and first.seconds["fetch"] == first.seconds["rebuild"] == 0
    assert not local.exists()
    assert provide(manifest.digest, archives=shelf, local=local, store=fresh) == Provided(
        "store", first.seconds | {"unpack": 0}
    )
    fresh.evict(manifest.digest)
    shelf.rename(local)
    assert provide(manifest.digest, archives=shelf, local=local, store=fresh).origin == "local"
    fresh.evict(manifest.digest)
    assert provide(manifest.digest, archives=local, local=local, store=fresh).origin == "archives"


def test_over_http_and_then_from_the_copy(shelf: Path, local: Path, fresh: NodeStore, web: str) -> None:
    manifest = plant(shelf, "a")
    got = provide(manifest.digest, archives=f"{web}/", local=local, store=fresh)
    assert got.origin == "url" and got.seconds["fetch"] > 0 and got.seconds["unpack"] > 0
    assert names(local) == both(manifest.digest)
    assert archive_path(local, manifest.digest).read_bytes() == archive_path(shelf, manifest.digest).read_bytes()
    fresh.evict(manifest.digest)
    archive_path(shelf, manifest.digest).unlink()
    assert provide(manifest.digest, archives=web, local=local, store=fresh).origin == "local"


def test_from_a_file_url(shelf: Path, local: Path, fresh: NodeStore) -> None:
    digest = plant(shelf, "a").digest
    assert provide(digest, archives=shelf.as_uri(), local=local, store=fresh).origin == "url"
    assert names(local) == both(digest)


def test_a_transfer_that_breaks_off_is_tried_once_more(shelf: Path, local: Path, fresh: NodeStore, web: str) -> None:
    digest = plant(shelf, "a", files=200, size=100).digest
    log: list[str] = []
    assert provide(digest, archives=f"{web}/flaky", local=local, store=fresh, log=log.append).origin == "url"
    assert len(log) == 1 and "trying once more" in log[0]
    assert names(local) == both(digest)


@pytest.mark.parametrize(
    ("place", "reason"),
    [("/broken", "broke off"), ("/secret", "can't be asked .*403"), ("/nowhere", "has none")],
)
def test_a_url_that_fails_leaves_nothing_and_peers_are_asked(
    place: str, reason: str, shelf: Path, local: Path, fresh: NodeStore, web: str, tmp_path: Path
) -> None:
    digest = plant(shelf, "a", files=200, size=100).digest
    log: list[str] = []
    with pytest.raises(MissingArchiveError) as caught:
        provide(digest, archives=web + place, local=local, store=fresh, log=log.append)
    assert re.search(reason, line(caught.value, digest)), caught.value
    assert not local.exists() or names(local) == []
    got = provide(digest, archives=web + place, local=local, store=fresh, peers=[DirectoryPeer(shelf)])
    assert got.origin == "peer"


def test_a_server_that_is_not_there_and_credentials_in_its_url(local: Path, fresh: NodeStore) -> None:
    with pytest.raises(MissingArchiveError) as caught:
        provide("ab" * 32, archives="http://user:secret@127.0.0.1:9/x", local=local, store=fresh)
    assert "secret" not in line(caught.value, "ab" * 32) and "127.0.0.1:9" in str(caught.value)


def test_a_url_that_this_node_cannot_read(local: Path, fresh: NodeStore) -> None:
    with pytest.raises(ConfigError, match=r"^archives at nosuch://bucket can't be read.*nosuch"):
        provide("ab" * 32, archives="nosuch://bucket", local=local, store=fresh)
    with pytest.raises(ConfigError, match=r"(?i)can't be read on this node: .*install"):
        provide("ab" * 32, archives=f"{missing_protocol()}://bucket", local=local, store=fresh)


def missing_protocol() -> str:
    """A kind of URL whose package is not installed here."""
    import fsspec

    for protocol in ("s3", "gs", "abfs", "oci"):
        try:
            fsspec.get_filesystem_class(protocol)
        except ImportError:
            return protocol
    pytest.skip("the packages for all kinds of URL are installed here")


def test_from_a_peer_in_pieces(shelf: Path, local: Path, fresh: NodeStore, tmp_path: Path) -> None:
    manifest = plant(shelf, "a")
    dying, holder = DyingPeer(shelf, "dying"), DirectoryPeer(shelf, "holder")
    peers = [DirectoryPeer(tmp_path / "nothing"), dying, holder]
    got = provide(manifest.digest, archives=tmp_path / "nowhere", local=local, store=fresh, peers=peers)
    assert got.origin == "peer" and got.quarantined == []
    assert holder.reads == [(0, manifest.archive_bytes)]
    assert names(local) == both(manifest.digest)


def test_pieces_are_bounded(shelf: Path, local: Path, fresh: NodeStore, tmp_path: Path) -> None:
    tree_noise = os.urandom(PIECE_BYTES // 4)
    manifest = plant(shelf, "noise", files=5, content=tree_noise)
    peer = DirectoryPeer(shelf)
    provide(manifest.digest, archives=tmp_path / "nowhere", local=local, store=fresh, peers=[peer])
    assert peer.reads == [(0, PIECE_BYTES), (PIECE_BYTES, manifest.archive_bytes - PIECE_BYTES)]


def test_read_piece_and_manifest(shelf: Path) -> None:
    manifest = plant(shelf, "a")
    data = archive_path(shelf, manifest.digest).read_bytes()
    assert read_piece(archive_path(shelf, manifest.digest), 10, 20) == data[10:30]
    assert read_piece(archive_path(shelf, manifest.digest), len(data) - 5, 20) == data[-5:]
    assert read_piece(archive_path(shelf, manifest.digest), len(data), 20) == b""
    assert read_manifest_bytes(shelf, manifest.digest) == manifest_path(shelf, manifest.digest).read_bytes()
    archive_path(shelf, manifest.digest).unlink()
    assert read_manifest_bytes(shelf, manifest.digest) is None
    with pytest.raises(MissingArchiveError):
        read_piece(archive_path(shelf, manifest.digest), 0, 1)


@pytest.mark.parametrize("harm", [damage_bytes, cut_short, cut_manifest])
def test_damage_is_moved_away_and_the_next_place_serves(harm, shelf: Path, local: Path, fresh: NodeStore) -> None:  # type: ignore[no-untyped-def]
    digest = plant(shelf, "a").digest
    local.mkdir()
    for name in both(digest):
        (local / name).write_bytes((shelf / name).read_bytes())
    harm(shelf, digest)
    log: list[str] = []
    got = provide(digest, archives=shelf, local=local, store=fresh, log=log.append)
    assert got.origin == "local"
    (moved,) = got.quarantined
    assert Path(moved).parent == shelf and Path(moved).name.startswith(f"{digest}.tar.zst.damaged-")
    assert not set(both(digest)) & set(names(shelf)) and len(names(shelf)) == 2
    (said,) = log
    assert "damaged" in said or "unreadable" in said
    assert moved in said and "\n" not in said
    fresh.evict(digest)
    again = provide(digest, archives=shelf, local=local, store=fresh, log=log.append)
    assert (again.origin, again.quarantined, len(log)) == ("local", [], 1)


def test_what_a_peer_or_url_sends_is_checked(
    shelf: Path, local: Path, fresh: NodeStore, web: str, tmp_path: Path
) -> None:
    digest = plant(shelf, "a").digest
    damage_bytes(shelf, digest)
    log: list[str] = []
    with pytest.raises(DamagedArchiveError) as caught:
        provide(digest, archives=web, local=local, store=fresh, peers=[DirectoryPeer(shelf, "b")], log=log.append)
    message = line(caught.value, digest)
    assert message.count("arrived damaged (its sha256") == 2 and web in message and "node b" in message
    assert len([each for each in log if "passed over" in each]) == 2
    assert names(local) == [] and not fresh.contains(digest)
    assert names(shelf) == both(digest)  # not this node's to move


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: this runs as an ordinary user")
def test_a_directory_that_cannot_be_written(shelf: Path, local: Path, fresh: NodeStore) -> None:
    digest = plant(shelf, "a").digest
    damage_bytes(shelf, digest)
    shelf.chmod(0o555)
    local.mkdir(mode=0o555)
    log: list[str] = []
    with pytest.raises(DamagedArchiveError, match="can't be moved away"):
        provide(digest, archives=shelf, local=shelf, store=fresh, log=log.append)
    shelf.chmod(0o755)
    with pytest.raises(ConfigError, match=f"cannot write {local}"):
        provide(digest, archives=shelf.as_uri(), local=local, store=fresh)
    with pytest.raises(ConfigError, match=f"cannot write {local}"):
        NodeStore(local)
    with pytest.raises(ConfigError, match=f"cannot write {local}"):
        plant(local, "b")


def _read_only_disk(disk: Path) -> None:
    digest = plant(disk / "archives", "a").digest
    damage_bytes(disk / "archives", digest)
    store = NodeStore(disk.parent / "store")
    syscalls.mount(None, str(disk), None, syscalls.MS_REMOUNT | syscalls.MS_RDONLY)
    log: list[str] = []
    with pytest.raises(DamagedArchiveError, match=r"can't be moved away \(Read-only"):
        provide(digest, archives=disk / "archives", local=disk / "archives", store=store, log=log.append)
    assert "can't be moved away" in log[0]
    for unwritable in (
        lambda: NodeStore(disk / "store"),
        lambda: provide(digest, archives=(disk / "archives").as_uri(), local=disk / "local", store=store),
        lambda: pack(disk / "tree-a", disk / "other", digest),
    ):
        with pytest.raises(ConfigError, match=f"cannot write {disk}/.*Read-only"):
            unwritable()


def test_a_read_only_disk(tmp_path: Path) -> None:
    on_small_disk(_read_only_disk, tmp_path, 10)


def test_a_place_that_is_a_file(shelf: Path, fresh: NodeStore, tmp_path: Path) -> None:
    digest = plant(shelf, "a").digest
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"cannot write {tmp_path / 'file'}"):
        provide(digest, archives=shelf.as_uri(), local=tmp_path / "file", store=fresh)
    with pytest.raises(ConfigError, match=f"cannot write {tmp_path / 'file'}"):
        NodeStore(tmp_path / "file/store")
    with pytest.raises(MissingArchiveError, match="no archive"):
        provide("ab" * 32, archives=tmp_path / "file", local=tmp_path / "local", store=fresh)


def test_too_large_is_refused_before_it_is_fetched(shelf: Path, local: Path, web: str, tmp_path: Path) -> None:
    manifest = plant(shelf, "a")
    small = NodeStore(tmp_path / "store", budget_bytes=10)
    with pytest.raises(StoreFullError, match="store_gib"):
        provide(manifest.digest, archives=web, local=local, store=small)
    assert not local.exists()


@pytest.fixture
def recipe(sandboxes: None, shelf: Path, fresh: NodeStore, tmp_path: Path) -> Manifest:
    """A real environment that needs no network."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "hello.py").write_text("print('hello')\n")
    spec = EnvSpec(python=INFLECTION.python, source=Source(kind="path", path=source))
    manifest = build_environment(spec, shelf, fresh)
    fresh.evict(manifest.digest)
    return manifest


@pytest.mark.parametrize("harm", [damage_bytes, remove])
def test_it_is_built_again_where_nobody_has_a_sound_one(  # type: ignore[no-untyped-def]
    harm, recipe: Manifest, shelf: Path, local: Path, fresh: NodeStore
) -> None:
    harm(shelf, recipe.digest)
    log: list[str] = []
    got = provide(recipe.digest, archives=shelf, local=local, store=fresh, log=log.append)
    assert got.origin == "rebuilt" and got.seconds["rebuild"] > 0
    assert len(got.quarantined) == (harm is damage_bytes)
    assert fresh.contains(recipe.digest) and read_manifest(local, recipe.digest).digest == recipe.digest
    assert any("building it again" in each for each in log)


def test_a_recipe_is_found_where_an_earlier_call_moved_the_archive_away(
    recipe: Manifest, shelf: Path, local: Path, fresh: NodeStore
) -> None:
    damage_bytes(shelf, recipe.digest)
    assert provide(recipe.digest, archives=shelf, local=local, store=fresh).origin == "rebuilt"
    fresh.evict(recipe.digest)
    shutil.rmtree(local)  # as if that call had been killed before it was done
    local.mkdir()
    assert provide(recipe.digest, archives=shelf, local=shelf, store=fresh).origin == "rebuilt"


def test_a_recipe_that_gives_something_else_now_is_not_built(
    recipe: Manifest, shelf: Path, local: Path, fresh: NodeStore
) -> None:
    damage_bytes(shelf, recipe.digest)
    assert recipe.spec.source and recipe.spec.source.path
    (recipe.spec.source.path / "hello.py").write_text("print('bye')\n")
    with pytest.raises(DamagedArchiveError, match="would give another environment") as caught:
        provide(recipe.digest, archives=shelf, local=local, store=fresh)
    assert "is damaged" in line(caught.value, recipe.digest)
    assert not local.exists()


def test_what_somebody_replaced_meanwhile_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, shelf: Path, local: Path, fresh: NodeStore
) -> None:
    digest = plant(shelf, "a").digest
    sound = {name: (shelf / name).read_bytes() for name in both(digest)}
    damage_bytes(shelf, digest)
    materialise = fresh.materialise

    def late(*args):  # type: ignore[no-untyped-def]
        try:
            return materialise(*args)
        finally:
            for name, data in sound.items():
                (shelf / f"{name}.new").write_bytes(data)
                (shelf / f"{name}.new").replace(shelf / name)

    monkeypatch.setattr(fresh, "materialise", late)
    with pytest.raises(DamagedArchiveError, match="replaced meanwhile"):
        provide(digest, archives=shelf, local=local, store=fresh)
    monkeypatch.undo()
    assert names(shelf) == both(digest)
    assert provide(digest, archives=shelf, local=local, store=fresh).origin == "archives"


def _provide_together(root: Path, digest: str, local: Path, barrier, web: str) -> None:  # type: ignore[no-untyped-def]
    store = NodeStore(root)
    barrier.wait()

    def once() -> None:
        provide(digest, archives=web, local=local, store=store)

    threads = [threading.Thread(target=once) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.contains(digest)


def test_processes_and_threads_fetch_once(
    shelf: Path, local: Path, fresh: NodeStore, web: str, asked: list[str]
) -> None:
    digest = plant(shelf, "a", files=500).digest
    arguments = (fresh.root, digest, local, SPAWN.Barrier(2), web)
    workers = [SPAWN.Process(target=_provide_together, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sorted(asked) == [f"/{name}" for name in both(digest)]


class WaitingPeer(DirectoryPeer):
    """Sends nothing before it is told to; the state of that is in files, as another process asks."""

    def read(self, digest: str, offset: int, length: int) -> bytes:
        (self.directory / "asked").touch()
        wait_until((self.directory / "send").exists)
        return super().read(digest, offset, length)


def _provide_from(root: Path, digest: str, local: Path, peer: WaitingPeer) -> None:
    provide(digest, archives=local, local=local, store=NodeStore(root), peers=[peer])


def test_others_see_that_it_is_being_made_and_can_wait(
    shelf: Path, local: Path, fresh: NodeStore, tmp_path: Path
) -> None:
    digest = plant(shelf, "a").digest
    assert not fresh.is_being_made(digest)
    assert not fresh.wait_until_made(digest)
    maker = SPAWN.Process(target=_provide_from, args=(fresh.root, digest, local, WaitingPeer(shelf)))
    maker.start()
    wait_until((shelf / "asked").exists)
    assert fresh.is_being_made(digest) and not fresh.contains(digest)
    results: list[bool] = []
    waiter = threading.Thread(target=lambda: results.append(fresh.wait_until_made(digest)))
    waiter.start()
    assert fresh.is_being_made(digest) and results == []
    (shelf / "send").touch()
    waiter.join()
    assert results == [True]
    maker.join()
    assert maker.exitcode == 0 and not fresh.is_being_made(digest)


def test_a_maker_that_is_killed_holds_nobody_up(shelf: Path, local: Path, fresh: NodeStore) -> None:
    digest = plant(shelf, "a").digest
    maker = SPAWN.Process(target=_provide_from, args=(fresh.root, digest, local, WaitingPeer(shelf)))
    maker.start()
    wait_until((shelf / "asked").exists)
    maker.kill()
    assert not fresh.wait_until_made(digest)
    maker.join()
    (left,) = names(local)
    os.utime(local / left, (0, 0))  # as if it lay there for a while
    assert provide(digest, archives=local, local=local, store=fresh, peers=[DirectoryPeer(shelf)]).origin == "peer"
    assert names(local) == both(digest)


def test_missing_everywhere(shelf: Path, local: Path, fresh: NodeStore) -> None:
    digest = plant(shelf, "a").digest
    remove_manifest(shelf, digest)
    with pytest.raises(MissingArchiveError) as caught:
        provide(digest, archives=shelf, local=local, store=fresh, peers=[DirectoryPeer(shelf, "b")])
    message = line(caught.value, digest)
    assert str(shelf) in message and str(local) in message and "node b has none" in message


def layer_names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "layers").iterdir())


def test_layers_come_over_http_unless_they_lie_there(
    shelf: Path, local: Path, fresh: NodeStore, web: str, asked: list[str]
) -> None:
    a, b = plant(shelf, "a", packages=["one", "two"]), plant(shelf, "b", packages=["two", "three"])
    assert provide(a.digest, archives=web, local=local, store=fresh).origin == "url"
    old = {path: path.stat().st_ino for path in (local / "layers").iterdir()}
    asked.clear()
    assert provide(b.digest, archives=web, local=local, store=fresh).origin == "url"
    (new,) = {each.sha256 for each in b.layers} - {each.sha256 for each in a.layers}
    assert sorted(asked) == sorted([f"/{b.digest}.json", f"/layers/{new}.tar.zst", f"/{b.digest}.tar.zst"])
    assert layer_names(local) == layer_names(shelf)
    assert all(path.stat().st_ino == inode for path, inode in old.items())


@pytest.mark.parametrize("place", ["file", "flaky"])
def test_layers_come_from_a_directory_s_url_and_of_a_server_that_breaks_off(
    place: str, shelf: Path, local: Path, fresh: NodeStore, web: str
) -> None:
    manifest = plant(shelf, "a", packages=["one"])
    archives = shelf.as_uri() if place == "file" else f"{web}/flaky"
    got = provide(manifest.digest, archives=archives, local=local, store=fresh)
    assert got.origin == "url" and layer_names(local) == layer_names(shelf)


def test_layers_come_from_peers_and_the_manifest_last(
    shelf: Path, local: Path, fresh: NodeStore, tmp_path: Path
) -> None:
    manifest = plant(shelf, "a", packages=["one", "two"])

    class WatchedPeer(DirectoryPeer):
        def read_layer(self, sha256: str, offset: int, length: int) -> bytes:
            assert not manifest_path(local, manifest.digest).exists()
            return super().read_layer(sha256, offset, length)

    peer = WatchedPeer(shelf)
    lacking = DirectoryPeer(tmp_path / "lacking")
    tmp_path.joinpath("lacking").mkdir()
    for name in both(manifest.digest):
        (lacking.directory / name).write_bytes((shelf / name).read_bytes())
    got = provide(manifest.digest, archives=local, local=local, store=fresh, peers=[lacking, peer])
    assert got.origin == "peer" and not lacking.reads and not lacking.layers
    assert peer.layers == [
        each.sha256 for each in manifest.layers for _ in range(2)
    ]  # the second time it is at the end
    assert layer_names(local) == layer_names(shelf)


def test_a_layer_that_arrives_damaged_is_refused_and_fetched_elsewhere(
    shelf: Path, local: Path, fresh: NodeStore, tmp_path: Path
) -> None:
    manifest = plant(shelf, "a", packages=["one", "two"])
    shutil.copytree(shelf, tmp_path / "bad")
    bad = layer_path(tmp_path / "bad", manifest.layers[1].sha256)
    for harm in (lambda data: data[:-40], lambda data: data[:1000] + b"!" + data[1001:], lambda data: data + bytes(9)):
        bad.write_bytes(harm(layer_path(shelf, manifest.layers[1].sha256).read_bytes()))
        log: list[str] = []
        with pytest.raises(DamagedArchiveError, match="arrived damaged"):
            provide(
                manifest.digest,
                archives=(tmp_path / "bad").as_uri(),
                local=local,
                store=fresh,
                peers=[DirectoryPeer(tmp_path / "bad", "b")],
                log=log.append,
            )
        assert len([each for each in log if "passed over" in each]) == 2
        assert layer_names(local) == [f"{manifest.layers[0].sha256}.tar.zst"] and names(local) == ["layers"]
    peers = [DirectoryPeer(tmp_path / "bad", "b"), DirectoryPeer(shelf, "c")]
    assert provide(manifest.digest, archives=local, local=local, store=fresh, peers=peers).origin == "peer"
    assert set(peers[1].layers) == {manifest.layers[1].sha256}, "the first one lies there"


def test_a_layer_that_lies_there_damaged_is_moved_away_and_fetched(
    shelf: Path, local: Path, fresh: NodeStore, web: str, asked: list[str]
) -> None:
    a, b = plant(shelf, "a", packages=["one", "two"]), plant(shelf, "b", packages=["two"])
    provide(a.digest, archives=web, local=local, store=fresh)
    bad = layer_path(local, b.layers[0].sha256)
    bad.write_bytes(bad.read_bytes()[:-40])
    asked.clear()
    log: list[str] = []
    got = provide(b.digest, archives=web, local=local, store=fresh, log=log.append)
    assert got.origin == "url" and Path(got.quarantined[0]).name.startswith(f"{bad.name}.damaged-")
    assert asked.count(f"/layers/{bad.name}") == asked.count(f"/{b.digest}.tar.zst") == 1
    (said,) = log
    assert a.digest[:12] in said and b.digest[:12] in said and "\n" not in said
    fresh.evict(a.digest)
    assert provide(a.digest, archives=web, local=local, store=fresh).origin == "local"


def test_a_missing_layer_alone_is_fetched(shelf: Path, local: Path, fresh: NodeStore) -> None:
    manifest = plant(shelf, "a", packages=["one", "two"])
    shutil.copytree(shelf, local)
    layer_path(local, manifest.layers[0].sha256).unlink()
    peer = DirectoryPeer(shelf)
    assert provide(manifest.digest, archives=local, local=local, store=fresh, peers=[peer]).origin == "peer"
    assert peer.reads == [] and set(peer.layers) == {manifest.layers[0].sha256}


def _copies_make_room(disk: Path, shelf: Path, a: Manifest, b: Manifest, c: Manifest) -> None:
    store, local = NodeStore(disk.parent / "store"), disk / "local"
    for each in (a, b):
        provide(each.digest, archives=shelf.as_uri(), local=local, store=store)
        os.utime(local / f".{each.digest}.fetched", (0, 0) if each is a else None)
    (only_a,) = {each.sha256 for each in a.layers} - {each.sha256 for each in b.layers}
    with filled(disk, leave=RESERVE_BYTES + c.packed_bytes // 2):
        assert provide(c.digest, archives=shelf.as_uri(), local=local, store=store).origin == "url"
    assert not manifest_path(local, a.digest).exists() and not layer_path(local, only_a).exists()
    store.evict(b.digest)
    assert provide(b.digest, archives=shelf.as_uri(), local=local, store=store).origin == "local"


def test_copies_make_room_with_the_layers_that_nobody_else_needs(shelf: Path, tmp_path: Path) -> None:
    a, b = plant(shelf, "a", packages=["one", "two"]), plant(shelf, "b", packages=["two"])
    c = plant(shelf, "c", packages=["two", "three"])
    on_small_disk(partial(_copies_make_room, shelf=shelf, a=a, b=b, c=c), tmp_path, 80)

"""Real builds, in a cache of their own. The wheel cache of the user is shared if there is one: it only saves time."""

import base64
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from minisandbox_ray.environments import (
    BaseSystem,
    Environment,
    EnvSpec,
    Manifest,
    NodeStore,
    Source,
    build_environment,
    cache_root,
    environment_digest,
    find_interpreters,
)
from minisandbox_ray.environments.archive import normalise, pack, survey, write_manifest
from minisandbox_ray.environments.package_layers import SMALLEST, place_of_layers
from minisandbox_ray.sandbox.starter import syscalls

INFLECTION = EnvSpec(
    python="3.12",
    source=Source(
        kind="sdist",
        name="inflection",
        version="0.5.1",
        sha256="1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417",
    ),
    packages=["pytest==8.3.5"],
    install=["pip install -e ."],
    variables={"FLAVOUR": "plain"},
)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    wheels = cache_root() / "wheels"
    root = tmp_path_factory.mktemp("cache")
    if wheels.is_dir():
        (root / "wheels").symlink_to(wheels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINISANDBOX_CACHE", str(root))
        yield root


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where no package index can be reached."""
    target = tmp_path_factory.mktemp("index")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(target), "pytest==8.3.5"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no package index within reach: nothing can be built")


@pytest.fixture(scope="session")
def archives(cache: Path) -> Path:
    return cache / "archives"


@pytest.fixture(scope="session")
def store(cache: Path) -> NodeStore:
    return NodeStore(cache / "store")


@pytest.fixture
def fresh(tmp_path: Path, store: NodeStore) -> NodeStore:
    """A store that holds no environment, but the copies of interpreters, which take seconds."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/interpreters").symlink_to(store.root / "interpreters")
    return NodeStore(tmp_path / "store")


@pytest.fixture(scope="session")
def manifest(index: None, archives: Path, store: NodeStore) -> Manifest:
    return build_environment(INFLECTION, archives, store)


@pytest.fixture(scope="session")
def environment(manifest: Manifest, archives: Path, store: NodeStore) -> Iterator[Environment]:
    with store.use(manifest.digest, archives) as held:
        yield held


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def plant(
    archives: Path,
    name: str,
    files: int = 20,
    size: int = 1000,
    base: BaseSystem | None = None,
    content: bytes | None = None,
    packages: Sequence[str] = (),
) -> Manifest:
    """A small archive that no build made, nor can: for tests of archives and store, without network and sandbox.

    Each of `packages` is installed, and large enough for a layer of its own; its content depends on its name alone.
    """
    spec = EnvSpec(python="3.99", variables={"NAME": name})
    interpreter = next(each for each in find_interpreters() if not each.is_system).id
    base = base or BaseSystem.here()
    digest = environment_digest(spec, interpreter, base)
    tree = archives.parent / f"tree-{name}"
    (tree / "venv/bin").mkdir(parents=True)
    (tree / "testbed").mkdir()
    for number in range(files):
        (tree / f"testbed/{number}.txt").write_bytes(
            bytes([number % 251]) * size if content is None else bytes([number]) + content
        )
    (tree / "venv/bin/tool").write_text("#!/bin/sh\n")
    (tree / "venv/bin/tool").chmod(0o755)
    (tree / "venv/bin/link").symlink_to("tool")
    for package in packages:
        install(tree / place_of_layers(interpreter.version) / "site-packages", package)
    normalise(tree)
    entries, unpacked = survey(tree)
    packed = pack(tree, archives, digest, interpreter.version if packages else "")
    manifest = Manifest(
        digest=digest,
        spec=spec,
        interpreter=interpreter,
        base=base,
        archive_sha256=packed.archive_sha256,
        archive_bytes=packed.archive_bytes,
        layers=packed.layers,
        unpacked_bytes=unpacked,
        files=entries,
        commands=[],
        created="2020-01-01T00:00:00+00:00",
    )
    write_manifest(archives, manifest)
    return manifest


def install(place: Path, package: str, size: int = SMALLEST) -> None:
    """What pip would leave of a distribution in site-packages: a module that cannot be compressed, and a RECORD."""
    (place / package).mkdir(parents=True)
    text = base64.b85encode(random.Random(package).randbytes(size)).decode()
    (place / f"{package}/__init__.py").write_text(f'TEXT = """{text}"""\n')
    (place / f"{package}-1.dist-info").mkdir()
    (place / f"{package}-1.dist-info/RECORD").write_text(f"{package}/__init__.py,,\n{package}-1.dist-info/RECORD,,\n")


def on_small_disk(scenario: Callable[[Path], None], tmp_path: Path, mib: int) -> None:
    """Run a module's function in a process of its own that sees a tmpfs of that size at the path it is given."""
    if os.geteuid() != 0:
        pytest.skip("a small disk is mounted by root only")
    place = tmp_path / "disk"
    place.mkdir()
    process = multiprocessing.get_context("spawn").Process(target=_on_small_disk, args=(scenario, place, mib))
    process.start()
    process.join()
    assert process.exitcode == 0, "see the traceback on stderr"


def _on_small_disk(scenario: Callable[[Path], None], place: Path, mib: int) -> None:
    os.unshare(os.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", str(place), "tmpfs", data=f"mode=755,size={mib}m")
    scenario(place)


@contextmanager
def filled(disk: Path, leave: int = 0) -> Iterator[None]:
    """All room of a disk is taken, but `leave` bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        room = os.statvfs(disk)
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - leave)
    try:
        yield
    finally:
        ballast.unlink()

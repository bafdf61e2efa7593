"""The node store: environments unpacked once per node, shared by every sandbox, evicted least-recently-used.

Layout below the store's root::

    environments/<digest>/{venv,testbed,manifest.json}    read-only once there
    environments/<digest>/layers/<hash>/testbed           task layers, see `derive`
    interpreters/<version>-<build id>/                    copies, see `interpreters`
    locks/  scratch/

An environment in use is one whose lock file somebody holds shared. A lock dies with its process, so nothing that a
crash leaves behind blocks anybody.
"""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minisandbox_ray.environments.archive import Manifest, read_manifest, survey, unpack
from minisandbox_ray.environments.cache import Scratch, locked
from minisandbox_ray.environments.instructions import Machine
from minisandbox_ray.environments.interpreters import (
    Interpreter,
    choose_interpreter,
    copy_interpreter,
    find_interpreters,
    inside_prefix,
)
from minisandbox_ray.environments.layer import make_layer, write_layer_size
from minisandbox_ray.environments.machine import DOCKER_PATH, machine_overlays
from minisandbox_ray.environments.room import BLOCK, Room, free_room, is_full, reserve, writable_directory
from minisandbox_ray.environments.spec import BaseSystem, InterpreterId, content_hash
from minisandbox_ray.environments.system import system_binds, system_overlays
from minisandbox_ray.errors import ArchiveError, BuildError, StoreFullError, TaskError
from minisandbox_ray.sandbox import Bind, Isolation, Limits, Overlay, SandboxSpec

DEFAULT_BUDGET = 20 << 30
"""Bytes that unpacked environments may take on a node (20 GiB)."""
_INTERPRETER = Room(128 << 20, 5000)
"""About what the copy of one takes."""
_MAKING = ("provide", "make")


@dataclass(frozen=True)
class Environment:
    """A materialised environment. Hold it with `NodeStore.use` for as long as a sandbox of it lives."""

    manifest: Manifest
    root: Path
    """Its directory in the store."""
    interpreter: Path | None
    """The interpreter's copy in the store; none if the venv runs on a Python under /usr."""
    isolation: Isolation = "strict"
    """What its sandboxes ask for; the store's."""

    @property
    def digest(self) -> str:
        """Name of the environment."""
        return self.manifest.digest

    @property
    def venv(self) -> Path:
        """What sandboxes see at /venv."""
        return self.root / "venv"

    @property
    def testbed(self) -> Path:
        """What sandboxes see at /testbed."""
        return self.root / "testbed"

    def sandbox_spec(
        self,
        limits: Limits | None = None,
        layer: Path | None = None,
        network: Literal["none", "sink", "host"] | None = None,
    ) -> SandboxSpec:
        """A sandbox over this environment, with a task's `layer` (from `derive`) over its repository.

        Services are there, but do not run yet (`open_sandbox` starts them). `network`: by default `sink` where there
        are services, as tests that want a server want addresses that do not answer, too; else `none`.
        """
        version = self.manifest.interpreter.version
        if self.manifest.spec.machine:
            return self._machine_spec(self.manifest.spec.machine, limits, network)
        services = self.manifest.spec.services
        binds = [Bind(source=self.interpreter, target=inside_prefix(version))] if self.interpreter else []
        binds += [Bind(source=self.root / "services", target="/opt/services")] if services else []
        return SandboxSpec(
            overlays=[
                Overlay(target="/venv", lower=[self.venv]),
                Overlay(target="/testbed", lower=[*([layer] if layer else []), self.testbed]),
                *system_overlays(self.root / "system"),
            ],
            binds=binds + system_binds(self.root / "system"),
            env={"VIRTUAL_ENV": "/venv", **{key: value for each in services for key, value in each.variables.items()}}
            | self.manifest.spec.variables,
            network=network or ("sink" if services else "none"),
            hosts=[name for each in services for name in each.hosts],
            isolation=self.isolation,
            limits=limits or Limits(),
        )

    def _machine_spec(
        self, machine: Machine, limits: Limits | None, network: Literal["none", "sink", "host"] | None
    ) -> SandboxSpec:
        has_python = machine.has_python and self.interpreter
        inside = inside_prefix(self.manifest.interpreter.version)
        return SandboxSpec(
            overlays=machine_overlays(self.root / "system"),
            binds=[Bind(source=self.interpreter, target=inside)] if has_python and self.interpreter else [],
            env={"PATH": DOCKER_PATH} | self.manifest.spec.variables,
            network=network or "none",
            cwd=machine.workdir,
            isolation=self.isolation,
            limits=limits or Limits(),
        )


@dataclass(frozen=True)
class StoredEnvironment:
    """A line of the store's inventory."""

    digest: str
    bytes: int
    """Environment and task layers, unpacked."""
    last_used: float
    """Seconds since the epoch."""
    in_use: bool


@dataclass(frozen=True)
class StoreUsage:
    """How full a node store is."""

    bytes: int
    """Environments and task layers, unpacked."""
    environments: int
    budget_bytes: int
    """What environments and layers may take."""
    free_bytes: int
    """Of the store's disk, for an ordinary user."""


class NodeStore:
    """This node's environments; any number of processes and threads may share one root.

    Room is made by eviction, in the budget and on the disk. Where that is not enough, what needed it raises
    StoreFullError and leaves nothing behind; it works again as soon as there is room.
    """

    def __init__(self, root: Path, budget_bytes: int = DEFAULT_BUDGET, isolation: Isolation = "strict") -> None:
        """`budget_bytes` bounds environments and layers; interpreters (some 60 MB each) come on top.

        `isolation` is that of the sandboxes in which environments are built and used (see SandboxSpec). Raises
        ConfigError where `root` can't be written.
        """
        self.root, self.isolation = root.absolute(), isolation
        self.budget_bytes = budget_bytes
        self._environments = self.root / "environments"
        self._interpreters = self.root / "interpreters"
        self._locks = self.root / "locks"
        for folder in (self._environments, self._interpreters, self._locks):
            writable_directory(folder)
        self._scratch = Scratch(self.root / "scratch")
        self._scratch.sweep()
        self._sizes: dict[str, int] = {}

    def contains(self, digest: str) -> bool:
        """Whether the environment is unpacked here. Raises ArchiveError for what is no digest."""
        return self._directory(digest).is_dir()

    @contextmanager
    def use(self, digest: str, archives: Path) -> Iterator[Environment]:
        """Materialise if need be, and keep the environment from eviction until the end of the block.

        Raises MissingArchiveError, DamagedArchiveError, ArchiveError for one that was made for another system than
        this node, StoreFullError.
        """
        self._directory(digest)  # refuses what is no digest before a lock is named after it
        with locked(self._lock(digest), shared=True):
            now = time.time_ns()  # the kernel's own "now" is a timer tick coarse
            os.utime(self._lock(digest), ns=(now, now))
            yield self._ensure(digest, archives)

    def materialise(self, digest: str, archives: Path) -> Environment:
        """Unpack an environment once per node; concurrent callers wait for the one that does it.

        Nothing keeps the result from eviction: see `use`.
        """
        with self.use(digest, archives) as environment:
            return environment

    def adopt(self, manifest: Manifest, tree: Path) -> None:
        """Move a tree that was just packed into place, which saves unpacking it. `tree` is on the store's disk.

        One that is larger than the budget stays where it is.
        """
        if manifest.unpacked_bytes > self.budget_bytes:
            return
        with locked(self._lock(manifest.digest), shared=True), locked(self._lock(manifest.digest, "make")):
            if not self.contains(manifest.digest):
                self._make_room("", manifest.unpacked_bytes, Room(), strict=False)
                self._finish(manifest, tree)

    @contextmanager
    def providing(self, digest: str) -> Iterator[None]:
        """For who brings an archive to this node: one at a time, and `is_being_made` for everybody else."""
        self._directory(digest)
        with locked(self._lock(digest, "provide")):
            yield

    def is_being_made(self, digest: str) -> bool:
        """Whether some process fetches, unpacks or builds this environment now."""
        for lock in self._making(digest):
            with locked(lock, shared=True, wait=False) as free:
                if not free:
                    return True
        return False

    def wait_until_made(self, digest: str) -> bool:
        """Wait for who makes this environment, if anybody does, without making it; returns whether it is there."""
        for lock in self._making(digest):
            with locked(lock, shared=True):
                pass
        return self.contains(digest)

    def check_fits(self, manifest: Manifest) -> None:
        """Whether this node can hold and use an environment, before anything is fetched for it.

        Raises ArchiveError for what was made for another system, StoreFullError for more than the whole budget.
        """
        here = BaseSystem.here()
        if manifest.base != here:
            raise ArchiveError(
                f"archive {manifest.digest[:12]} is for {_words(manifest.base)}, this node is {_words(here)}: "
                f"build it on a node like this one"
            )
        if manifest.unpacked_bytes > self.budget_bytes:
            raise StoreFullError(
                f"environment {manifest.digest[:12]} takes {Room(manifest.unpacked_bytes).mib}, more than the "
                f"{Room(self.budget_bytes).mib} that the node store {self.root} may hold: raise store_gib"
            )
        self.interpreter_of(manifest)

    def make_disk_room(self, what: str, place: Path, needed: int) -> None:
        """Before `needed` bytes are written elsewhere, at the directory `place`: evict for them if that helps.

        Raises StoreFullError where there is still no room.
        """
        needs = Room(needed, 2)
        if place.stat().st_dev == self.root.stat().st_dev:
            self._make_room(what, 0, needs)
        elif not free_room(place).holds(needs + reserve(place)):
            raise self._full(what, needs, place)

    def held(self) -> frozenset[str]:
        """The digests of what is here."""
        return frozenset(folder.name for folder in self._environments.iterdir())

    def usage(self) -> StoreUsage:
        """How full the store is. Cheap: sizes are read once per environment and layer, no lock is touched."""
        sizes = [size for _, size, _ in self._kept()]
        return StoreUsage(sum(sizes), len(sizes), self.budget_bytes, free_room(self.root).bytes)

    def sweep(self) -> None:
        """Remove what processes that were killed in the middle of an unpack have left."""
        self._scratch.sweep()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary directory on the store's disk, removed at the end or, after a crash, by the next start."""
        with self._scratch.directory() as path:
            yield path

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """One at a time on this node for whatever `name` stands for."""
        with locked(self._locks / f"{name}.lock"):
            yield

    def interpreter(self, version: str, build_id: str = "") -> tuple[Interpreter, Path | None]:
        """The interpreter that matches `version`, and its copy in the store (none if sandboxes see it under /usr).

        Without `build_id` the newest match of this machine; BuildError says what there is instead.
        """
        if build_id:
            candidates = [each for each in find_interpreters() if each.version == version]
            candidates = [each for each in candidates if each.build_id == build_id]
            if not candidates:
                raise BuildError(f"python {version} (build {build_id[:12]}) is not on this node")
            chosen = candidates[0]
        else:
            chosen = choose_interpreter(version)
        return chosen, None if chosen.is_system else self._copied(chosen)

    def interpreter_of(self, manifest: Manifest) -> Path | None:
        """The copy in the store of the interpreter that an archive needs; none if sandboxes see it under /usr.

        Raises ArchiveError where this node lacks it.
        """
        needed = manifest.interpreter
        copy = self._copy_path(needed)
        if copy.is_dir():
            return copy
        try:
            return self.interpreter(needed.version, needed.build_id)[1]
        except BuildError as error:
            raise ArchiveError(
                f"archive {manifest.digest[:12]} needs the python it was built with, but {error}: install that build, "
                f"or build the environment on this node"
            )

    def adopt_interpreter(self, interpreter: InterpreterId, fill: Callable[[Path], None]) -> bool:
        """Take a copy that another node made of an interpreter; False if there is one.

        `fill` writes it to the directory it is called with. Raises what that raises, StoreFullError.
        """
        target = self._copy_path(interpreter)

        def make(scratch: Path) -> None:
            (scratch / "copy").mkdir()
            fill(scratch / "copy")
            survey(scratch / "copy")
            (scratch / "copy").rename(target)

        with self.exclusive(target.name):
            if target.is_dir():
                return False
            self._in_room(f"a copy of python {interpreter.version}", 0, _INTERPRETER, make, strict=False)
        return True

    def blank_venv(self, interpreter: Interpreter) -> Path:
        """Where builds keep a tar of a fresh venv of this interpreter."""
        path = self._copy_path(interpreter.id)
        return path.with_name(f"{path.name}.venv.tar")

    def derive(self, env: Environment, patch: str) -> Path:
        """The directory to lay over the repository so that it starts with `patch` applied, in a history of one commit.

        Made in a sandbox, once per node and patch; evicted with its environment. Raises TaskError if the patch does
        not apply.
        """
        key = content_hash({"digest": env.digest, "patch": patch.encode(errors="surrogateescape").hex()})
        layer = env.root / "layers" / key / "testbed"
        if layer.is_dir():
            return layer
        what = f"the layer of a task on environment {env.digest[:12]}"

        def make(scratch: Path) -> None:
            made = scratch / "layer"
            made.mkdir()
            make_layer(env.sandbox_spec(), env.testbed, patch, made / "testbed", f"environment {env.digest[:12]}")
            write_layer_size(made)
            layer.parent.parent.mkdir(exist_ok=True)
            made.rename(layer.parent)

        with locked(self._lock(env.digest), shared=True), self.exclusive(f"layer-{key[:2]}"):
            if not layer.is_dir():
                git = env.testbed / ".git"  # a layer has a whole one of its own
                files, size = survey(git) if git.is_dir() else (0, 0)
                self._in_room(what, size, Room(size + files * BLOCK, files), make, strict=False)
        return layer

    def inventory(self) -> list[StoredEnvironment]:
        """What is here, most recently used first."""
        found = []
        for digest, size, used in self._kept():
            with locked(self._lock(digest), wait=False) as free:
                found.append(StoredEnvironment(digest, size, used, not free))
        return found

    def evict(self, digest: str) -> bool:
        """Remove an environment with its layers; False if it is in use."""
        with locked(self._lock(digest), wait=False) as free:
            if free:
                self._discard(digest)
            return free

    @contextmanager
    def keep(self, digest: str) -> Iterator[Path | None]:
        """Where an environment is unpacked, kept from eviction; None if it is not here. That is no use of it."""
        directory = self._directory(digest)
        if not directory.is_dir():
            yield None
            return
        with locked(self._lock(digest), shared=True):
            yield directory if directory.is_dir() else None

    @contextmanager
    def retiring(self, digest: str, *, dry_run: bool = False) -> Iterator[bool]:
        """Nobody uses, fetches, unpacks or builds an environment meanwhile, and afterwards it is not here any more.

        Yields False, and leaves it, if somebody does so now; also leaves it if the block raises, or for a `dry_run`.
        """
        self._directory(digest)
        locks = [*(self._lock(digest, kind) for kind in (*_MAKING, "use")), self._locks / f"build-{digest}.lock"]
        with suppress(FileExistsError):
            self._lock(digest).touch(0o600, exist_ok=False)
            os.utime(self._lock(digest), (0, 0))  # this is no use of it
        with ExitStack() as held:
            free = all(held.enter_context(locked(lock, wait=False)) for lock in locks)
            yield free
            if free and not dry_run:
                self._discard(digest)

    def last_use(self, digest: str) -> float:
        """When an environment was last asked for here; seconds since the epoch, 0 if never."""
        try:
            return self._lock(digest).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _discard(self, digest: str) -> None:
        if self.contains(digest):
            self._scratch.discard(self._environments / digest)

    def _directory(self, digest: str) -> Path:
        """Where the environment is or would be. Raises ArchiveError for what is no digest: paths are made of it."""
        if not digest or not set(digest) <= set("0123456789abcdef"):
            raise ArchiveError(f"{digest!r} is not the digest of an environment: build one and name its digest")
        return self._environments / digest

    def _lock(self, digest: str, kind: str = "use") -> Path:
        return self._locks / f"{digest}.{kind}"

    def _ensure(self, digest: str, archives: Path) -> Environment:
        if not self.contains(digest):
            with locked(self._lock(digest, "make")):
                if not self.contains(digest):
                    self._unpack(read_manifest(archives, digest), archives)
        root = self._environments / digest
        try:
            manifest = Manifest.model_validate_json((root / "manifest.json").read_bytes())
        except ValueError:
            raise ArchiveError(
                f"the unpacked environment {root} is damaged, or of another version of this package: delete it while "
                f"nothing runs there, and it is unpacked again"
            )
        return Environment(manifest, root, self.interpreter_of(manifest), self.isolation)

    def _unpack(self, manifest: Manifest, archives: Path) -> None:
        self.check_fits(manifest)

        def make(scratch: Path) -> None:
            tree = scratch / "tree"
            tree.mkdir()
            unpack(archives, manifest, tree)
            self._finish(manifest, tree)

        what = f"environment {manifest.digest[:12]}"
        self._in_room(what, manifest.unpacked_bytes, unpacked_room(manifest), make)

    def _finish(self, manifest: Manifest, tree: Path) -> None:
        (tree / "manifest.json").write_text(manifest.model_dump_json(indent=1))
        tree.rename(self._environments / manifest.digest)

    def _copy_path(self, interpreter: InterpreterId) -> Path:
        return self._interpreters / f"{interpreter.version}-{interpreter.build_id[:16]}"

    def _copied(self, interpreter: Interpreter) -> Path:
        target = self._copy_path(interpreter.id)
        if target.is_dir():
            return target

        def make(scratch: Path) -> None:
            copy_interpreter(interpreter, scratch / "copy")
            survey(scratch / "copy")
            (scratch / "copy").rename(target)

        with self.exclusive(target.name):
            if not target.is_dir():
                self._in_room(f"a copy of python {interpreter.version}", 0, _INTERPRETER, make, strict=False)
        return target

    def _making(self, digest: str) -> list[Path]:
        """The locks that who makes an environment holds, one or several of them."""
        self._directory(digest)
        locks = [self._lock(digest, kind) for kind in _MAKING] + [self._locks / f"build-{digest}.lock"]
        return [lock for lock in locks if lock.exists()]

    def _kept(self) -> list[tuple[str, int, float]]:
        """Digest, bytes and last use of all that is here, most recently used first."""
        found = []
        sizes: dict[str, int] = {}  # neither environments nor layers change once they are there
        for folder in self._environments.iterdir():
            try:
                used = self._lock(folder.name).stat().st_mtime
                if (size := self._sizes.get(folder.name)) is None:
                    size = _unpacked_bytes((folder / "manifest.json").read_bytes())
                total = sizes[folder.name] = size
                for layer in (folder / "layers").glob("*"):
                    key = f"{folder.name}/{layer.name}"
                    if (size := self._sizes.get(key)) is None:
                        size = int((layer / "bytes").read_text())
                    sizes[key] = size
                    total += size
            except FileNotFoundError:
                continue  # evicted meanwhile
            found.append((folder.name, total, used))
        self._sizes = sizes
        return sorted(found, key=lambda each: each[2], reverse=True)

    def _in_room(
        self, what: str, budget: int, on_disk: Room, make: Callable[[Path], None], strict: bool = True
    ) -> None:
        """Call `make(scratch directory)` once there is room, and once more if the disk gets full all the same.

        Others may write to it, and needs are estimates. Raises StoreFullError.
        """
        self._make_room(what, budget, on_disk, strict)
        try:
            return self._attempt(make)
        except OSError as error:
            if not is_full(error):
                raise
        with self.exclusive("full"):  # those who filled it together would do so again
            self._make_room(what, budget, on_disk + on_disk, strict=False)
            self._make_room(what, budget, on_disk, strict)
            try:
                return self._attempt(make)
            except OSError as error:
                if not is_full(error):
                    raise
                raise self._full(what, on_disk) from error

    def _attempt(self, make: Callable[[Path], None]) -> None:
        """Raises OSError (ENOSPC) if the disk gets full, in whatever words that was said."""
        try:
            with self._scratch.directory() as scratch:
                try:
                    make(scratch)
                except TaskError as error:
                    # The same words mean the sandbox's own disk limit there, which is the task's affair.
                    if is_full(error) and not free_room(self.root).holds(Room(1 << 20, 1)):
                        raise OSError(errno.ENOSPC, str(error)) from error
                    raise
        except (OSError, BuildError, StoreFullError) as error:
            if is_full(error):
                raise OSError(errno.ENOSPC, str(error)) from error
            raise

    def _make_room(self, what: str, budget: int, on_disk: Room, strict: bool = True) -> None:
        """Evict what was not used for longest until there is room in the budget and on the disk.

        What is in use stays, budget or not. Without room on the disk raises StoreFullError, if `strict`.
        """
        with self.exclusive("evict"):
            wanted = on_disk + reserve(self.root)
            kept = self._kept()
            total = sum(size for _, size, _ in kept)
            for digest, size, _ in reversed(kept):
                if total + budget <= self.budget_bytes and free_room(self.root).holds(wanted):
                    return
                if self.evict(digest):
                    total -= size
            if strict and not free_room(self.root).holds(wanted):
                raise self._full(what, on_disk)

    def _full(self, what: str, needed: Room, place: Path | None = None) -> StoreFullError:
        place = place or self.root
        free, spare = free_room(place), reserve(place)
        inodes = f" ({free.files} inodes for {needed.files} files)" if free.files < needed.files + spare.files else ""
        return StoreFullError(
            f"the disk of {place} is full: {what} needs {needed.mib} and {spare.mib} in reserve, {free.mib} are "
            f"free{inodes} and nothing is left to evict: free some space there, or put MINISANDBOX_CACHE on a larger "
            f"disk"
        )


def unpacked_room(manifest: Manifest) -> Room:
    """What unpacking an archive may take on a disk."""
    return Room(manifest.unpacked_bytes + manifest.files * BLOCK, manifest.files)


def _words(base: BaseSystem) -> str:
    return f"{base.os}, {base.libc}, {base.arch}"


def _unpacked_bytes(manifest: bytes) -> int:
    """Of a manifest that another version of this package may have written; 0 if it is none: what nobody can use is
    evicted in its turn all the same."""
    try:
        return int(json.loads(manifest)["unpacked_bytes"])
    except (ValueError, KeyError, TypeError):
        return 0

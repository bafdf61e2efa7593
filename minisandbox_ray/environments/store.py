"""The node store: environments unpacked once per node, shared by every sandbox, evicted least-recently-used.

Layout below the store's root::

    environments/<digest>/{venv,testbed,manifest.json}    read-only once there
    environments/<digest>/layers/<hash>/testbed           task layers, see `derive`
    interpreters/<version>-<build id>/                    copies, see `interpreters`
    locks/  scratch/

An environment in use is one whose lock file somebody holds shared. A lock dies with its process, so nothing that a
crash leaves behind blocks anybody.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minisandbox_ray.environments.archive import Manifest, read_manifest, survey, unpack
from minisandbox_ray.environments.cache import Scratch, locked
from minisandbox_ray.environments.interpreters import (
    Interpreter,
    choose_interpreter,
    copy_interpreter,
    find_interpreters,
    inside_prefix,
)
from minisandbox_ray.environments.layer import make_layer, write_layer_size
from minisandbox_ray.environments.spec import BaseSystem, InterpreterId, content_hash
from minisandbox_ray.errors import ArchiveError, BuildError
from minisandbox_ray.sandbox import Bind, Isolation, Limits, Overlay, SandboxSpec

DEFAULT_BUDGET = 20 << 30
"""Bytes that unpacked environments may take on a node (20 GiB)."""


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
        network: Literal["none", "host"] = "none",
    ) -> SandboxSpec:
        """A sandbox over this environment, with a task's `layer` (from `derive`) over its repository."""
        version = self.manifest.interpreter.version
        return SandboxSpec(
            overlays=[
                Overlay(target="/venv", lower=[self.venv]),
                Overlay(target="/testbed", lower=[*([layer] if layer else []), self.testbed]),
            ],
            binds=[Bind(source=self.interpreter, target=inside_prefix(version))] if self.interpreter else [],
            env={"VIRTUAL_ENV": "/venv", **self.manifest.spec.variables},
            network=network,
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


class NodeStore:
    """This node's environments; any number of processes and threads may share one root."""

    def __init__(self, root: Path, budget_bytes: int = DEFAULT_BUDGET, isolation: Isolation = "strict") -> None:
        """`budget_bytes` bounds environments and layers; interpreters (some 60 MB each) come on top.

        `isolation` is that of the sandboxes in which environments are built and used (see SandboxSpec).
        """
        self.root, self.isolation = root.absolute(), isolation
        self.budget_bytes = budget_bytes
        self._environments = self.root / "environments"
        self._interpreters = self.root / "interpreters"
        self._locks = self.root / "locks"
        for folder in (self._environments, self._interpreters, self._locks):
            folder.mkdir(parents=True, exist_ok=True)
        self._scratch = Scratch(self.root / "scratch")
        self._scratch.sweep()

    def contains(self, digest: str) -> bool:
        """Whether the environment is unpacked here. Raises ArchiveError for what is no digest."""
        return self._directory(digest).is_dir()

    @contextmanager
    def use(self, digest: str, archives: Path) -> Iterator[Environment]:
        """Materialise if need be, and keep the environment from eviction until the end of the block.

        Raises ArchiveError for an archive that is missing, damaged, or made for another system than this node.
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
        """Move a tree that was just packed into place, which saves unpacking it. `tree` is on the store's disk."""
        with locked(self._lock(manifest.digest), shared=True), locked(self._lock(manifest.digest, "make")):
            if not self.contains(manifest.digest):
                self._make_room(manifest.unpacked_bytes)
                self._finish(manifest, tree)

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
        with (
            locked(self._lock(env.digest), shared=True),
            self.exclusive(f"layer-{key[:2]}"),
            self._scratch.directory() as scratch,
        ):
            if not layer.is_dir():
                made = scratch / "layer"
                made.mkdir()
                make_layer(env.sandbox_spec(), env.testbed, patch, made / "testbed", f"environment {env.digest[:12]}")
                write_layer_size(made)
                layer.parent.parent.mkdir(exist_ok=True)
                made.rename(layer.parent)
        return layer

    def inventory(self) -> list[StoredEnvironment]:
        """What is here, most recently used first."""
        found = []
        for folder in self._environments.iterdir():
            lock = self._lock(folder.name)
            try:
                used = lock.stat().st_mtime
                size = Manifest.model_validate_json((folder / "manifest.json").read_bytes()).unpacked_bytes
                size += sum(int(each.read_text()) for each in folder.glob("layers/*/bytes"))
            except FileNotFoundError:
                continue  # evicted meanwhile
            with locked(lock, wait=False) as free:
                found.append(StoredEnvironment(folder.name, size, used, not free))
        return sorted(found, key=lambda each: each.last_used, reverse=True)

    def evict(self, digest: str) -> bool:
        """Remove an environment with its layers; False if it is in use."""
        with locked(self._lock(digest), wait=False) as free:
            if not free:
                return False
            with self._scratch.directory() as scratch:
                if self.contains(digest):
                    (self._environments / digest).rename(scratch / digest)
        return True

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
        manifest = Manifest.model_validate_json((root / "manifest.json").read_bytes())
        return Environment(manifest, root, self._interpreter_of(manifest), self.isolation)

    def _unpack(self, manifest: Manifest, archives: Path) -> None:
        here = BaseSystem.here()
        if manifest.base != here:
            raise ArchiveError(
                f"archive {manifest.digest[:12]} is for {_words(manifest.base)}, this node is {_words(here)}: "
                f"build it on a node like this one"
            )
        self._interpreter_of(manifest)
        self._make_room(manifest.unpacked_bytes)
        with self._scratch.directory() as scratch:
            tree = scratch / "tree"
            tree.mkdir()
            unpack(archives, manifest, tree)
            self._finish(manifest, tree)

    def _finish(self, manifest: Manifest, tree: Path) -> None:
        (tree / "manifest.json").write_text(manifest.model_dump_json(indent=1))
        tree.rename(self._environments / manifest.digest)

    def _interpreter_of(self, manifest: Manifest) -> Path | None:
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

    def _copy_path(self, interpreter: InterpreterId) -> Path:
        return self._interpreters / f"{interpreter.version}-{interpreter.build_id[:16]}"

    def _copied(self, interpreter: Interpreter) -> Path:
        target = self._copy_path(interpreter.id)
        if not target.is_dir():
            with self.exclusive(target.name), self._scratch.directory() as scratch:
                if not target.is_dir():
                    copy_interpreter(interpreter, scratch / "copy")
                    survey(scratch / "copy")
                    (scratch / "copy").rename(target)
        return target

    def _make_room(self, needed: int) -> None:
        """Evict what was not used for longest until `needed` bytes fit. What is in use stays, budget or not."""
        with self.exclusive("evict"):
            kept = self.inventory()
            total = sum(each.bytes for each in kept)
            for each in reversed(kept):
                if total + needed <= self.budget_bytes:
                    return
                if not each.in_use and self.evict(each.digest):
                    total -= each.bytes


def _words(base: BaseSystem) -> str:
    return f"{base.os}, {base.libc}, {base.arch}"

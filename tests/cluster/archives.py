"""Small archives that no build made, for tests of how environments travel between nodes."""

import os
from pathlib import Path

from minisandbox_ray.environments import BaseSystem, EnvSpec, Manifest, environment_digest, find_interpreters
from minisandbox_ray.environments.archive import normalise, pack, survey, write_manifest


def plant(archives: Path, name: str, kib: int = 64) -> str:
    """Put one there, of so many KiB that do not compress well; returns its digest."""
    archives.mkdir(parents=True, exist_ok=True)
    # A system's python needs no copy in the stores.
    interpreter = min(find_interpreters(), key=lambda each: not each.is_system).id
    spec = EnvSpec(python="3.99", variables={"NAME": name})
    digest = environment_digest(spec, interpreter, BaseSystem.here())
    tree = archives.parent / f"tree-{name}"
    (tree / "venv").mkdir(parents=True)
    (tree / "testbed").mkdir()
    (tree / "testbed" / "noise").write_bytes(os.urandom(kib << 10))
    normalise(tree)
    entries, unpacked = survey(tree)
    packed = pack(tree, archives, digest)
    manifest = Manifest(
        digest=digest,
        spec=spec,
        interpreter=interpreter,
        base=BaseSystem.here(),
        archive_sha256=packed.archive_sha256,
        archive_bytes=packed.archive_bytes,
        unpacked_bytes=unpacked,
        files=entries,
        commands=[],
        created="2020-01-01T00:00:00+00:00",
    )
    write_manifest(archives, manifest)
    return digest

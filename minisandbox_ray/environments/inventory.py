"""What lies in the cache, for people."""

import time
from pathlib import Path

from minisandbox_ray.environments.archive import Manifest, read_manifest
from minisandbox_ray.environments.store import NodeStore
from minisandbox_ray.errors import ArchiveError


def describe(store: NodeStore, archives: Path) -> list[dict[str, str]]:
    """One row per environment that has an archive in `archives` or is unpacked in `store`; all values are text.

    What an archive shares with others is told apart from what is its own.
    """
    here = {each.digest: each for each in store.inventory()}
    rows = []
    for digest in sorted({path.stem for path in archives.glob("*.json")} | set(here)):
        try:
            manifest: Manifest | None = read_manifest(archives, digest)
        except ArchiveError:
            manifest = None
        stored = here.get(digest)
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(stored.last_used)) if stored else ""
        rows.append(
            {
                "digest": digest[:12],
                "source": manifest.spec.describe() if manifest else "no valid archive",
                "python": manifest.interpreter.version if manifest else "",
                "archive": _size(manifest.archive_bytes) if manifest else "",
                "layers": _size(manifest.packed_bytes - manifest.archive_bytes) if manifest and manifest.layers else "",
                "unpacked": _size(stored.bytes) if stored else "",
                "last used": f"{used} (in use)" if stored and stored.in_use else used,
            }
        )
    return rows


def _size(number: int) -> str:
    return f"{number / 1e6:.1f} MB"

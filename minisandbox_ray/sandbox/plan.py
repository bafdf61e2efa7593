"""A spec as the starter takes it."""

import os
import tempfile
from pathlib import Path
from typing import Any

from .groups import settings
from .spec import SandboxSpec

_SHARED_MEMORY_MIB = 64


def make_plan(spec: SandboxSpec) -> dict[str, Any]:
    """Raises OSError for a host path that is not there."""
    limits = spec.limits
    is_host = spec.network == "host"
    return {
        "overlays": [
            {"target": overlay.target, "lower": [_source(lower) for lower in overlay.lower]}
            for overlay in spec.overlays
        ],
        "binds": [
            {"target": bind.target, "source": _source(bind.source), "writable": bind.writable} for bind in spec.binds
        ],
        "network": spec.network,
        "resolv_conf": _read("/etc/resolv.conf") if is_host else "",
        "hosts": "".join(f"127.0.0.1\t{name}\n" for name in spec.hosts) + (_read("/etc/hosts") if is_host else ""),
        "hostname": spec.hostname,
        # files count as memory, and no killing frees them: what processes need to go on must stay out of their reach
        "disk_mib": min(limits.disk_mib, max(1, limits.memory_mib * 3 // 4)),
        "shared_memory_mib": min(_SHARED_MEMORY_MIB, max(1, limits.memory_mib // 16), limits.disk_mib),
        "open_files": limits.open_files,
        "memory_mib": limits.memory_mib,
        "pids": limits.pids,
        "group_settings": settings(limits),
        "wall_seconds": limits.wall_seconds,
        "isolation": spec.isolation,
        "confined": False,
        "scratch": scratch(),
        "groups": True,
        "copies": False,
        "since": 0,
    }


def scratch() -> str:
    """Where the private directories of sandboxes without namespaces are made."""
    return str(Path(tempfile.gettempdir()).resolve())


def _source(path: Path) -> list[Any]:
    """A host path and what it is: [path, device, inode]"""
    absolute = str(path.absolute())
    status = os.stat(absolute)  # noqa: PTH116
    return [absolute, status.st_dev, status.st_ino]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""

"""Files of a sandbox, kept: a tmpfs of their own that lives as long as somebody holds its descriptors."""

# ruff: noqa: PTH102, PTH103

import os

from . import paths, tree, wire
from . import syscalls as sys

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def take(origin: list[int], plan: wire.Message) -> list[int]:
    """In a forked child: copy what is below the descriptors `root` and `layers`; -> descriptors of the copies

    Raises OSError.
    """
    os.unshare(os.CLONE_NEWNS)
    sys.mount(None, "/", None, sys.MS_REC | sys.MS_SLAVE)
    sys.mount("tmpfs", "/tmp", "tmpfs", sys.MS_NOSUID | sys.MS_NODEV, "mode=700,size=0,nr_inodes=0")
    copies = []
    for source, name in zip(origin, ("root", "layers"), strict=True):
        os.mkdir(f"/tmp/{name}", 0o700)
        copies.append(copy := os.open(f"/tmp/{name}", _DIRECTORY))
        tree.copy(source if name == "layers" else paths.open_in_root(source, ".", _DIRECTORY), copy)
    for place in ("dev/shm", *plan["copied"]):  # mounts of their own
        kept = f"/tmp/root/{place}"
        os.makedirs(kept, exist_ok=True)
        tree.copy(paths.open_in_root(origin[0], place, _DIRECTORY), os.open(kept, _DIRECTORY))
    sys.unmount("/tmp")
    return copies

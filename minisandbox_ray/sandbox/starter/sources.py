"""The host's files and directories that a plan shows, as mounts that are attached nowhere yet."""

import os
from typing import Any

from . import syscalls as sys
from .identity import Identity

_READ_ONLY = sys.ATTR_RDONLY | sys.ATTR_NOSUID | sys.ATTR_NODEV


class StaleError(Exception):
    """This process does not see what the owner sees: it was mounted since, or for the owner alone."""


class UnmappableError(Exception):
    """A file system cannot show its files' owners as the identity needs them."""


def clone(plan: dict[str, Any], identity: Identity) -> list[int]:
    """-> descriptors: of each lower directory of each overlay, then of each bind

    Raises StaleError, UnmappableError, OSError with the path.
    """
    mounts: list[int] = []
    try:
        for overlay in plan["overlays"]:
            for source in overlay["lower"]:
                # an overlay looks at no mount below; but an ordinary user cannot copy a mount without those
                mounts.append(_clone(source, identity, _READ_ONLY, recursive=identity.kind == "own", must_map=True))
        for bind in plan["binds"]:
            attributes = sys.ATTR_NOSUID | sys.ATTR_NODEV if bind["writable"] else _READ_ONLY
            mounts.append(_clone(bind["source"], identity, attributes, recursive=True, must_map=bind["writable"]))
    except BaseException:
        for mount in mounts:
            os.close(mount)
        raise
    return mounts


def refuse_copy(target: str) -> None:
    """A whole /usr is too much to copy into memory for each sandbox. Raises OSError."""
    if target == "/usr":
        raise OSError(
            "system packages lie over /usr, which takes overlay mounts: `doctor` says why there are none here"
        )


def _clone(source: list[Any], identity: Identity, attributes: int, *, recursive: bool, must_map: bool) -> int:
    path, *seen = source
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if [status.st_dev, status.st_ino] != seen:
            raise StaleError(path)
        return copy_mount(descriptor, identity, attributes, recursive=recursive, must_map=must_map)
    finally:
        os.close(descriptor)


def copy_mount(source: int, identity: Identity, attributes: int, *, recursive: bool, must_map: bool) -> int:
    """A copy of what is at a descriptor. If it need not be mapped and cannot be, its files belong to nobody inside."""
    mount = sys.clone_mount(source, recursive=recursive)
    try:
        if identity.maps_mounts:
            try:
                sys.set_mount_attributes(mount, 0, recursive=recursive, user_namespace=identity.namespace)
            except OSError:
                if must_map:
                    raise UnmappableError from None
        sys.set_mount_attributes(mount, attributes, recursive=recursive)
    except BaseException:
        os.close(mount)
        raise
    return mount

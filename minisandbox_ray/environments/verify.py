"""Whether archives and what was unpacked from them are still what was built."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minisandbox_ray.environments.archive import Manifest, check, compare, read_manifest
from minisandbox_ray.environments.git_objects import check_pack
from minisandbox_ray.environments.package_layers import layer_path
from minisandbox_ray.environments.store import NodeStore
from minisandbox_ray.environments.tar import FIXED_TIME
from minisandbox_ray.errors import ArchiveError


@dataclass(frozen=True)
class Verified:
    """One archive, or one unpacked copy."""

    digest: str
    place: Path
    problem: str
    """One line; "" if it is sound."""
    bytes: int = 0
    """What was read and is sound."""


def verify(
    digest: str, archives: Sequence[Path], stores: Sequence[NodeStore], sound_layers: set[Path] | None = None
) -> Iterator[Verified]:
    """Read every archive of an environment, and compare each unpacked copy with it: names, content, modes, times.

    Layers in `sound_layers` are not read anew, and those that were found sound are added to it.

    Where no sound archive is left to compare with, a copy is held against its manifest alone: how many files, how many
    bytes, and that none was written since. Says so if there is neither archive nor copy.
    """
    sound: tuple[Path, Manifest] | None = None
    found = False
    known = set() if sound_layers is None else sound_layers
    for directory in archives:
        if not any((directory / f"{digest}.{suffix}").exists() for suffix in ("json", "tar.zst")):
            continue
        found = True
        try:
            manifest = read_manifest(directory, digest)
            new = [each for each in manifest.layers if layer_path(directory, each.sha256) not in known]
            check(directory, manifest, {each.sha256 for each in manifest.layers} - {each.sha256 for each in new})
        except ArchiveError as error:
            yield Verified(digest, directory, str(error))
        else:
            sound = sound or (directory, manifest)
            known.update(layer_path(directory, each.sha256) for each in new)
            yield Verified(digest, directory, "", manifest.archive_bytes + sum(each.packed_bytes for each in new))
    for store in stores:
        with store.keep(digest) as root:
            if root is not None:
                found = True
                yield _verify_copy(digest, root, sound)
    if not found:
        yield Verified(digest, archives[0] if archives else Path(), f"no archive and no unpacked copy of {digest[:12]}")


def _verify_copy(digest: str, root: Path, sound: tuple[Path, Manifest] | None) -> Verified:
    advice = "delete it while nothing runs there, and it is unpacked again"
    try:
        manifest = Manifest.model_validate_json((root / "manifest.json").read_bytes())
        problem = _shallow(root, manifest)
        if not problem and sound is not None and _content(sound[1]) == _content(manifest):
            problem = compare(sound[0], manifest, root)
        if not problem and manifest.made_bytes is not None:
            problem = check_pack(root / "testbed")
    except (OSError, ValueError, ArchiveError) as error:
        problem = next(iter(str(error).splitlines()), type(error).__name__)
    if problem:
        return Verified(digest, root, f"the unpacked copy {root} is not what was packed ({problem}): {advice}")
    return Verified(digest, root, "", manifest.unpacked_bytes)


def _content(manifest: Manifest) -> tuple[str, list[str]]:
    return manifest.archive_sha256, [each.sha256 for each in manifest.layers]


def _shallow(root: Path, manifest: Manifest) -> str:
    files, size = 0, manifest.made_bytes or 0
    # Its size may depend on zlib's version.
    made = root / "testbed/.git/objects/pack" if manifest.made_bytes is not None else None
    for folder, folders, names in root.walk():
        if folder == root:
            folders[:] = [name for name in folders if name != "layers"]
            names.remove("manifest.json")
        files += len(folders) + len(names)
        for name in names:
            info = (folder / name).lstat()
            if not (folder / name).is_symlink() and folder != made:
                size += info.st_size
            is_index = name == "index" and folder.name == ".git"
            if info.st_mtime != FIXED_TIME and not is_index:
                return f"{(folder / name).relative_to(root)} was written since"
    if (files, size) != (manifest.files, manifest.unpacked_bytes):
        return f"{files} files of {manifest.files}, {size} bytes of {manifest.unpacked_bytes}"
    return ""

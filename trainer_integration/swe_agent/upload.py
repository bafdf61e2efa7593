"""Files and directories of the host, copied into a sandbox as SWE-ReX copies them."""

import os
from pathlib import Path

from minisandbox_ray.sandbox import Sandbox


def upload(sandbox: Sandbox, source: str | Path, target: str, above: tuple[Path, ...] = ()) -> None:
    """Copy a file to a path or into a directory, or what is in a directory to a directory, made where missing.

    A link in a directory stays one if it is relative and leads to something in there; else what it leads to is copied,
    unless that is a directory around it (`above`, when this calls itself). Raises OSError.
    """
    path = Path(source).resolve(strict=True)
    if not path.is_dir():
        try:
            sandbox.upload(path, target)
        except IsADirectoryError:
            sandbox.upload(path, f"{target}/{Path(source).name}")
        return
    sandbox.upload(path, target)
    for link in _leading_out(path):
        there = link.resolve()
        if there.exists() and not any(each.is_relative_to(there) for each in (path, *above)):
            place = f"{target}/{link.relative_to(path)}"
            sandbox.execute(["rm", "-rf", "--", place])
            upload(sandbox, there, place, (path, *above))


def _leading_out(directory: Path) -> list[Path]:
    """The links below it that would lead elsewhere from another place."""
    found = []
    for parent, names, files in os.walk(directory):
        for path in (Path(parent, name) for name in names + files):
            if path.is_symlink():
                link = path.readlink()
                inside = Path(os.path.normpath(path.parent / link))
                if link.is_absolute() or not inside.is_relative_to(directory):
                    found.append(path)
    return found

"""Which files a sandbox's programs wrote: the kernel's own record of it, which nothing inside can reach."""

import os
import stat
from pathlib import PurePosixPath

from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.sandbox.starter import syscalls

Written = dict[str, tuple[int, int]]
"""(inode, time of the last change in ns) by absolute path inside."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY
_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_MOST = 200_000


def written(sandbox: Sandbox) -> Written:
    """All below /testbed and /venv that is not as the environment has it; everything where there is no overlay.

    Content does not count: what is written back as it was is there, too, and so is what was removed. A directory that
    cannot be read, or is one of too many, counts as one with a conftest.py in it.
    """
    found: Written = {}
    for target, directory, path in sandbox.written_places:
        _walk(directory, path, target, found)
    return found


def _walk(root: int, place: str, shown: str, found: Written) -> None:
    top = place.lstrip("/")
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            folder = syscalls.openat2(root, os.fsencode(top + below), _FLAGS, resolve=_RESOLVE)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError:  # closed to its owner, or too deep
            found[f"{shown}{below}/conftest.py"] = (0, 0)
            continue
        try:
            for name in os.listdir(folder):  # noqa: PTH208
                if name == ".git":
                    continue
                if len(found) + len(waiting) >= _MOST:
                    found[f"{shown}{below}/conftest.py"] = (0, 0)
                    return
                try:
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(f"{below}/{name}")
                else:
                    found[f"{shown}{below}/{name}"] = (status.st_ino, status.st_ctime_ns)
        finally:
            os.close(folder)


def changed(before: Written, after: Written) -> list[str]:
    """Paths that were written in between, in order."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def is_runner_s(path: str) -> bool:
    """Whether a path below /venv is code or configuration that the interpreter may run."""
    file = PurePosixPath(path)
    if not path.startswith("/venv/"):
        return False
    parts = file.parts[2:]
    is_code = file.suffix in {".py", ".pth", ".so", ".cfg"} or parts[0] == "bin"
    return is_code or (file.suffix == ".pyc" and bool({"_pytest", "pytest", "pluggy"} & set(parts)))

"""Run pytest as an ordinary user, who has no privilege at all: `python tests/ordinary_user.py [pytest arguments]`.

For root only. In a mount namespace of its own, thrown away at the end, the interpreter and this repository are made
readable where they lie in a private home directory; nothing outside of it changes.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from minisandbox_ray.sandbox.starter import syscalls

_USER = 12345  # of nobody's
_REPOSITORY = Path(__file__).parent.parent


def _closed_to_others(path: Path) -> Path | None:
    """The topmost directory above `path` (or itself) that others may not enter."""
    for directory in [*reversed(path.parents), path]:
        if not directory.stat().st_mode & 0o001:
            return directory
    return None


def _open_up(needed: list[Path]) -> None:
    """Let others reach these directories, with nothing else of what is around them."""
    closed: dict[Path, list[tuple[Path, int]]] = {}
    for path in needed:
        if top := _closed_to_others(path):
            closed.setdefault(top, []).append((path, os.open(path, os.O_PATH)))
    for top, inner in closed.items():
        syscalls.mount("tmpfs", str(top), "tmpfs", data="mode=755")
        for path, descriptor in inner:
            path.mkdir(parents=True, exist_ok=True)
            syscalls.mount(f"/proc/self/fd/{descriptor}", str(path), None, syscalls.MS_BIND)
            os.close(descriptor)


def main() -> int:
    if os.geteuid() != 0:
        print(
            "tests.ordinary_user: run by root, to become somebody else; an ordinary user runs pytest", file=sys.stderr
        )
        return 2
    scratch = Path(tempfile.mkdtemp(prefix="mst-user-"))
    os.chown(scratch, _USER, _USER)
    pid = os.fork()
    if pid == 0:
        os.unshare(os.CLONE_NEWNS)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        _open_up([Path(sys.base_prefix).resolve(), Path(sys.prefix), _REPOSITORY])
        os.chdir(_REPOSITORY)
        os.setgroups([])
        os.setresgid(_USER, _USER, _USER)
        os.setresuid(_USER, _USER, _USER)
        environment = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        environment |= {
            "HOME": str(scratch),
            "PYTHONDONTWRITEBYTECODE": "1",
            "USER": "somebody",
        }
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *sys.argv[1:]]
        os.execve(sys.executable, command, environment)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

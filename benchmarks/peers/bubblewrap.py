"""bubblewrap starting bash: the bare cost of namespaces and binds. No overlay, no limits, no seccomp filter."""

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.sandbox.spec import DEFAULT_ENV

NAME = "bubblewrap: bash on pipes, the same binds, no overlay"
_COVERED = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")  # what --proc makes read-only itself
# bwrap's root is a tmpfs as well, and its /dev has the same parts; the others are those of our overlays
_PARTS = ("/dev/", "/proc/layers", "/proc/control")


class _Bash:
    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, env=DEFAULT_ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, process_group=0
        )
        assert self._process.stdin and self._process.stdout
        self._stdin: IO[bytes] = self._process.stdin
        self._stdout: IO[bytes] = self._process.stdout
        self._stdin.write(b"echo ready\n")
        if self._stdout.readline() != b"ready\n":
            self.close()
            raise RuntimeError(f"bwrap starts no bash here (status {self._process.returncode})")

    def close(self) -> None:
        """The bash dies with the process that stands for it, or of its input's end where --die-with-parent fails (about
        one time in a thousand); it is gone once nothing holds its output.
        """
        self._process.kill()
        self._stdin.close()
        self._process.wait()
        self._stdout.read()
        self._stdout.close()


def starter(sandbox: Sandbox) -> Callable[[], _Bash] | None:
    """How to start one with a bind for each mount that a running sandbox of ours has; None: not installed."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    command = [program, "--unshare-all", "--die-with-parent", *mounts(sandbox)]
    command += ["--dir", sandbox.spec.cwd, "--chdir", sandbox.spec.cwd, "/bin/bash", "--norc", "--noprofile"]
    return partial(_Bash, command)


def mounts(sandbox: Sandbox) -> list[str]:
    """From a running sandbox's own mount table. Overlays become writable binds of their lowest directory."""
    spec, pid = sandbox.spec, sandbox.init_pid
    arguments = []
    overlays = {overlay.target: str(overlay.lower[-1]) for overlay in spec.overlays}
    binds = {bind.target: bind for bind in spec.binds}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        mount, _, rest = line.partition(" - ")
        point, kind = mount.split()[4], rest.split()[0]
        if point == "/" or point in _COVERED or point.startswith(_PARTS):
            continue
        if point in ("/proc", "/dev"):
            arguments += [f"--{point[1:]}", point]
        elif point in overlays:
            arguments += ["--bind", overlays[point], point]
        elif point in binds:
            arguments += ["--bind" if binds[point].writable else "--ro-bind", str(binds[point].source), point]
        elif kind == "tmpfs" and point.startswith("/proc/") and not Path(point).is_dir():
            arguments += ["--ro-bind", "/dev/null", point]
        elif kind == "tmpfs" or not Path(point).exists():
            arguments += ["--tmpfs", point]
        else:
            arguments += ["--ro-bind", point, point]
    root = Path(f"/proc/{pid}/root")
    for path in sorted(root.iterdir()):
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), f"/{path.name}"]
    return arguments

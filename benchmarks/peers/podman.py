"""podman `run -d` + `exec`, as a rollout service on containers would use it.

The image holds bash and sleep alone: podman is spared the environment. Everything it writes goes to the scratch
directory or, in a mount namespace of its own, to memory; at the end nothing of it is left. On hybrid control groups
crun refuses to work while it sees a version 2 hierarchy beside version 1, so that one is covered there. Entering that
namespace (nsenter) costs podman about 1 ms a command.
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PROGRAMS = ("/bin/bash", "/bin/sleep")
_PATIENCE = 10.0  # seconds
_LIFE = "900"  # seconds: containers end by themselves if the benchmark is killed
_CGROUPS = Path("/sys/fs/cgroup")
_NAMESPACE = """
set -e
mount -t tmpfs tmpfs /run
mkdir /run/etc /run/etc-work /run/lib /run/lib-work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/etc-work /etc
mount -t overlay overlay -o lowerdir=/var/lib,upperdir=/run/lib,workdir=/run/lib-work /var/lib
if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
echo made
read wait
"""
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")  # root may lack CAP_SYS_RESOURCE


class Podman:
    """One engine with its own storage."""

    def __init__(self, scratch: Path, runtime: str, namespace: int) -> None:
        self.runtime = runtime
        self.name = f"podman run -d + exec, {runtime}; an image of bash alone"
        self.cgroup = f"/benchmark-podman-{os.getpid()}"
        self._namespace = namespace
        self._command = ["nsenter", f"--mount=/proc/self/fd/{namespace}", "podman", f"--root={scratch / 'root'}"]
        self._command += [f"--runtime={runtime}", "--cgroup-manager=cgroupfs", "--events-backend=none"]
        self._numbers = itertools.count()

    def call(self, *arguments: str | Path) -> str:
        """Its standard output. Raises RuntimeError with the last line of its complaint."""
        done = subprocess.run(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            pass_fds=[self._namespace],
            process_group=0,  # Ctrl-C is for the benchmark, which still needs it to clean up
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"podman {arguments[0]}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return done.stdout

    def end(self) -> None:
        """Nothing of it runs any more, and its control groups are gone. Waits for what podman leaves to clean up."""
        with suppress(RuntimeError):
            self.call("rm", "--all", "--force", "--time=0")
        deadline = time.monotonic() + _PATIENCE
        while (members := _members(os.fstat(self._namespace).st_ino)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for groups in _CGROUPS.glob(f"*{self.cgroup}"):
            for directory, _, _ in groups.walk(top_down=False):
                with suppress(OSError):  # then somebody else's process is in it
                    directory.rmdir()

    def start(self) -> "_Container":
        """A container that has answered."""
        return _Container(self, f"benchmark-{next(self._numbers)}")


class _Container:
    def __init__(self, podman: Podman, name: str) -> None:
        place = ["--name", name, "--network=none", f"--cgroup-parent={podman.cgroup}", *_LIMITS]
        podman.call("run", "--detach", *place, "benchmark", "/bin/sleep", _LIFE)
        self._podman, self._name = podman, name
        if podman.call("exec", name, "/bin/bash", "--norc", "--noprofile", "-c", "echo ready") != "ready\n":
            raise RuntimeError("podman exec gives no answer")

    def close(self) -> None:
        """Gone, with its storage."""
        self._podman.call("rm", "--force", "--time=0", self._name)


@contextmanager
def engine(scratch: Path, complain: Callable[[str], object]) -> Iterator[Podman | None]:
    """None if podman with crun or runc is not installed, or does not work here: then `complain` is told why."""
    runtime = next(filter(shutil.which, ("crun", "runc")), None)
    if runtime is None or not shutil.which("podman"):
        yield None
        return
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "/bin/sh", "-c", _NAMESPACE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert holder.stdout and holder.stderr
    scratch.mkdir()
    namespace, podman, works = -1, None, False
    try:
        try:
            if holder.stdout.readline() != "made\n":
                raise RuntimeError(holder.stderr.readline().strip())
            namespace = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            podman = Podman(scratch, runtime, namespace)
            podman.call("import", _image(scratch / "image.tar"), "benchmark")
            podman.start().close()
            works = True
        except RuntimeError as error:
            complain(f"podman is not measured, it does not work here: {error}")
        yield podman if works else None
    finally:
        holder.communicate()
        if podman is not None:
            podman.end()
        if namespace >= 0:
            os.close(namespace)


def _members(namespace: int) -> list[int]:
    """The processes that live in a mount namespace, given by its inode number."""
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/mnt"):
        with suppress(OSError):
            if path.stat().st_ino == namespace:
                found.append(int(path.parts[2]))
    return found


def _image(archive: Path) -> Path:
    """Two programs with their libraries."""
    listed = subprocess.run(["ldd", *_PROGRAMS], capture_output=True, text=True, check=True).stdout
    with tarfile.open(archive, "w") as tar:
        for name in ("proc", "sys", "dev", "tmp", "etc", "run"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        for path in sorted({*_PROGRAMS, *re.findall(r"(/\S+) \(", listed)}):
            tar.add(Path(path).resolve(), path)
    return archive

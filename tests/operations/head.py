"""A Ray cluster as a person starts it, with ``ray start`` and a token, and what is left on this machine of what ran."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 180.0
BIN = Path(sys.prefix) / "bin"


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def free_ports(count: int) -> int:
    """The first of so many free ports in a row, which nobody is given by the kernel or by Ray's workers."""
    while True:
        first = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("", port))
            return first


@dataclass
class Head:
    """A cluster of one node."""

    process: subprocess.Popen
    port: int
    environment: dict[str, str]
    """With the token, as a client needs it."""
    log: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.port + 1}"

    def comes_up(self) -> bool:
        """Wait until jobs can be submitted; False if it does not come to that."""
        return wait_until(lambda: self._answers() or self.process.poll() is not None) and self.process.poll() is None

    def _answers(self) -> bool:
        if "Ray runtime started" not in self.log.read_text():
            return False
        request = urllib.request.Request(f"{self.dashboard}/api/jobs/")
        request.add_header("Authorization", f"Bearer {Path(self.environment['RAY_AUTH_TOKEN_PATH']).read_text()}")
        try:
            return urllib.request.urlopen(request, timeout=5).status == 200
        except OSError:
            return False

    def run(self, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """A program of this installation, beside the cluster."""
        name, *arguments = map(str, command)
        return subprocess.run(
            [str(BIN / name), *arguments],
            env=self.environment | {"RAY_ADDRESS": self.dashboard if name == "ray" else self.address} | environment,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )

    def submit(self, job: str, *command: object, wait: bool = True) -> subprocess.CompletedProcess[str]:
        options = [] if wait else ["--no-wait"]
        return self.run("ray", "job", "submit", "--submission-id", job, *options, "--", *command)

    def pools(self) -> dict:
        shown = self.run("python", "-m", "minisandbox_ray", "status", "--json")
        assert shown.returncode == 0, shown.stderr + self.log.read_text()[-2000:]
        return json.loads(shown.stdout)


@contextlib.contextmanager
def start_head(directory: Path, cache: Path) -> Iterator[Head]:
    """``directory`` is short: Ray's sockets lie below it."""
    directory.mkdir()
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(os.urandom(32).hex())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
    environment |= {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_TMPDIR": str(directory),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": str(PATIENCE),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_JOB_STOP_WAIT_TIME_S": "60",
        "MINISANDBOX_CACHE": str(cache),
    }
    head = _start(directory / "ray-start.log", environment)
    try:
        for _ in range(2):  # Ray gives its processes 30 s to start, which a busy machine may not
            if not head.comes_up():
                _end(head)
                head = _start(head.log, environment)
        assert head.comes_up(), head.log.read_text()
        yield head
    finally:
        _end(head)


def _start(log: Path, environment: dict[str, str]) -> Head:
    port = free_ports(4)
    command = [str(BIN / "ray"), "start", "--head", "--block", f"--port={port}", f"--dashboard-port={port + 1}"]
    command += [f"--ray-client-server-port={port + 2}", f"--dashboard-agent-listen-port={port + 3}"]
    command += ["--num-cpus=2", '--resources={"unpack_slots": 1, "sandbox": 4}']
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    return Head(process, port, environment, log)


def _end(head: Head) -> None:
    directory = Path(head.environment["RAY_TMPDIR"])
    everybody = set(processes_of(directory))
    head.process.send_signal(signal.SIGTERM)
    head.process.wait(PATIENCE)
    if not wait_until(lambda: not everybody & set(processes_of(directory)), 30):
        for pid, _ in everybody & set(processes_of(directory)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_of(directory: Path) -> dict[tuple[int, str], str]:
    """Those that belong to the cluster in ``directory``, and the sandboxes of its workers, with their command lines:
    {(pid, start time): …}."""
    parents, lines, found = {}, {}, set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit():
                continue
            pid, fields = int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] == "Z":
                continue
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            parents[pid], lines[pid, fields[19]] = int(fields[1]), line
            if f"RAY_TMPDIR={directory}\0".encode() in (entry / "environ").read_bytes():
                found.add(pid)
    owners = {f"minisandbox starter of {pid}" for pid in found}
    found |= {pid for (pid, _), line in lines.items() if line in owners}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return {key: line for key, line in lines.items() if key[0] in found}


def sandbox_groups(pids: set[int]) -> list[Path]:
    """Control groups of sandboxes that these processes own."""
    groups = Path("/sys/fs/cgroup").rglob("minisandbox-*")
    return [group for group in groups if int(group.name.split("-")[2]) in pids]


def mounts() -> list[str]:
    """This machine's, apart from those of others' runs."""
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if "minisandbox" in line]

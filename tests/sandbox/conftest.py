"""Real sandboxes over a small repository; what attacks the root it runs in must go through `guarded`."""

# ruff: noqa: PTH115, PTH208

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Limits, Overlay, Sandbox, SandboxSpec

GIT_ENV = {
    **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z",
}


@pytest.fixture(scope="session", autouse=True)
def _supported(sandboxes: None) -> None:
    pass


def git(directory: Path, *arguments: str, stdin: bytes | None = None) -> bytes:
    command = ["git", "-c", "safe.directory=*", "-C", str(directory), *arguments]
    return subprocess.run(command, env=GIT_ENV, check=True, input=stdin, stdout=subprocess.PIPE).stdout


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with one commit and a file a.txt that holds "one"."""
    directory = tmp_path_factory.mktemp("repository")
    (directory / "a.txt").write_text("one\n")
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", "a.txt")
    git(directory, "commit", "-q", "-m", "one")
    return directory


Factory = Callable[..., Sandbox]


@pytest.fixture
def start(repository: Path) -> Iterator[Factory]:
    """Start sandboxes over the repository; keywords are limits, but `spec` (fields of the spec) and `lower`."""
    started: list[Sandbox] = []

    def make(*, lower: Path | None = None, spec: dict | None = None, **limits: int) -> Sandbox:
        overlay = Overlay(target="/testbed", lower=[lower or repository])
        fields = {"overlays": [overlay], "limits": Limits(**limits), **(spec or {})}
        started.append(Sandbox(SandboxSpec(**fields)))
        return started[-1]

    yield make
    for sandbox in started:
        sandbox.close()


def guard(sandbox: Sandbox) -> None:
    """Prove that commands run in a private root before anything destructive is sent there."""
    namespace = os.readlink("/proc/self/ns/mnt")
    inside = sandbox.execute(["readlink", "/proc/self/ns/mnt"], cwd="/").stdout.decode().strip()
    assert inside.startswith("mnt:[")
    assert inside != namespace
    assert sandbox.run("cat /etc/minisandbox").output == "private root\n"
    assert not Path("/etc/minisandbox").exists()


def namespace_of(sandbox: Sandbox) -> str:
    """Its mount namespace; its first process tells that to root alone."""
    return sandbox.execute(["readlink", "/proc/self/ns/mnt"], cwd="/").stdout.decode().strip()


def is_there(sandbox: Sandbox, path: str) -> bool:
    try:
        sandbox.read_file(path)
    except FileNotFoundError:
        return False
    return True


def run_for_ever(sandbox: Sandbox, threads: int = 1) -> tuple[list[threading.Thread], list[SandboxError]]:
    """Have threads run a command that ends only with the sandbox, one after the other.

    -> they, the first one's command being under way, and what their calls raise
    """
    raised: list[SandboxError] = []

    def run() -> None:
        try:
            sandbox.run("touch up; sleep 1000", timeout=1000)
        except SandboxError as error:
            raised.append(error)

    started = [threading.Thread(target=run) for _ in range(threads)]
    for thread in started:
        thread.start()
    assert eventually(lambda: b"up" in sandbox.execute(["ls"]).stdout.split())
    return started, raised


def processes_in(namespace: str) -> set[tuple[int, int]]:
    """The processes of a mount namespace: (pid, start time). An ordinary user does not see the first one."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            start = _start_time(int(name))
            if start and os.readlink(f"/proc/{name}/ns/mnt") == namespace:
                found.add((int(name), start))
        except OSError:
            continue
    return found


def still_alive(processes: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of them that have not ended.

    Not: who is in the namespace now. Its number is given to the next one as soon as it is gone.
    """
    return {(pid, start) for pid, start in processes if _start_time(pid) == start}


def _start_time(pid: int) -> int:
    """0 if there is no such process, or nothing but its exit status."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

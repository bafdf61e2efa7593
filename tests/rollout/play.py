"""What tests of episodes share: actions, and the processes of a sandbox and its worker as this machine sees them."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from minisandbox_ray.rollout import EpisodePool

SUBMIT = "```bash\nsubmit\n```"


def bash(command: str) -> str:
    return f"I run this.\n\n```bash\n{command}\n```\n"


def until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def used(pool: EpisodePool) -> int:
    return sum(node["used"] for node in pool.stats()["nodes"].values())


def _arguments(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def _status(pid: int) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = int(_status(pid)["PPid"])


def _processes(match: Callable[[int], bool]) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and match(int(entry.name)):
                yield int(entry.name)
        except OSError:  # it has gone meanwhile
            continue


def _is_init(pid: int) -> bool:
    return _status(pid)["NSpid"].split()[-1] == "1"


def sandbox_init(marker: str) -> int:
    """Host process id of the first process of the sandbox in which a process has ``marker`` as an argument; 0 if there
    is none."""
    for pid in _processes(lambda pid: marker.encode() in _arguments(pid)):
        try:
            return next((above for above in _ancestors(pid) if _is_init(above)), 0)
        except OSError:
            continue
    return 0


def _is_worker(pid: int) -> bool:
    return _arguments(pid)[0].startswith(b"ray::SandboxWorker")


def sandbox_worker(marker: str) -> int:
    """Host process id of the worker of that sandbox, which its starter's title names; 0 if there is none."""
    try:
        for above in _ancestors(sandbox_init(marker)):
            if title := re.search(r"starter of (\d+)", _arguments(above)[0].decode()):
                return int(title[1])
    except OSError:
        pass
    return 0


def diff_init() -> int:
    """Host process id of the first process of a sandbox of this process's cluster in which git makes a diff; or 0."""
    ours = [f"starter of {worker}".encode() for worker in workers()]
    for pid in _processes(lambda pid: b"fast-import" in _arguments(pid)):
        try:
            init = next((above for above in _ancestors(pid) if _is_init(above)), 0)
            if any(worker in _arguments(int(_status(init)["PPid"]))[0] for worker in ours):
                return init
        except (OSError, KeyError):
            continue
    return 0


def workers() -> list[int]:
    """Host process ids of the workers of this process's own Ray cluster."""
    return list(_processes(lambda pid: _is_worker(pid) and os.getpid() in _ancestors(pid)))


def kill(victim: Callable[[str], int], marker: str) -> None:
    """Kill ``victim(marker)``, once the command that ``marker`` tells runs in a sandbox; its sandbox is gone then."""
    found: list[int] = []
    assert until(lambda: bool(found.append(victim(marker)) or found[-1]))
    os.kill(found[-1], signal.SIGKILL)
    assert until(lambda: not _runs(found[-1]))


def _runs(pid: int) -> bool:
    try:
        return _status(pid)["State"][0] != "Z"
    except OSError:
        return False

"""What /proc says of processes: who descends from whom, and what they hold.

No pathlib where process numbers are: Python 3.12 keeps every part of a path for ever, which the soak would count.
"""

# ruff: noqa: PTH123, PTH208

import os
import re
from collections import defaultdict
from pathlib import Path


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _stat(pid: int) -> list[str]:
    """The fields after the name: state, parent, …, start time (19)."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def parent(pid: int) -> int:
    """Raises OSError if there is no such process."""
    return int(_stat(pid)[1])


def identity(pid: int) -> tuple[int, str]:
    """Names a process for ever: numbers come again, start times don't."""
    return pid, _stat(pid)[19]


def is_there(identified: tuple[int, str]) -> bool:
    """Whether that process still exists, be it as a zombie."""
    try:
        return identity(identified[0]) == identified
    except OSError:
        return False


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    children = defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            children[parent(int(name))].append(int(name))
        except OSError:  # it has ended meanwhile
            continue
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def command(pid: int) -> str:
    """Its short name; empty if it has ended."""
    try:
        return _read(f"/proc/{pid}/comm").strip()
    except OSError:
        return ""


def memory_mib(pid: int, kind: str = "Pss") -> float:
    """`Pss` counts a page that n processes share as an n-th; `Anonymous` leaves out files. MiB; 0 if it has ended."""
    try:
        text = _read(f"/proc/{pid}/smaps_rollup")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    found = re.search(rf"^{kind}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def charged_mib(pid: int) -> float | None:
    """What the memory control group of a process is charged with: its files in memory and kernel objects included."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory" or (not controllers and path != "/"):
            version_1, version_2 = Path(f"/sys/fs/cgroup/memory{path}"), Path(f"/sys/fs/cgroup{path}")
            for file in (version_1 / "memory.usage_in_bytes", version_2 / "memory.current"):
                if path != "/" and file.exists():
                    return int(file.read_text()) / 2**20
    return None

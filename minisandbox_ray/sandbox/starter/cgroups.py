"""Control groups of sandboxes: memory and number of processes, on version 1, version 2 and mixed systems.

A sandbox has one directory per hierarchy, named after the process that owns it (pid namespace, pid, start time), so
that whoever comes later can tell what a dead owner left behind.
Sources: the kernel's admin-guide/cgroup-v1/{memory,pids}.rst and admin-guide/cgroup-v2.rst.
"""

# ruff: noqa: PTH115

import contextlib
import os
import re
import signal
import time
from pathlib import Path

_PREFIX = "minisandbox"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-(\d+)-(\d+)-\d+")


def owner_key(pid: int) -> str:
    """Names a process for ever, within its machine's uptime. Raises OSError if there is no such process."""
    namespace = re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{namespace}-{pid}-{start}"


def hierarchies() -> dict[str, tuple[Path, int]]:
    """{"memory" | "pids": (directory to make groups in, cgroup version)}, as far as they can be written."""
    found: dict[str, tuple[Path, int]] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, options = line.split()[:4]
        if kind == "cgroup":
            for controller in {"memory", "pids"} & set(options.split(",")):
                found[controller] = (Path(target), 1)
        elif kind == "cgroup2":
            for controller in _enable(Path(target)):
                found.setdefault(controller, (Path(target), 2))
    return {name: place for name, place in found.items() if os.access(place[0], os.W_OK)}


def _enable(root: Path) -> set[str]:
    """The controllers that children of a version 2 directory have, after asking for those that we need."""
    control = root / "cgroup.subtree_control"
    for controller in {"memory", "pids"} & set((root / "cgroup.controllers").read_text().split()):
        try:
            control.write_text(f"+{controller}")
        except OSError:  # not ours to delegate, or it holds processes itself
            continue
    return {"memory", "pids"} & set(control.read_text().split())


def remove(directory: Path, patience: float) -> bool:
    """Kill what is left in a group and remove it; -> whether it went within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            directory.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
        try:
            pids = [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
        except OSError:
            pids = []
        for pid in pids:
            if pid > 1:  # 0 stands for processes of pid namespaces that are not ours
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def remove_groups_of(owner: str) -> None:
    """Remove all groups of an owner that is gone."""
    for root, _ in set(hierarchies().values()):
        for directory in root.glob(f"{_PREFIX}-{owner}-*"):
            remove(directory, patience=2)


def sweep() -> None:
    """Remove the groups of owners of this pid namespace that are dead; a live one's are left alone."""
    for root, _ in set(hierarchies().values()):
        for directory in root.glob(f"{_PREFIX}-*"):
            match = _NAME.fullmatch(directory.name)
            if match and not _is_alive(*match.groups()):
                remove(directory, patience=0.1)


def _is_alive(namespace: str, pid: str, start: str) -> bool:
    if namespace != re.sub(r"\D", "", os.readlink("/proc/self/ns/pid")):
        return True  # somebody else's to judge
    try:
        return owner_key(int(pid)) == f"{namespace}-{pid}-{start}"
    except OSError:
        return False

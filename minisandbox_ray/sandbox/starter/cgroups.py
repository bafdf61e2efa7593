"""Control groups of sandboxes: memory, processes and processor time, on version 1, version 2 and mixed systems.

A sandbox has one directory per hierarchy, named after the process that owns it (pid namespace, pid, start time), so
that whoever comes later can tell what a dead owner left behind. It is made below the control group that the starter
itself is in, so that whatever limits the owner limits its sandboxes; where that is not possible, further up.
Sources: the kernel's admin-guide/cgroup-v1/{memory,pids}.rst, scheduler/sched-bwc.rst and admin-guide/cgroup-v2.rst;
cgroup_namespaces(7) for how both tables below look from inside a namespace.
"""

# ruff: noqa: PTH115

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "minisandbox"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-(\d+)-(\d+)-\d+")
_MOST_DIRECTORIES, _DEEPEST = 10_000, 12  # of a tree, that a search for groups looks at


class Mount(NamedTuple):
    """A control group file system as this process sees it."""

    target: Path
    version: int
    controllers: frozenset[str]
    """Of version 1, those of ours among its controllers; a version 2 directory says itself which it has."""
    own: str | None
    """Where below `target` this process is; None if that is not to be seen there."""


class Hierarchy(NamedTuple):
    """Where groups may be made, best first: (directory, those of our controllers that its groups would have)."""

    version: int
    candidates: list[tuple[Path, frozenset[str]]]


def owner_key(pid: int) -> str:
    """Names a process for ever, within its machine's uptime. Raises OSError if there is no such process."""
    namespace = re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{namespace}-{pid}-{start}"


def new_name(owner: str) -> str:
    """A name for the groups of one more sandbox of an owner, whichever of its starters asks."""
    return f"{_PREFIX}-{owner}-{time.monotonic_ns()}"


def names_of(owner: str) -> Callable[[str], object]:
    """-> whether a name is one of `new_name` for that owner"""
    return re.compile(rf"{_PREFIX}-{owner}-\d+").fullmatch


def find_mounts(mountinfo: str, membership: str) -> list[Mount]:
    """The mounted hierarchies that have controllers of ours, from the texts of /proc/self/{mountinfo,cgroup}."""
    paths: dict[str, str] = {}  # of this process, by controller; version 2: by ""
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    found: dict[str, Mount] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, target = map(_unescape, before.split()[3:5])
        kind, _, options = after.split()[:3]
        if kind == "cgroup":
            controllers = frozenset(CONTROLLERS) & frozenset(options.split(","))
            own = paths.get(min(controllers), "/") if controllers else None
        elif kind == "cgroup2":
            controllers, own = frozenset[str](), paths.get("", "/")
        else:
            continue
        if own is not None:
            mount = Mount(Path(target), 2 if kind == "cgroup2" else 1, controllers, _below(root, own))
            key = ",".join(sorted(controllers))
            if key not in found or found[key].own is None or mount.own is not None:
                found[key] = mount
    return list(found.values())


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _below(root: str, path: str) -> str | None:
    """`path` as one below a mount of `root`; None if it is not there, or only a namespace above ours knows its name.

    Both may begin with `/..`: then they are outside of this process's control group namespace.
    """
    parts, above = path.strip("/").split("/"), root.strip("/").split("/")
    parts, above = [part for part in parts if part], [part for part in above if part]
    rest = parts[len(above) :]
    return None if parts[: len(above)] != above or ".." in rest else "/".join(rest)


def read_mounts() -> list[Mount]:
    """Those of this process."""
    try:
        return find_mounts(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    except OSError:  # no /proc worth the name
        return []


def hierarchies(mounts: list[Mount] | None = None) -> list[Hierarchy]:
    """Where this process may be allowed to make groups: its own, those above it, up to the hierarchy's root."""
    found = []
    for mount in read_mounts() if mounts is None else mounts:
        own = mount.target / (mount.own or "")
        directories = [own, *(above for above in own.parents if above.is_relative_to(mount.target))]
        candidates = []
        for directory in directories:
            controllers = mount.controllers if mount.version == 1 else _enable(directory)
            if controllers and os.access(directory, os.W_OK):
                candidates.append((directory, controllers))
        candidates.sort(key=lambda candidate: -len(candidate[1]))  # stable: among equals the nearest
        if candidates:
            found.append(Hierarchy(mount.version, candidates))
    return found


def _enable(directory: Path) -> frozenset[str]:
    """The controllers that children of a version 2 directory have, after asking for those that we need."""
    control = directory / "cgroup.subtree_control"
    try:
        here = set((directory / "cgroup.controllers").read_text().split())
        for controller in here.intersection(CONTROLLERS).difference(control.read_text().split()):
            with contextlib.suppress(OSError):  # not ours to delegate, or it holds processes itself
                control.write_text(f"+{controller}")
        return frozenset(control.read_text().split()).intersection(CONTROLLERS)
    except OSError:
        return frozenset()


def make(places: list[Hierarchy], name: str) -> dict[str, tuple[str, int]]:
    """Make groups and put this process in; -> {controller: (directory, cgroup version)} of those that could be had."""
    made: dict[str, tuple[str, int]] = {}
    for version, candidates in places:
        for directory, controllers in candidates:
            wanted = controllers.difference(made)
            if wanted and _enter(directory / name):
                made.update(dict.fromkeys(wanted, (str(directory / name), version)))
                break
    return made


# swap and sockets are not accounted on every kernel
_OPTIONAL = ("memory.swap.max", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes")


def open_all(made: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Descriptors of the directories that `make` made, for later, when they are out of sight."""
    return {name: os.open(directory, os.O_PATH | os.O_CLOEXEC) for name, (directory, _) in made.items()}


def write_settings(
    made: Mapping[str, tuple[str, int]],
    directories: Mapping[str, int],
    settings: Mapping[str, Mapping[str, Mapping[str, str]]],
) -> None:
    """`settings` are {controller: {version: {file: value}}}. Raises OSError."""
    for name, (_, version) in made.items():
        for file, value in settings[name].get(str(version), {}).items():
            try:
                descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directories[name])
            except FileNotFoundError:
                if file in _OPTIONAL:
                    continue
                raise
            try:
                os.write(descriptor, value.encode())
            finally:
                os.close(descriptor)


def _enter(group: Path) -> bool:
    try:
        group.mkdir()
    except OSError:
        return False
    try:
        (group / "cgroup.procs").write_text("0")
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return False
    return True


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


def find_groups(is_wanted: Callable[[str], object]) -> Iterator[Path]:
    """Groups of sandboxes whose name is wanted, wherever in the trees: their owner may have been in any group."""
    for mount in read_mounts():
        todo, seen = [(mount.target, 0)], 0
        while todo and seen < _MOST_DIRECTORIES:
            directory, depth = todo.pop()
            seen += 1
            try:
                with os.scandir(directory) as entries:
                    names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue
            for name in names:
                if name.startswith(f"{_PREFIX}-"):
                    if is_wanted(name):
                        yield directory / name
                elif depth < _DEEPEST:
                    todo.append((directory / name, depth + 1))


def remove_groups_of(owner: str) -> None:
    """Remove all groups of an owner that is gone."""
    for directory in find_groups(names_of(owner)):
        remove(directory, patience=2)


def sweep(owner: str) -> None:
    """Remove the groups of owners of this pid namespace that are dead; a live one's are left alone.

    Of `owner` itself, those that are empty: an earlier starter of its was killed.
    """
    for directory in find_groups(is_left):
        remove(directory, patience=0.1)
    for directory in find_groups(names_of(owner)):
        with contextlib.suppress(OSError):
            directory.rmdir()


def is_left(name: str) -> bool:
    """Whether that is a name of `new_name` whose owner is dead."""
    match = _NAME.fullmatch(name)
    return match is not None and not _is_alive(*match.groups())


def _is_alive(namespace: str, pid: str, start: str) -> bool:
    if namespace != re.sub(r"\D", "", os.readlink("/proc/self/ns/pid")):
        return True  # somebody else's to judge
    try:
        return owner_key(int(pid)) == f"{namespace}-{pid}-{start}"
    except OSError:
        return False

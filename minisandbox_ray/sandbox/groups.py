"""The control groups of one sandbox as its owner sees them: the limits in them, and which of those were hit.

Or what its watchdog tells of them, where it has no such group.
"""

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from .spec import LimitName, Limits
from .starter import cgroups, watchdog

_MIB = 1 << 20
_PERIOD = 100_000  # microseconds, in which the processor time is counted; the kernel's default
_HELD_BACK = 0.25  # of a command's time, from which on the limit on processor time is said to have been hit
_EVENTS: dict[LimitName, dict[int, tuple[str, bytes, float]]] = {
    # limit: {cgroup version: (file, the key in it that counts hits or time held back, one hit or second in its unit)}
    "memory": {1: ("memory.oom_control", b"oom_kill", 1), 2: ("memory.events", b"oom_kill", 1)},
    "pids": {1: ("pids.events", b"max", 1), 2: ("pids.events", b"max", 1)},
    "cpu": {1: ("cpu.stat", b"throttled_time", 1e9), 2: ("cpu.stat", b"throttled_usec", 1e6)},
}


class Groups:
    """The groups that a sandbox's first process made (see `cgroups.make`): any of them may be missing."""

    def __init__(self, places: Mapping[str, tuple[str, int]]) -> None:
        self._names = list(dict.fromkeys(directory for directory, _ in places.values()))
        self.directories = [Path(name) for name in self._names]
        self._files: dict[LimitName, tuple[int, bytes, float]] = {}
        self._watchdog: int | None = None
        self._lock = threading.Lock()
        try:
            for name, by_version in _EVENTS.items():
                if name not in places:
                    continue
                directory, version = places[name]
                with contextlib.suppress(FileNotFoundError):  # no cpu.stat without bandwidth control
                    file, key, unit = by_version[version]
                    self._files[name] = os.open(f"{directory}/{file}", os.O_RDONLY | os.O_CLOEXEC), key, unit
            self._seen = self._counts()
        except BaseException:
            self.close()
            raise

    def add_watchdog(self, descriptor: int | None) -> None:
        """What the sandbox's watchdog writes its hits to, if it has one; stays the caller's."""
        self._watchdog = descriptor

    def _counts(self) -> dict[LimitName, float]:
        found: dict[LimitName, float] = {}
        for name, (descriptor, key, unit) in self._files.items():
            for line in os.pread(descriptor, 4096, 0).splitlines():
                word, _, value = line.partition(b" ")
                if word == key:
                    found[name] = int(value) / unit
        if self._watchdog is not None:
            memory, pids = watchdog.HITS.unpack(os.pread(self._watchdog, watchdog.HITS.size, 0))
            return {"memory": memory, "pids": pids, **found}  # it counts what no group does
        return found

    def new_hits(self, seconds: float = 0) -> list[LimitName]:
        """The limits that were hit since the last call, by what took so many seconds."""
        with self._lock:
            counts = self._counts()
            least = {"cpu": _HELD_BACK * seconds}
            hits = [name for name, count in counts.items() if count - self._seen.get(name, 0) > least.get(name, 0)]
            self._seen = counts
            return hits

    def close(self) -> None:
        """After the sandbox's processes are gone. What resists is left to the starter, and to the next sweep."""
        with self._lock:
            self._watchdog = None
            for descriptor, _, _ in self._files.values():
                os.close(descriptor)
            self._files = {}
        for name, directory in zip(self._names, self.directories, strict=False):
            try:
                os.rmdir(name)  # noqa: PTH106  (pathlib keeps the parts of every path that it looks at for ever)
            except OSError:
                cgroups.remove(directory, patience=2)
        self.directories = []


def settings(limits: Limits) -> dict[str, dict[str, dict[str, str]]]:
    """{controller: {cgroup version: {file: value}}}, in the order in which they must be written."""
    memory, swap = limits.memory_mib * _MIB, limits.swap_mib * _MIB
    quota = max(1000, round((limits.cpus or 0) * _PERIOD))  # the kernel's least
    return {
        "memory": {
            "1": {
                "memory.limit_in_bytes": str(memory),
                "memory.memsw.limit_in_bytes": str(memory + swap),
                # buffers of sockets, which version 1 counts apart; all sandboxes and the host share what there may be
                "memory.kmem.tcp.limit_in_bytes": str(memory // 8),
            },
            "2": {"memory.max": str(memory), "memory.swap.max": str(swap)},
        },
        "pids": {version: {"pids.max": str(limits.pids)} for version in ("1", "2")},
        "cpu": {}
        if limits.cpus is None
        else {
            "1": {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": str(quota)},
            "2": {"cpu.max": f"{quota} {_PERIOD}"},
        },
    }

"""The control groups of one sandbox, and which of its limits were hit."""

import itertools
import os
from pathlib import Path

from .spec import LimitName, Limits
from .starter import cgroups

_numbers = itertools.count()
_MIB = 1 << 20


class Groups:
    """Raises nothing where there are no writable hierarchies: the sandbox then has resource limits per process only."""

    def __init__(self, owner: str, limits: Limits) -> None:
        name = f"minisandbox-{owner}-{next(_numbers)}"
        self.directories: list[Path] = []
        self._events: dict[LimitName, int] = {}
        self._seen: dict[LimitName, int] = {}
        try:
            for controller, (root, version) in cgroups.hierarchies().items():
                self._make(controller, root / name, version, limits)
            self._seen = self._counts()
        except BaseException:
            self.close()
            raise

    @property
    def limit_memory(self) -> bool:
        return "memory" in self._events

    def _make(self, controller: str, directory: Path, version: int, limits: Limits) -> None:
        if directory not in self.directories:
            directory.mkdir()
            self.directories.append(directory)
        if controller == "pids":
            (directory / "pids.max").write_text(str(limits.pids))
            self._watch("pids", directory / "pids.events")
            return
        memory = str(limits.memory_mib * _MIB)
        if version == 2:
            (directory / "memory.max").write_text(memory)
            self._write_if_there(directory / "memory.swap.max", "0")
            self._watch("memory", directory / "memory.events")
        else:
            (directory / "memory.limit_in_bytes").write_text(memory)
            self._write_if_there(directory / "memory.memsw.limit_in_bytes", memory)
            self._watch("memory", directory / "memory.oom_control")

    @staticmethod
    def _write_if_there(path: Path, value: str) -> None:
        """Swap is not accounted on every kernel."""
        if path.exists():
            path.write_text(value)

    def _watch(self, name: LimitName, path: Path) -> None:
        self._events[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def attach(self, pid: int) -> None:
        """Put a process in, and so what it will start."""
        for directory in self.directories:
            (directory / "cgroup.procs").write_text(str(pid))

    def _counts(self) -> dict[LimitName, int]:
        found: dict[LimitName, int] = {}
        for name, descriptor in self._events.items():
            key = b"max" if name == "pids" else b"oom_kill"
            for line in os.pread(descriptor, 4096, 0).splitlines():
                word, _, value = line.partition(b" ")
                if word == key:
                    found[name] = int(value)
        return found

    def new_hits(self) -> list[LimitName]:
        """The limits that were hit since the last call."""
        counts = self._counts()
        hits = [name for name, count in counts.items() if count > self._seen.get(name, 0)]
        self._seen = counts
        return hits

    def close(self) -> None:
        """After the sandbox's processes are gone. What resists is left to the starter, and to the next sweep."""
        for descriptor in self._events.values():
            os.close(descriptor)
        self._events = {}
        for directory in self.directories:
            cgroups.remove(directory, patience=2)
        self.directories = []

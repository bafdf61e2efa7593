"""What stands in for control groups that cannot be had: resource limits, and a look at all processes now and then.

Pid 1 adds up what its pid namespace holds. Over the memory limit it kills the biggest process, over the process limit
everything but itself. It can only see what has happened already: a burst between two looks overshoots (RLIMIT_DATA
bounds that of one process), and memory in a memory file whose holders all forbid tracing is not seen.
"""

# ruff: noqa: PTH115, PTH116, PTH123, PTH208

import mmap
import os
import re
import resource
import signal
import struct
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

HITS = struct.Struct("=QQ")  # how often the memory and the process limit were hit: what the host reads
_MIB = 1 << 20
_FASTEST_GROWTH = 4 << 30  # bytes a second, assumed; of one process, page faults allow about half of that
_FASTEST_FORKS = 5000  # a second, assumed
_SHORTEST, _LONGEST = 0.005, 2.0  # seconds between two looks
_IDLE_FACTOR = 8  # so many times longer while nothing changes
_SHARE = 0.05  # of one processor, for looking
_DYING_SECONDS = 5.0  # until the next is killed while a killed process goes on holding its memory
_STATUS = re.compile(rb"^(State|PPid|RssAnon|RssShmem|VmSwap|Threads):\s+(\w+)", re.MULTILINE)
_ROLLUP = re.compile(rb"^(Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)


class _Process(NamedTuple):
    """One that holds memory; bytes."""

    parent: int
    is_waiting: bool
    """Uninterruptibly, as who has called vfork(2) does until the child has a memory of its own."""
    anonymous: int
    shared: int


class Watchdog:
    """`memory` in bytes and `pids` in processes and threads, None where a control group sees to it.

    `held`: there can be no more than `pids`, they need only be told. `targets`: where file systems may be in memory.
    """

    def __init__(self, memory: int | None, pids: int | None, *, held: bool, targets: list[str]) -> None:
        self.memory, self.pids, self._held = memory, pids, held
        self.descriptor = os.memfd_create("hits", os.MFD_CLOEXEC)  # for the host; pid 1 keeps the mapping alone
        os.ftruncate(self.descriptor, mmap.PAGESIZE)
        self._hits = mmap.mmap(self.descriptor, mmap.PAGESIZE)
        self._file_systems = _file_systems_in_memory(targets)
        self._due = self._interval = 0.0
        self._before: object = None
        self._victim, self._patience = 0, 0.0

    def hit(self, name: str) -> None:
        memory, pids = HITS.unpack_from(self._hits)
        HITS.pack_into(self._hits, 0, memory + (name == "memory"), pids + (name == "pids"))

    def hurry(self) -> None:
        """Something begins: look soon, however idle it was."""
        self._due = min(self._due, time.monotonic() + _SHORTEST)

    def check(self) -> float:
        """Look, if that is due; -> seconds until the next time."""
        began = time.monotonic()
        if began < self._due:
            return self._due - began
        processes, count = _look()
        files = _size_of_files(processes, self._file_systems)
        used = sum(each.anonymous for each in processes.values())
        used += max(files, sum(each.shared for each in processes.values()))
        wait = _LONGEST
        if self.pids is not None and count >= self.pids:
            self.hit("pids")
            if count > self.pids:
                kill_everything()
            wait = 0.05
        elif self.pids is not None and not self._held:
            wait = (self.pids - count) / _FASTEST_FORKS
        if self.memory is not None:
            if used > self.memory:
                self._free_memory(processes, files)
                wait = min(wait, 0.02)
            else:
                wait = min(wait, (self.memory - used) / _FASTEST_GROWTH)
        picture = used, count, processes.keys()
        if picture == self._before:  # nothing grows: rather twice as long as the last time
            wait = min(_LONGEST, wait * _IDLE_FACTOR, max(wait, self._interval * 2))
        self._before = picture
        now = time.monotonic()
        self._interval = max(wait, _SHORTEST, (now - began) / _SHARE)
        self._due = now + self._interval
        return self._interval

    def _free_memory(self, processes: dict[int, _Process], files: int) -> None:
        """Add up exactly, what is shared only once; kill the biggest if it is too much still."""
        assert self.memory is not None
        if self._victim in processes and time.monotonic() < self._patience:
            return
        rollups = {pid: _read(f"/proc/{pid}/smaps_rollup") for pid in processes}  # empty where that is forbidden
        sizes, shared = {}, 0
        for pid, process in processes.items():
            exact = {name: int(value) << 10 for name, value in _ROLLUP.findall(rollups[pid])}
            parent = processes.get(process.parent)
            if exact and parent and parent.is_waiting and rollups[pid] == rollups[process.parent]:
                continue  # its parent's memory, by vfork(2)
            sizes[pid] = exact[b"Pss_Anon"] + exact.get(b"SwapPss", 0) if exact else process.anonymous
            shared += exact[b"Pss_Shmem"] if exact else process.shared
        if not sizes or sum(sizes.values()) + max(files, shared) <= self.memory:
            return
        self._victim = max(sizes, key=sizes.__getitem__)
        self._patience = time.monotonic() + _DYING_SECONDS
        self.hit("memory")
        try:
            os.kill(self._victim, signal.SIGKILL)
        except OSError:
            pass


def start(
    plan: Mapping[str, Any], groups: Mapping[str, Any], *, counts_processes: bool, has_one_id: bool
) -> Watchdog | None:
    """In pid 1, in its namespaces: limit by other means what its control groups do not.

    `counts_processes`: RLIMIT_NPROC counts those of this sandbox, for each of its ids. Never for the host's root.
    """
    memory = None if "memory" in groups else plan["memory_mib"] * _MIB
    pids = None if "pids" in groups else plan["pids"]
    if memory is not None:
        lower_limit(resource.RLIMIT_DATA, 2 * memory + (1 << 30))
    if pids is not None and counts_processes:
        lower_limit(resource.RLIMIT_NPROC, pids)
    if memory is None and pids is None:
        return None
    targets = [overlay["target"] for overlay in plan["overlays"]]
    return Watchdog(memory, pids, held=counts_processes and has_one_id, targets=targets)


def lower_limit(kind: int, value: int) -> None:
    """Set both the soft and the hard limit, as far as the hard one permits."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def kill_everything() -> None:
    """But pid 1, which calls this."""
    for pid in [-1] if os.getpid() == 1 else descendants():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def descendants() -> list[int]:
    """Of this process: all that the sandbox holds. In a pid namespace of its own, those that were put there, too."""
    if os.getpid() == 1:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _look() -> tuple[dict[int, _Process], int]:
    """What holds memory in this pid namespace, but pid 1; and the number of all processes and threads."""
    found, count = {}, 1
    for name in map(str, descendants()):
        fields = dict(_STATUS.findall(_read(f"/proc/{name}/status")))
        threads = int(fields.get(b"Threads", 0))
        count += threads
        if threads > 1 and b"RssAnon" not in fields:  # its first thread has ended, its memory lives on with the others
            fields.update(_STATUS.findall(_of_another_thread(name)))
        if b"RssAnon" in fields:
            anonymous, swap, shared = (int(fields.get(key, 0)) << 10 for key in (b"RssAnon", b"VmSwap", b"RssShmem"))
            waits = fields[b"State"] == b"D"
            found[int(name)] = _Process(int(fields[b"PPid"]), waits, anonymous + swap, shared)
    return found, count


def _of_another_thread(process: str) -> bytes:
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return b""
    texts = (_read(f"/proc/{process}/task/{thread}/status") for thread in threads)
    return next((text for text in texts if b"RssAnon" in text), b"")


def _file_systems_in_memory(targets: list[str]) -> list[str]:
    """Where the sandbox's own are: at these targets may be overlays instead, whose upper layers are counted with /."""
    if os.getpid() != 1:  # without namespaces nothing is its own
        return []
    kinds = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            kinds[before.split()[4]] = after.split()[0]
    return ["/", "/dev/shm", *(target for target in targets if kinds.get(target.replace(" ", "\\040")) == "tmpfs")]


def _size_of_files(processes: Mapping[int, object], file_systems: list[str]) -> int:
    """Bytes in these file systems, in memory files that somebody has open, and in System V segments."""
    total = 0
    for path in file_systems:
        status = os.statvfs(path)
        total += (status.f_blocks - status.f_bfree) * status.f_frsize
    if os.getpid() == 1:
        with open("/proc/sysvipc/shm") as file:
            total += sum(int(line.split()[14]) for line in list(file)[1:])  # resident bytes, attached or not
    seen = set()
    for pid in processes:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{name}"
                if os.readlink(path).startswith(("/memfd:", "/dev/zero (deleted)")):
                    status_ = os.stat(path)
                    if status_.st_ino not in seen:
                        seen.add(status_.st_ino)
                        total += status_.st_blocks * 512
        except OSError:  # gone, or not ours to look into
            continue
    return total


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(descriptor)

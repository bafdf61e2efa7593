"""Create, run, close, again and again: whether anything drifts.

Every cycle starts a sandbox over an overlay of some thousand files, runs a command that writes in it, and closes it. A
tenth is run first and not counted, so that caches and pools are as full as they get. The bars: no process, mount,
descriptor, control group or directory more than after that tenth; less than 5 MiB of memory more in owner and starter
together; and the median cycle of the last tenth within 20 % of the first tenth's.

    python benchmarks/soak.py [--cycles 10000] [--concurrency 16] [--json FILE]

Exit status 1 if a bar is missed. Latency means something on a quiet machine only.
"""

import argparse
import gc
import json
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import procs
from measure import quantile
from rich.console import Console
from rich.table import Table

from minisandbox_ray.sandbox import Overlay, Sandbox, SandboxSpec

MEMORY_MIB = 5.0
LATENCY = 1.2
_FILES = 2000
_TEMPORARY = {tempfile.gettempdir(), "/tmp", "/var/tmp", "/run", "/dev/shm"}
_SETTLE = 10.0  # seconds: control groups and directories may go a little later than close() returns


@dataclass
class Held:
    """What owner and starter hold while no sandbox lives."""

    processes: int
    """Of the starter's descendants and the owner's, themselves included."""
    mounts: int
    """In the owner's mount table and the starter's."""
    descriptors: int
    """Of both."""
    groups: int
    """Control groups named after the owner, in all hierarchies."""
    directories: int
    """Named after this package, where temporary ones are made; other owners' too."""
    memory_mib: float
    """Of both, proportional."""

    def worse_than(self, before: "Held") -> list[str]:
        """What has grown."""
        grown = {name: value - getattr(before, name) for name, value in asdict(self).items()}
        return [name for name, more in grown.items() if (more >= MEMORY_MIB if name == "memory_mib" else more > 0)]


def held(starter: int) -> Held:
    """Count now."""
    gc.collect()
    both = (os.getpid(), starter)
    groups = [path for root in Path("/sys/fs/cgroup").glob("*/") for path in root.glob(f"minisandbox-*-{both[0]}-*")]
    groups += Path("/sys/fs/cgroup").glob(f"minisandbox-*-{both[0]}-*")
    return Held(
        processes=len({pid for root in both for pid in procs.tree(root)}),
        mounts=sum(len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()) for pid in both),
        descriptors=sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in both),
        groups=len(groups),
        directories=sum(len(list(Path(place).glob("*minisandbox*"))) for place in _TEMPORARY),
        memory_mib=sum(procs.memory_mib(pid) for pid in both),
    )


def cycles(spec: SandboxSpec, count: int, threads: Executor) -> list[float]:
    """Seconds of each, in the order of their ends."""
    taken: list[float] = []

    def cycle(_: int) -> None:
        begin = time.perf_counter()
        with Sandbox(spec) as box:
            result = box.run("echo drift > file && cat file")
            if result.output.strip() != "drift":
                raise RuntimeError(f"a sandbox answers {result.output!r}")
        taken.append(time.perf_counter() - begin)

    for _ in threads.map(cycle, range(count)):
        pass
    return taken


def settled(starter: int, before: Held) -> Held:
    """Once nothing is more than before, or after 10 s."""
    deadline = time.monotonic() + _SETTLE
    while (now := held(starter)).worse_than(before) and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


def plant(root: Path) -> SandboxSpec:
    """A tree like an environment's."""
    for number in range(_FILES):
        path = root / "testbed" / f"package{number % 40}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {number}\n" * 40)
    return SandboxSpec(overlays=[Overlay(target="/testbed", lower=[root / "testbed"])])


def main() -> int:
    """Print what drifted; -> exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=10_000, help="how many are counted (10000)")
    parser.add_argument("--concurrency", type=int, default=16, help="how many live at a time (16)")
    parser.add_argument("--json", type=Path, help="also write the figures by name to this file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    tenth = max(arguments.cycles // 10, 1)
    # The same threads throughout, as a service has them: the C library keeps free memory for each set of new ones.
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as scratch,
        ThreadPoolExecutor(arguments.concurrency) as threads,
    ):
        spec = plant(Path(scratch))
        with Sandbox(spec) as box:
            starter = procs.parent(box.init_pid)
        cycles(spec, tenth, threads)
        time.sleep(1)
        before = held(starter)
        taken: list[float] = []
        for number in range(1, 11):
            taken += cycles(spec, tenth, threads)
            median_ms = quantile(taken[-tenth:]) * 1e3
            print(f"{number * tenth} cycles: median {median_ms:.1f} ms, {held(starter)}", file=sys.stderr, flush=True)
        after = settled(starter, before)
    drift = quantile(taken[-tenth:]) / quantile(taken[:tenth])
    worse = after.worse_than(before) + (["latency"] if drift > LATENCY else [])
    table = Table(title=f"{len(taken)} cycles, {arguments.concurrency} at a time")
    for heading in ("", "before", "after", "bar", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, value in asdict(before).items():
        values = [f"{number:.1f}" if name == "memory_mib" else str(number) for number in (value, getattr(after, name))]
        bar = f"+{MEMORY_MIB:.0f}" if name == "memory_mib" else "+0"
        table.add_row(name.replace("_mib", ", MiB"), *values, bar, "missed" if name in worse else "ok")
    first, last = (f"{quantile(part) * 1e3:.1f} ms" for part in (taken[:tenth], taken[-tenth:]))
    table.add_row("latency, median of a tenth", first, last, f"×{LATENCY}", "missed" if "latency" in worse else "ok")
    Console().print(table)
    if arguments.json:
        figures = {"cycles": len(taken), "before": asdict(before), "after": asdict(after), "latency_drift": drift}
        arguments.json.write_text(json.dumps({**figures, "missed": worse}, indent=2) + "\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

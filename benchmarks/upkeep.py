"""What a sandbox costs while it lives, and when it ends with much written."""

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import procs
from measure import close_all, in_turns, quantile
from peers import mini, swerex
from report import Report, ms, shown
from starts import start

from minisandbox_ray.sandbox import Sandbox, SandboxSpec

IDLE = 64
_DIRTY_BYTES = 300_000_000
_USE = "echo 'import numpy, pandas, sympy\ndef test_it(): pass' > test_it.py && python -m pytest -q test_it.py"


def round_trips(report: Report, spec: SandboxSpec, scratch: Path, quick: bool) -> None:
    """A command that does nothing, with its exit code."""
    rounds = 5 if quick else 20
    with start(spec) as box, swerex.session() as rex:

        def command() -> None:
            result = box.run("echo hi")
            assert result.exit_code == 0 and result.output.strip() == "hi", result

        actions: dict[str, tuple[Callable[[], object], int]] = {"": (command, rounds * 20)}
        if rex:
            actions["_swerex"] = (rex, rounds)
        if local := mini.environment(scratch):
            actions["_mini"] = (local, rounds * 5)
        taken = in_turns(actions)
    for name, values in taken.items():
        report.figures[f"roundtrip{name}_ms"] = ms(values)
    for name, against in {"swerex": swerex.NAME, "mini": mini.NAME}.items():
        report.compare("command round trip", taken[""], taken.get(f"_{name}"), against, f"roundtrip_vs_{name}")


def idle(report: Report, spec: SandboxSpec, unpacked_bytes: int, quick: bool) -> None:
    """Memory and writable layer of sandboxes that have answered one command and wait.

    Proportional set sizes of the starter and all that descends from it, spares included, less one bash for each
    sandbox; and by how much the owner grew.
    """
    count = 16 if quick else IDLE
    start(spec).close()
    owner_before = procs.memory_mib(os.getpid(), "Anonymous")
    lives: list[Sandbox] = []
    try:
        while len(lives) < count:
            lives.append(start(spec))
        owner_mib = max(0.0, procs.memory_mib(os.getpid(), "Anonymous") - owner_before) / count
        everything = procs.tree(procs.parent(lives[0].init_pid))
        bashes = sorted(procs.memory_mib(pid) for pid in everything if procs.command(pid) == "bash")[-count:]
        pss_mib = (sum(map(procs.memory_mib, everything)) - sum(bashes)) / count
        charged = [mib for live in lives if (mib := procs.charged_mib(live.init_pid)) is not None]
        layer_kib = quantile([_layer_bytes(live) / 1024 for live in lives])
        if lives[0].run(_USE, timeout=300).exit_code:
            raise RuntimeError("pytest does not run in the environment")
        used_kib = _layer_bytes(lives[0]) / 1024
    finally:
        close_all(lives)
    report.figures |= {
        "pss_mib_per_idle": pss_mib,
        "pss_bash_mib": quantile(bashes),
        "owner_mib_per_idle": owner_mib,
        "charged_mib_per_idle": quantile(charged) if charged else None,
        "layer_kib_idle": layer_kib,
        "layer_kib_used": used_kib,
    }
    report.row(
        f"memory beyond its bash, each of {count} idle",
        shown(pss_mib, "MiB"),
        "",
        None,
        f"proportional set; its bash has {shown(quantile(bashes), 'MiB')}, the owner grows by "
        f"{shown(owner_mib, 'MiB')}" + (f", its control group {shown(quantile(charged), 'MiB')}" if charged else ""),
    )
    report.row(
        "live writable layer, idle (after a run of pytest)",
        f"{shown(layer_kib, 'KiB')} ({shown(used_kib, 'KiB')})",
        shown(unpacked_bytes / 2**20, "MiB"),
        None,
        "an unpacked copy per rollout",
    )


def _layer_bytes(box: Sandbox) -> int:
    """What is written in all places of a sandbox together."""
    return int(box.execute(["/bin/df", "--block-size=1", "--output=used", "/"]).stdout.split()[-1])


def dirty_stop(report: Report, spec: SandboxSpec, quick: bool) -> None:
    """A sandbox that has written 300 MB is closed: until its processes are gone and close() gives back its slot.

    `storage_freed_ms`: until nine tenths of those bytes are free again, in memory or on the disk; at most 10 s are
    waited. A machine where others write much at the same time cannot tell.
    """
    stops, freed = [], []
    for _ in range(3 if quick else 8):
        before = _storage_bytes()
        with start(spec) as box:
            written = box.run(f"head -c {_DIRTY_BYTES} /dev/zero > zeros && stat -c %s zeros")
            if written.output.strip() != str(_DIRTY_BYTES):
                raise RuntimeError(f"a sandbox could not write 300 MB: {written.output.strip()}")
            rise = _storage_bytes() - before
            inside = [procs.identity(pid) for pid in procs.tree(box.init_pid)]
            begin = time.perf_counter()
            box.close()
            while any(procs.is_there(process) for process in inside):
                time.sleep(0.0005)
            stops.append(time.perf_counter() - begin)
            while _storage_bytes() - before > rise - 0.9 * _DIRTY_BYTES and time.perf_counter() - begin < 10:
                time.sleep(0.001)
            freed.append(time.perf_counter() - begin)
    is_freed = quantile(freed) < 10
    report.figures |= {"stop_dirty_ms": ms(stops), "storage_freed_ms": ms(freed) if is_freed else None}
    after = f"its storage is free after {shown(ms(freed))}" if is_freed else "its storage is not free after 10 s"
    report.row("stop after 300 MB of writes", shown(ms(stops)), "", None, f"processes gone, slot free; {after}")


def _storage_bytes() -> int:
    """In shared memory (tmpfs) and on the disks where layers may lie."""
    shared = re.search(r"^Shmem:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert shared
    places = [Path(place) for place in ("/", "/tmp", "/var/tmp", Path.home())]
    disks = {place.stat().st_dev: place for place in places}
    return int(shared[1]) * 1024 + sum(shutil.disk_usage(place).used for place in disks.values())

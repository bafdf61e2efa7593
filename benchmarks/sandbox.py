"""Reset and command round trip, side by side in one run.

Against ours stand: the published method (arXiv 2602.11210), which unpacks a .tar.gz of the environment with Python's
``tarfile`` for every rollout, and SWE-ReX's local runtime, the terminal layer of SWE-agent. The environment is a real
one of about 300 MB. Ratios are theirs over ours: how many times faster ours is. A peer that is not installed is a null.

    python benchmarks/sandbox.py [--json FILE]
"""

import argparse
import asyncio
import json
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from minisandbox_ray.environments import Environment, EnvSpec, NodeStore, build_environment, cache_root
from minisandbox_ray.sandbox import Sandbox

SPEC = EnvSpec(
    python="3.12",
    packages=[
        "numpy==2.2.6",
        "pandas==2.2.3",
        "matplotlib==3.10.3",
        "sympy==1.13.3",
        "requests==2.32.3",
        "pytest==8.3.5",
    ],
)


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Median wall time of ``action`` in seconds."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def warm_reset(environment: Environment, repeats: int = 30) -> float:
    """Bare sandbox: from nothing to the first answered command, over an environment that the node holds."""

    def once() -> None:
        with Sandbox(environment.sandbox_spec()) as sandbox:
            assert sandbox.run("echo ready").output.strip() == "ready"
            taken.append(time.perf_counter() - start)

    taken: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        once()
    return statistics.median(taken[1:])  # the first one starts the starter process


def cold_reset(digest: str, archives: Path, scratch: Path) -> float:
    """Archive on the disk, empty node store: materialise once, then as above."""
    start = time.perf_counter()
    environment = NodeStore(scratch / "cold-store").materialise(digest, archives)
    with Sandbox(environment.sandbox_spec()) as sandbox:
        sandbox.run("echo ready")
        return time.perf_counter() - start


def tarfile_reset(environment: Environment, scratch: Path) -> float:
    """The published method's preparation: Python's tarfile over tar.gz, once per rollout."""
    packed = scratch / "environment.tar.gz"
    with tarfile.open(packed, "w:gz", compresslevel=6) as tar:
        tar.add(environment.venv, "venv")
        tar.add(environment.testbed, "testbed")

    def unpack() -> None:
        with tarfile.open(packed) as tar:
            tar.extractall(scratch / "unpacked", filter="tar")

    taken = seconds(unpack, 1)
    shutil.rmtree(scratch / "unpacked")
    return taken


def round_trip(environment: Environment, repeats: int = 300) -> float:
    """One command with its exit code in a session that is already open."""
    with Sandbox(environment.sandbox_spec()) as sandbox:
        sandbox.run("true")
        return seconds(lambda: sandbox.run("echo hi"), repeats)


def swerex_round_trip(repeats: int = 15) -> float | None:
    """The same through SWE-ReX's local runtime (outside any sandbox)."""
    try:
        from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
        from swerex.runtime.local import LocalRuntime
    except ImportError:
        return None

    async def measure() -> float:
        runtime = LocalRuntime()
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
        taken = []
        for _ in range(repeats):
            start = time.perf_counter()
            await runtime.run_in_session(BashAction(command="echo hi", check="silent", timeout=10))
            taken.append(time.perf_counter() - start)
        await runtime.close()
        return statistics.median(taken)

    return asyncio.run(measure())


def main() -> None:
    """Build the environment where it is missing, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures by name to this file")
    arguments = parser.parse_args()
    archives, store = cache_root() / "archives", NodeStore(cache_root() / "store")
    manifest = build_environment(SPEC, archives, store)
    with store.use(manifest.digest, archives) as environment, tempfile.TemporaryDirectory(dir=cache_root()) as scratch:
        warm = warm_reset(environment)
        cold = cold_reset(manifest.digest, archives, Path(scratch))
        targz = tarfile_reset(environment, Path(scratch))
        trip = round_trip(environment)
        rex = swerex_round_trip()
    figures = {
        "environment_mib": manifest.unpacked_bytes / 2**20,
        "environment_files": manifest.files,
        "reset_warm_ms": warm * 1e3,
        "reset_cold_ms": cold * 1e3,
        "reset_targz_ms": targz * 1e3,
        "roundtrip_ms": trip * 1e3,
        "roundtrip_swerex_ms": rex and rex * 1e3,
        "warm_vs_targz": targz / warm,
        "cold_vs_targz": targz / cold,
        "roundtrip_vs_swerex": rex and rex / trip,
    }
    table = Table(title=f"environment: {figures['environment_mib']:.0f} MiB, {manifest.files} files")
    for heading in ("", "ours", "theirs", "ratio"):
        table.add_column(heading, justify="left" if not heading else "right")
    unpack = f"{targz * 1e3:.0f} ms (tar.gz, tarfile)"
    table.add_row("reset, warm node", f"{warm * 1e3:.1f} ms", unpack, f"{targz / warm:.0f}×")
    table.add_row("reset, cold node", f"{cold * 1e3:.0f} ms", unpack, f"{targz / cold:.1f}×")
    if rex is None:
        table.add_row("command round trip", f"{trip * 1e3:.2f} ms", "swe-rex is not installed", "")
    else:
        table.add_row(
            "command round trip", f"{trip * 1e3:.2f} ms", f"{rex * 1e3:.0f} ms (SWE-ReX)", f"{rex / trip:.0f}×"
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Start, stop, round trip, fork and upkeep of sandboxes, side by side with their peers in one run.

The environment is a real one of about 300 MB. Ratios are theirs over ours, how many times faster ours is, but
fork_vs_start and start256_vs_1 (ours over ours). A peer that is not installed is a null, and so is what a quick run
leaves out. Peers, each in its file in peers/: bubblewrap, podman with crun or runc, the published method
(arXiv 2602.11210: a .tar.gz unpacked by Python's tarfile for every rollout), SWE-ReX's local runtime and
mini-swe-agent's local environment (`pip install -e .[bench]`).

    python benchmarks/sandbox.py [--quick] [--only NAME …] [--json FILE]

A full run takes about 8 minutes on 2 quiet cores, half of it for 32 unpacks (12 GB of disk, deleted at the end); a
quick one 2 minutes: fewer repeats, 4 unpacks in place of 32.
"""

import argparse
import resource
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import starts
import upkeep
from peers import podman
from report import Report

from minisandbox_ray.environments import EnvSpec, NodeStore, build_environment, cache_root

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
FIGURES = """
    environment_mib environment_files podman_runtime
    start_ms start_p90_ms start_bwrap_ms start_podman_ms start_vs_bwrap start_vs_podman cycle_ms
    close_ms close_bwrap_ms close_podman_ms close_vs_bwrap close_vs_podman
    start8_ms start8_p90_ms start32_ms start32_p90_ms start128_ms start128_p90_ms
    ready8_ms ready32_ms ready128_ms ready32_targz_ms ready32_vs_targz
    reset_warm_ms reset_cold_ms reset_targz_ms warm_vs_targz cold_vs_targz
    start_beside_1_ms start_beside_256_ms start256_vs_1 fork_ms fork_vs_start
    roundtrip_ms roundtrip_swerex_ms roundtrip_mini_ms roundtrip_vs_swerex roundtrip_vs_mini
    pss_mib_per_idle pss_bash_mib owner_mib_per_idle charged_mib_per_idle layer_kib_idle layer_kib_used
    stop_dirty_ms storage_freed_ms
"""
PARTS = ("start", "concurrent", "roundtrip", "fork", "crowd", "idle", "stop", "archives")


def main() -> None:
    """Build the environment where it is missing, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 minutes: fewer repeats, 4 unpacks in place of 32")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--json", type=Path, help="also write the figures by name to this file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through all that cleans up
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    archives, store = cache_root() / "archives", NodeStore(cache_root() / "store")
    manifest = build_environment(SPEC, archives, store)
    report = Report(FIGURES.split())
    report.figures |= {"environment_mib": manifest.unpacked_bytes / 2**20, "environment_files": manifest.files}
    with ExitStack() as stack:
        environment = stack.enter_context(store.use(manifest.digest, archives))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-", dir=cache_root())))
        engine = None
        if {"start", "concurrent"} & set(arguments.only):
            engine = stack.enter_context(podman.engine(scratch / "podman", say))
            report.figures["podman_runtime"] = engine.runtime if engine else None
        spec, quick = environment.sandbox_spec(), arguments.quick
        parts = {
            "start": lambda: starts.alone(report, spec, engine, quick),
            "concurrent": lambda: starts.at_once(report, spec, engine, quick),
            "roundtrip": lambda: upkeep.round_trips(report, spec, scratch, quick),
            "fork": lambda: starts.forks(report, spec, quick),
            "crowd": lambda: starts.in_a_crowd(report, spec, quick),
            "idle": lambda: upkeep.idle(report, spec, manifest.unpacked_bytes, quick),
            "stop": lambda: upkeep.dirty_stop(report, spec, quick),
            "archives": lambda: starts.against_archives(report, environment, archives, scratch, quick),
        }
        for name in PARTS:
            if name in arguments.only:
                say(f"measuring: {name}")
                parts[name]()
                report.section()
        if arguments.json:
            report.save(arguments.json)
        report.show(f"environment: {report.figures['environment_mib']:.0f} MiB, {manifest.files} files")


def say(line: str) -> None:
    """Progress, apart from the table."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

"""The preparation of the published method (arXiv 2602.11210): every rollout unpacks a .tar.gz with Python's tarfile."""

import shutil
import subprocess
import sys
from pathlib import Path

NAME = "tar.gz, Python's tarfile, once per rollout"
# the filter that checks least is the fastest
_UNPACK = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter='fully_trusted')"


def pack(environment: Path, archive: Path) -> None:
    """With the system's tar: packing is not measured."""
    subprocess.run(["tar", "-C", environment, "-czf", archive, *contents(environment)], check=True)


def contents(environment: Path) -> list[str]:
    """What an unpacked environment holds, without what the node store keeps beside it."""
    return sorted({each.name for each in environment.iterdir()} - {"manifest.json", "layers"})


def unpack(archive: Path, targets: list[Path]) -> None:
    """Into each target at the same time, a process each, as workers of rollouts do."""
    running = []
    try:
        for target in targets:
            target.mkdir(parents=True)
            running.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", _UNPACK, archive, target]))
        for process in running:
            if process.wait():
                raise RuntimeError("tarfile could not unpack the environment")
    finally:
        for process in running:
            process.kill()
            process.wait()


def copies_that_fit(where: Path, unpacked_bytes: int) -> int:
    """How many unpacked environments the disk takes, with a quarter to spare for the file system's own."""
    return int(shutil.disk_usage(where).free / (unpacked_bytes * 1.25))

"""Removes what a local Ray cluster leaves when its driver is gone, however it went.

Run as a script by the driver (``python -I -S watcher.py DRIVER_PID DIRECTORY LINK``): it detaches, prints its process
id, waits on a pidfd until the driver is gone, then ends the cluster's processes that are still there and removes the
directory and the link. Standard library only, so that it starts in a few milliseconds.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

# What Ray calls its processes: titles set by its workers and agents, and paths of its servers.
RAY_COMMANDS = (b"ray::", b"/ray/core/", b"/ray/dashboard/", b"/ray/_private/", b"/ray/autoscaler/")
GRACE_SECONDS = 2.0


def cluster_processes(directory: Path) -> list[int]:
    """Process ids of Ray's processes that write to a file below ``directory`` (all of them log there)."""
    below = f"{directory.resolve()}/"
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_ray(entry) and _writes_below(entry, below)
    ]


def _is_ray(process: Path) -> bool:
    try:
        command = (process / "cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in RAY_COMMANDS)


def _writes_below(process: Path, below: str) -> bool:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError, StopIteration, ValueError):
            if str(descriptor.readlink()).startswith(below):
                info = (process / "fdinfo" / descriptor.name).read_text().splitlines()
                flags = next(line for line in info if line.startswith("flags:"))
                if int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                    return True
    return False


def clean(directory: Path, link: Path) -> None:
    """End the cluster's processes that are left, then remove its directory and the link to it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        left = cluster_processes(directory)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = cluster_processes(directory)
    for _ in range(3):  # a process that was just ended may have written a last file in between
        shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        link.unlink()


def main() -> None:
    driver, directory, link = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    pidfd = os.pidfd_open(driver)
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.chdir("/")
    select.select([pidfd], [], [])
    clean(directory, link)


if __name__ == "__main__":
    main()

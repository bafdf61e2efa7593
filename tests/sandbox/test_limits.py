"""What a sandbox may use, and how a hit limit is told; the whole file runs once more where there are no groups."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import WallTimeError
from minisandbox_ray.sandbox.starter import cgroups

from .conftest import Factory, eventually, guard

FOUND = {name for place in cgroups.hierarchies() for name in place.candidates[0][1]}
EAT = ["/usr/bin/python3", "-c", "x = [bytearray(10**7) for _ in range(100)]"]
SPIN = ["/bin/sh", "-c", "while :; do :; done"]
NO_GROUPS = 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"'


def test_memory(start: Factory) -> None:
    sandbox, other = start(memory_mib=128), start()
    sandbox.run("cd /tmp")
    result = sandbox.execute(EAT)
    assert (result.exit_code, result.limit) == (137, "memory")
    assert sandbox.execute(["true"]).limit is None  # a new hit is told, not an old one
    assert sandbox.run("/usr/bin/python3 -c 'x = bytearray(10**9)'").limit == "memory"
    result = sandbox.run("echo ok; pwd")
    assert (result.output, result.limit, result.restarted) == ("ok\n/tmp\n", None, False)
    assert other.run("echo ok").limit is None


def test_memory_of_many_small_processes(start: Factory) -> None:
    sandbox = start(memory_mib=128)
    eat = "x = bytearray(2 * 10**7); import time; time.sleep(100)"
    result = sandbox.run(f'for i in $(seq 20); do /usr/bin/python3 -c "{eat}" & done; wait -n; sleep 1', timeout=20)
    assert result.limit == "memory"
    sandbox.run("kill -9 $(jobs -p)")
    assert sandbox.run("echo ok").output.endswith("ok\n")


def test_memory_in_memory_files(start: Factory) -> None:
    """Such a file belongs to no process and no file system; whoever holds it is to blame."""
    sandbox = start(memory_mib=128)
    eat = "import os, time; f = os.memfd_create('x'); [os.write(f, bytes(10**6)) for _ in range(500)]; time.sleep(20)"
    result = sandbox.execute(["/usr/bin/python3", "-c", eat])
    assert (result.exit_code, result.limit) == (137, "memory")


def test_memory_in_system_v_segments(start: Factory) -> None:
    sandbox = start(memory_mib=1024)
    assert sandbox.run("for i in $(seq 100); do ipcmk -M 10M; done 2>&1 | tail -n 1").output.endswith(
        "left on device\n"
    )
    assert sandbox.run("ipcs -m | grep -c 0x").output.strip() == "6"  # as much as /dev/shm holds


def test_files_leave_memory_for_processes(start: Factory) -> None:
    sandbox = start(memory_mib=64, disk_mib=1024)
    for directory in ("/tmp", "/dev/shm"):
        assert sandbox.run(f"head -c 500M /dev/zero > {directory}/big").exit_code != 0
    sandbox.run("for i in $(seq 100); do ipcmk -M 10M; done")
    assert sandbox.execute(EAT).exit_code == 137
    assert sandbox.run("rm -f /tmp/big; echo ok").output.endswith("ok\n")


def test_processes(start: Factory) -> None:
    sandbox, other = start(pids=32), start()
    guard(sandbox)
    result = sandbox.run("for i in $(seq 100); do sleep 50 & done; sleep 1", timeout=3)
    assert result.limit == "pids"
    assert other.run("echo ok").output == "ok\n"
    assert sandbox.execute(["true"]).exit_code in (0, 126)
    sandbox.run("kill $(jobs -p)")
    assert sandbox.run("echo ok").output.endswith("ok\n")


def test_fork_bomb(start: Factory) -> None:
    sandbox, other = start(pids=64), start()
    guard(sandbox)
    result = sandbox.run(":() { : | : & }; :; sleep 2", timeout=30)
    assert result.limit == "pids"
    assert other.run("echo ok").output == "ok\n"
    assert eventually(lambda: sandbox.run("echo ok", timeout=30).output.endswith("ok\n"))


@pytest.mark.skipif("cpu" not in FOUND, reason="no writable cpu control group here")
def test_processor_time(start: Factory) -> None:
    sandbox = start(cpus=0.05)  # less than a busy machine would give it anyway
    result = sandbox.execute(SPIN, timeout=2)
    assert (result.timed_out, result.limit) == (True, "cpu")
    result = sandbox.run("while :; do :; done", timeout=2)
    assert (result.timed_out, result.limit) == (True, "cpu")
    work = sandbox.run("for i in $(seq 20000); do :; done; echo done")
    assert (work.output, work.limit) == ("done\n", None)  # slowed down, but it was in time
    assert sandbox.execute(["sleep", "10"], timeout=2).limit is None
    assert start().execute(SPIN, timeout=1).limit is None


@pytest.mark.parametrize("where", ["/testbed", "/tmp", "/root", "/", "/var/tmp", "/etc"])
def test_disk(start: Factory, where: str) -> None:
    sandbox = start(disk_mib=32)
    result = sandbox.run(f"head -c 100M /dev/zero > {where}/big")
    assert result.exit_code != 0
    assert "No space left" in result.output
    assert result.limit == "disk"
    assert sandbox.run(f"wc -c < {where}/big").output.strip().isdigit()
    assert int(sandbox.run(f"wc -c < {where}/big").output) <= 32 << 20
    assert sandbox.run(f"rm {where}/big").exit_code == 0
    assert sandbox.run("echo ok > x; cat x").limit is None


def test_number_of_files(start: Factory) -> None:
    sandbox = start(disk_mib=1)
    result = sandbox.run("mkdir many; for i in $(seq 9000); do : > many/$i || break; done")
    assert "No space left" in result.output
    assert result.limit == "disk"
    assert sandbox.run("rm -r many").limit is None


def test_a_full_disk_takes_commands(start: Factory) -> None:
    sandbox = start(disk_mib=16)
    sandbox.run("head -c 100M /dev/zero > /tmp/big")
    result = sandbox.run(": " + "x" * 1_000_000 + "\necho alive")
    assert result.output == "alive\n"


def test_shared_memory(start: Factory) -> None:
    sandbox = start()
    result = sandbox.run("head -c 100M /dev/zero > /dev/shm/big")
    assert "No space left" in result.output
    assert result.limit == "disk"
    assert sandbox.run("rm /dev/shm/big").limit is None


def test_open_files(start: Factory) -> None:
    assert start(open_files=64).run("ulimit -n; ulimit -Hn; ulimit -c").output == "64\n64\n0\n"


def test_output(start: Factory) -> None:
    sandbox = start(output_chars=1000)
    result = sandbox.run("echo start; seq 10000; echo end")
    assert (result.truncated, result.limit, result.exit_code) == (True, "output", 0)
    assert result.output.startswith("start\n1\n")
    assert result.output.endswith("10000\nend\n")
    assert len(result.output) < 1100
    assert result.output_bytes == len("start\nend\n") + sum(len(str(n)) + 1 for n in range(1, 10_001))
    program = sandbox.execute(["seq", "10000"], max_output=1000)
    assert (program.truncated, program.limit) == (True, "output")
    assert sandbox.run("echo short").limit is None


def test_wall_time_cuts_a_command(start: Factory) -> None:
    sandbox = start(wall_seconds=2)
    result = sandbox.run("echo begun; sleep 100", timeout=60)
    assert (result.output.strip(), result.timed_out, result.limit) == ("begun", True, "wall_time")
    with pytest.raises(WallTimeError, match="time is up") as raised:
        sandbox.execute(["true"])
    assert raised.value.owner == "agent"
    with pytest.raises(WallTimeError):
        sandbox.read_file("/etc/hosts")
    assert sandbox.limit_hit() == "wall_time"
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run("true")


def test_wall_time_cuts_a_program(start: Factory) -> None:
    result = start(wall_seconds=1).execute(["sleep", "100"], timeout=60)
    assert (result.timed_out, result.limit) == (True, "wall_time")


def test_wall_time_of_an_owner_that_does_nothing(start: Factory) -> None:
    sandbox = start(wall_seconds=0.5)
    assert sandbox.is_alive
    assert eventually(lambda: not sandbox.is_alive)
    with pytest.raises(WallTimeError):
        sandbox.run("true")


@pytest.mark.skipif(os.geteuid() != 0 or not FOUND, reason="this run has no control groups itself")
def test_without_control_groups() -> None:
    """All of the above, with resource limits and the watchdog instead."""
    unshare = shutil.which("unshare")
    assert unshare
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        [unshare, "--mount", "--propagation", "private", "sh", "-c", NO_GROUPS, "-", *command],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 skipped" in done.stdout

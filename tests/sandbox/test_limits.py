"""What a sandbox may use, and how a hit limit is told."""

import pytest

from minisandbox_ray.sandbox.starter import cgroups

from .conftest import Factory, guard

_found = {name for place in cgroups.hierarchies() for name in place.candidates[0][1]}
needs_groups = pytest.mark.skipif(
    not _found.issuperset(("memory", "pids")), reason="no writable memory and pids control groups here"
)
EAT = ["/usr/bin/python3", "-c", "x = [bytearray(10**7) for _ in range(100)]"]


@needs_groups
def test_memory(start: Factory) -> None:
    sandbox = start(memory_mib=128)
    result = sandbox.execute(EAT)
    assert (result.exit_code, result.limit) == (137, "memory")
    assert sandbox.execute(["true"]).limit is None  # a new hit is told, not an old one
    assert sandbox.run("/usr/bin/python3 -c 'x = bytearray(10**9)'").limit == "memory"
    assert sandbox.run("echo ok").limit is None


@needs_groups
def test_files_leave_memory_for_processes(start: Factory) -> None:
    sandbox = start(memory_mib=64, disk_mib=1024)
    for directory in ("/tmp", "/dev/shm"):
        assert sandbox.run(f"head -c 500M /dev/zero > {directory}/big").exit_code != 0
    sandbox.run("for i in $(seq 100); do ipcmk -M 10M; done")
    assert sandbox.execute(EAT).exit_code == 137
    assert sandbox.run("rm -f /tmp/big; echo ok").output.endswith("ok\n")


@needs_groups
def test_processes(start: Factory) -> None:
    sandbox, other = start(pids=32), start()
    guard(sandbox)
    result = sandbox.run("for i in $(seq 100); do sleep 50 & done", timeout=2)
    assert result.limit == "pids"
    assert other.run("echo ok").output == "ok\n"
    assert sandbox.execute(["true"]).exit_code in (0, 126)
    sandbox.run("kill $(jobs -p)")
    assert sandbox.run("echo ok").output.endswith("ok\n")


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


def test_a_full_disk_takes_commands(start: Factory) -> None:
    sandbox = start(disk_mib=16)
    sandbox.run("head -c 100M /dev/zero > /tmp/big")
    result = sandbox.run(": " + "x" * 1_000_000 + "\necho alive")
    assert result.output == "alive\n"


def test_shared_memory_is_bounded(start: Factory) -> None:
    assert "No space left" in start().run("head -c 100M /dev/zero > /dev/shm/big").output


def test_open_files(start: Factory) -> None:
    assert start(open_files=64).run("ulimit -n; ulimit -Hn; ulimit -c").output == "64\n64\n0\n"


def test_output(start: Factory) -> None:
    result = start(output_chars=1000).run("echo start; seq 10000; echo end")
    assert result.truncated
    assert result.output.startswith("start\n1\n")
    assert result.output.endswith("10000\nend\n")
    assert len(result.output) < 1100
    assert result.output_bytes == len("start\nend\n") + sum(len(str(n)) + 1 for n in range(1, 10_001))

"""Where control groups are made, on all kinds of systems (texts of real ones), and what becomes of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox_ray.sandbox import Limits
from minisandbox_ray.sandbox.groups import Groups, settings
from minisandbox_ray.sandbox.starter import cgroups
from minisandbox_ray.sandbox.starter.cgroups import Hierarchy, Mount

from .conftest import Factory

ALL = frozenset(cgroups.CONTROLLERS)
needs_groups = pytest.mark.skipif(not cgroups.hierarchies(), reason="no writable control groups here")

V2_SESSION = (
    "29 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    "0::/user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope\n",
)
V1_DOCKER = (
    "1011 1010 0:30 /docker/3f0a /sys/fs/cgroup/memory ro,nosuid master:15 - cgroup cgroup rw,memory\n"
    "1012 1010 0:31 /docker/3f0a /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:16 - cgroup cgroup rw,cpu,cpuacct\n"
    "1013 1010 0:32 /docker/3f0a /sys/fs/cgroup/pids ro,nosuid master:17 - cgroup cgroup rw,pids\n"
    "1014 1010 0:33 /docker/3f0a /sys/fs/cgroup/devices ro,nosuid master:18 - cgroup cgroup rw,devices\n"
    "1015 1010 0:34 /docker/3f0a /sys/fs/cgroup/systemd ro,nosuid master:11 - cgroup cgroup rw,xattr,name=systemd\n",
    "9:pids:/docker/3f0a\n8:devices:/docker/3f0a\n4:memory:/docker/3f0a/job\n3:cpu,cpuacct:/docker/3f0a\n"
    "1:name=systemd:/docker/3f0a\n0::/system.slice/containerd.service\n",
)
HYBRID = (
    "33 24 0:28 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"
    "35 24 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:12 - cgroup cgroup rw,memory\n"
    "36 24 0:31 / /sys/fs/cgroup/pids rw,nosuid shared:13 - cgroup cgroup rw,pids\n",
    "5:pids:/user.slice/user-0.slice/session-1.scope\n4:memory:/\n0::/user.slice/user-0.slice/session-1.scope\n",
)
OWN_NAMESPACE = (
    "720 719 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n",
    "0::/\n",
)
OLD_MOUNT_IN_A_NEW_NAMESPACE = (
    "29 23 0:26 /../.. /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n",
    "0::/\n",
)
OUTSIDE_OF_ITS_NAMESPACE = (
    "29 23 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n",
    "0::/../other\n",
)
PART_OF_A_TREE = (
    "29 23 0:26 /jobs\\040here /mnt/groups rw,relatime - cgroup2 cgroup2 rw\n",
    "0::/jobs here/1\n",
)
PART_THAT_WE_ARE_NOT_IN = ("29 23 0:26 /jobs/1 /mnt rw - cgroup2 cgroup2 rw\n", "0::/jobs/10\n")


def places(texts: tuple[str, str]) -> dict[str, tuple[int, set[str], str | None]]:
    return {
        str(mount.target): (mount.version, set(mount.controllers), mount.own) for mount in cgroups.find_mounts(*texts)
    }


def test_version_2() -> None:
    own = "user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope"
    assert places(V2_SESSION) == {"/sys/fs/cgroup": (2, set(), own)}


def test_version_1_in_a_container() -> None:
    assert places(V1_DOCKER) == {
        "/sys/fs/cgroup/memory": (1, {"memory"}, "job"),
        "/sys/fs/cgroup/cpu,cpuacct": (1, {"cpu"}, ""),
        "/sys/fs/cgroup/pids": (1, {"pids"}, ""),
    }


def test_hybrid() -> None:
    session = "user.slice/user-0.slice/session-1.scope"
    assert places(HYBRID) == {
        "/sys/fs/cgroup/unified": (2, set(), session),
        "/sys/fs/cgroup/memory": (1, {"memory"}, ""),
        "/sys/fs/cgroup/pids": (1, {"pids"}, session),
    }


@pytest.mark.parametrize(
    ("texts", "target", "own"),
    [
        (OWN_NAMESPACE, "/sys/fs/cgroup", ""),
        (OLD_MOUNT_IN_A_NEW_NAMESPACE, "/sys/fs/cgroup", None),
        (OUTSIDE_OF_ITS_NAMESPACE, "/sys/fs/cgroup", None),
        (PART_OF_A_TREE, "/mnt/groups", "1"),
        (PART_THAT_WE_ARE_NOT_IN, "/mnt", None),
    ],
)
def test_namespaces_and_parts_of_a_tree(texts: tuple[str, str], target: str, own: str | None) -> None:
    assert places(texts) == {target: (2, set(), own)}


def test_the_mount_that_shows_our_own_group_is_taken() -> None:
    for order in (1, -1):
        mounts = [PART_THAT_WE_ARE_NOT_IN[0], "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"][::order]
        assert places(("".join(mounts), "0::/jobs/10\n")) == {"/sys/fs/cgroup": (2, set(), "jobs/10")}


def delegated(directory: Path, available: str, enabled: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "cgroup.controllers").write_text(available)
    (directory / "cgroup.subtree_control").write_text(enabled)
    return directory


def test_nearest_ancestor_that_delegates(tmp_path: Path) -> None:
    delegated(tmp_path, "cpu io memory pids", "cpu memory pids")
    delegated(tmp_path / "user", "cpu memory pids", "cpu memory pids")
    delegated(tmp_path / "user/scope", "", "")
    (found,) = cgroups.hierarchies([Mount(tmp_path, 2, frozenset(), "user/scope")])
    assert found == Hierarchy(2, [(tmp_path / "user", ALL), (tmp_path, ALL)])


def test_more_controllers_are_better_than_nearer_ones(tmp_path: Path) -> None:
    delegated(tmp_path, "cpu memory pids", "cpu memory pids")
    delegated(tmp_path / "user", "memory pids", "memory pids")
    (found,) = cgroups.hierarchies([Mount(tmp_path, 2, frozenset(), "user")])
    assert found.candidates == [(tmp_path, ALL), (tmp_path / "user", {"memory", "pids"})]


def test_the_root_where_the_own_group_is_out_of_sight(tmp_path: Path) -> None:
    assert cgroups.hierarchies([Mount(tmp_path, 1, frozenset({"pids"}), None)]) == [
        Hierarchy(1, [(tmp_path, frozenset({"pids"}))])
    ]


def test_nothing_to_delegate(tmp_path: Path) -> None:
    delegated(tmp_path, "", "")
    assert cgroups.hierarchies([Mount(tmp_path, 2, frozenset(), "")]) == []
    assert cgroups.hierarchies([Mount(tmp_path / "gone", 2, frozenset(), "")]) == []
    assert cgroups.make([Hierarchy(1, [(tmp_path / "gone", ALL)])], "name") == {}


def test_a_directory_that_takes_no_process_is_passed_over(tmp_path: Path) -> None:
    """A directory of a common file system has no cgroup.procs that could be written without being made."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "name").write_text("")
    second = tmp_path / "second"
    second.mkdir()
    candidates = [(tmp_path / "first", ALL), (second, frozenset({"memory"}))]
    assert cgroups.make([Hierarchy(2, candidates)], "name") == {"memory": (str(second / "name"), 2)}


def test_limits_in_version_2(tmp_path: Path) -> None:
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max"):
        (tmp_path / name).touch()
    (tmp_path / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 0\n")
    (tmp_path / "pids.events").write_text("max 0\n")
    (tmp_path / "cpu.stat").write_text("nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    places = dict.fromkeys(ALL, (str(tmp_path), 2))
    limits = Limits(memory_mib=64, swap_mib=1, cpus=1.5, pids=7)
    cgroups.write_settings(places, cgroups.open_all(places), settings(limits))
    groups = Groups(places)
    texts = {path.name: path.read_text() for path in tmp_path.glob("*.max")}
    assert texts == {
        "memory.max": str(64 << 20),
        "memory.swap.max": str(1 << 20),
        "pids.max": "7",
        "cpu.max": "150000 100000",
    }
    assert groups.new_hits() == []
    (tmp_path / "memory.events").write_text("low 0\nmax 9\noom 2\noom_kill 1\n")
    (tmp_path / "cpu.stat").write_text("nr_periods 9\nnr_throttled 9\nthrottled_usec 1000000\n")
    assert groups.new_hits(seconds=60) == ["memory"]
    (tmp_path / "cpu.stat").write_text("nr_periods 9\nnr_throttled 9\nthrottled_usec 2000000\n")
    assert groups.new_hits(seconds=2) == ["cpu"]
    groups.directories = []  # no control groups that could be removed
    groups.close()


def test_no_groups() -> None:
    groups = Groups({})
    assert groups.new_hits() == []
    groups.close()
    groups.close()


@needs_groups
def test_below_the_callers_own_group(start: Factory) -> None:
    sandbox = start()
    own = {mount.target / (mount.own or "") for mount in cgroups.find_mounts(*read_own())}
    assert sandbox._groups.directories
    assert {directory.parent for directory in sandbox._groups.directories} <= own
    pid = str(sandbox.init_pid)
    assert all(pid in (place / "cgroup.procs").read_text().split() for place in sandbox._groups.directories)


def read_own() -> tuple[str, str]:
    return Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()


@needs_groups
def test_the_limits_of_version_1(start: Factory) -> None:
    sandbox = start(memory_mib=64, swap_mib=16, pids=20, cpus=0.5)
    texts = {}
    for directory in sandbox._groups.directories:
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max", "cpu.cfs_quota_us"):
            if (directory / name).exists():
                texts[name] = int((directory / name).read_text())
    wanted = {
        "memory.limit_in_bytes": 64 << 20,
        "memory.memsw.limit_in_bytes": 80 << 20,
        "pids.max": 20,
        "cpu.cfs_quota_us": 50_000,
    }
    if texts:  # else all is on version 2
        assert texts.items() <= wanted.items()


@needs_groups
def test_a_sweep_finds_groups_below_any_other(start: Factory) -> None:
    """An owner that is dead may have been in another control group than we are."""
    sandbox = start()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    key = cgroups.owner_key(dead.pid)
    dead.wait()
    parent = cgroups.hierarchies()[0].candidates[0][0] / f"test-{os.getpid()}"
    left, living = parent / "deep" / cgroups.new_name(key), parent / cgroups.new_name(cgroups.owner_key(os.getpid()))
    try:
        left.mkdir(parents=True)
        living.mkdir()
        code = "from minisandbox_ray.sandbox import Sandbox, SandboxSpec; Sandbox(SandboxSpec()).close()"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert not left.exists()
        assert living.exists()
        assert sandbox.run("echo ok").output == "ok\n"
    finally:
        for directory in (left, left.parent, living, parent):
            if directory.exists():
                directory.rmdir()


@needs_groups
def test_real_groups_of_version_2() -> None:
    """Whatever controllers it has: a process can be put into a group there, and the group is removed."""
    mounts = [mount for mount in cgroups.find_mounts(*read_own()) if mount.version == 2]
    if not mounts or not os.access(mounts[0].target, os.W_OK):
        pytest.skip("no writable version 2 hierarchy here")
    name = cgroups.new_name(cgroups.owner_key(os.getpid()))
    code = (
        "import sys; from pathlib import Path; from minisandbox_ray.sandbox.starter.cgroups import *\n"
        "made = make([Hierarchy(2, [(Path(sys.argv[1]), frozenset({'memory'}))])], sys.argv[2])\n"
        "print(made['memory'][0]); print(Path('/proc/self/cgroup').read_text())"
    )
    argv = [sys.executable, "-c", code, str(mounts[0].target), name]
    made, _, membership = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.partition("\n")
    assert re.search(rf"^0::.*/{name}$", membership, re.MULTILINE)
    assert Path(made).name == name
    assert cgroups.remove(Path(made), patience=5)

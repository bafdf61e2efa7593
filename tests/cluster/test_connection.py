import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from minisandbox_ray.cluster import ClusterConfig, check_memory, check_nodes, connect, join
from minisandbox_ray.cluster.connection import _temporary_directory
from minisandbox_ray.cluster.nodes import Node
from minisandbox_ray.errors import ConfigError

DRIVER = """
import sys, threading
from pathlib import Path
import counter, ray
from ray import cloudpickle
from minisandbox_ray.cluster import ClusterConfig, Pool, connect

cloudpickle.register_pickle_by_value(counter)

def main():
    with (
        connect(ClusterConfig(address="local"), Path(sys.argv[1])),
        Pool(ClusterConfig(workers_per_node=1, sandboxes_per_worker=1), counter.Counter, Path(sys.argv[1])) as pool,
    ):
        lease = pool.acquire_sync(None)
        print(lease.call_sync("add")[1], flush=True)
        if sys.argv[2] == "wait":
            lease.call_sync("wait", 60)

if sys.argv[2] == "thread":
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
else:
    main()
print("ended", flush=True)
"""


def processes_of(run_dir: Path) -> list[str]:
    """Command lines of processes that belong to the run: they have files of its directory open, or name it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                command = (entry / "cmdline").read_bytes().decode()
                files = [str(descriptor.readlink()) for descriptor in (entry / "fd").iterdir()]
                if str(run_dir) in command or any(file.startswith(f"{run_dir}/") for file in files):
                    found.append(command.replace("\0", " "))
        except OSError:
            continue
    return found


def links_to(run_dir: Path) -> list[Path]:
    links = [link for link in Path(tempfile.gettempdir()).glob("msr-*") if link.is_symlink()]
    return [link for link in links if str(link.readlink()).startswith(str(run_dir))]


def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


@pytest.mark.parametrize("ending", ["thread", signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left(tmp_path: Path, ending: str | signal.Signals) -> None:
    # The directory is deeper than a socket's path may be.
    run_dir = tmp_path / ("deep-" * 12) / ("down-" * 12)
    mode = ending if isinstance(ending, str) else "wait"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(run_dir), mode]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True
    ) as driver:
        assert driver.stdout is not None
        worker = int(driver.stdout.readline())
        assert processes_of(run_dir)
        if isinstance(ending, signal.Signals):
            assert links_to(run_dir)
            time.sleep(1)  # until it waits: an interrupt that meets a callback of Ray's is swallowed
            # A terminal interrupts the whole group.
            os.killpg(driver.pid, ending) if ending == signal.SIGINT else os.kill(driver.pid, ending)
        assert until(lambda: driver.poll() is not None, 30)
        assert (driver.stdout.read() == "ended\n") == isinstance(ending, str)
    assert until(lambda: not (processes_of(run_dir) or links_to(run_dir) or list(run_dir.iterdir())), 10)
    assert not Path(f"/proc/{worker}/exe").exists()


def test_node_without_unpack_slots_is_named_with_the_command_to_use() -> None:
    good = Node("a", "10.0.0.1", cpus=8, unpack_slots=2)
    check_nodes([good])
    with pytest.raises(ConfigError) as caught:
        check_nodes([good, Node("b", "10.0.0.2", cpus=8, unpack_slots=0)])
    message = str(caught.value)
    assert "10.0.0.2" in message
    assert "10.0.0.1" not in message
    assert """ray start --resources='{"unpack_slots": 8}'""" in message
    assert "\n" not in message
    with pytest.raises(ConfigError, match="no node that may host sandboxes"):
        check_nodes([])


def test_node_with_less_memory_than_a_sandbox_is_named() -> None:
    good = Node("a", "10.0.0.1", cpus=8, unpack_slots=2, memory_bytes=4096 << 20)
    check_memory([good], 4096)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.2 has 4095 MiB .*limits\.memory_mib=4096") as caught:
        check_memory([good, Node("b", "10.0.0.2", cpus=8, unpack_slots=2, memory_bytes=(4096 << 20) - 1)], 4096)
    assert "\n" not in str(caught.value)


def test_run_directory_of_a_running_cluster_is_refused(local_cluster: object, tmp_path: Path) -> None:
    directory = Path(ray.nodes()[0]["RayletSocketName"]).resolve().parents[2]
    assert directory.name == "ray"
    with pytest.raises(ConfigError, match="in use by another run"):
        _temporary_directory(directory.parent)


def test_connect_keeps_a_connection_that_is_there(local_cluster: object, tmp_path: Path) -> None:
    connect(ClusterConfig(address="local"), tmp_path).close()
    assert ray.is_initialized()
    assert list(tmp_path.iterdir()) == []


def test_unreachable_cluster_is_one_line() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"no Ray cluster at {address}: .*refused"):
            join(address)


def node(cpus: float, sandboxes: int = 0) -> Node:
    return Node("a", "10.0.0.1", cpus=cpus, unpack_slots=1, sandboxes=sandboxes)


def test_sandbox_slots_follow_the_cpus() -> None:
    assert ClusterConfig().workers_on(node(2)) == [4]
    assert ClusterConfig().workers_on(node(64)) == [16] * 8
    assert ClusterConfig(workers_per_node=2).workers_on(node(4)) == [4, 4]
    assert ClusterConfig(sandboxes_per_worker=3).workers_on(node(3)) == [3, 3]
    assert ClusterConfig(workers_per_node=2, sandboxes_per_worker=5).workers_on(node(1)) == [5, 5]


def test_the_resource_sandbox_overrides_the_cpus() -> None:
    assert ClusterConfig().workers_on(node(64, sandboxes=20)) == [10, 10]
    assert ClusterConfig(workers_per_node=3).workers_on(node(64, sandboxes=20)) == [7, 7, 6]
    assert ClusterConfig(sandboxes_per_worker=8).workers_on(node(1, sandboxes=20)) == [7, 7, 6]
    assert ClusterConfig(workers_per_node=1, sandboxes_per_worker=8).workers_on(node(1, sandboxes=6)) == [6]

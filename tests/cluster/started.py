"""Raylets that ``ray start`` started on this machine, in mount namespaces of their own where that is needed, and pools
on them that several drivers share; prints what the tests look at, as JSON. Run in its own process.

``RAY_TMPDIR`` names a short directory for Ray's temporary files, ``MINISANDBOX_CACHE`` an empty one.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import counter
import ray
from archives import plant
from ray import cloudpickle

import minisandbox_ray
from minisandbox_ray.cluster import NAMESPACE, ClusterConfig, Lease, Pool, connect
from minisandbox_ray.cluster.directory import stop_pool
from minisandbox_ray.errors import MiniSandboxError

cloudpickle.register_pickle_by_value(counter)

CACHE = Path(os.environ["MINISANDBOX_CACHE"])
ARCHIVES = CACHE / "archives"
BIN = Path(sys.executable).parent


def until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def raylet(options: list[str], before: str = "", **variables: str) -> Any:
    """``ray start`` with these options, in a mount namespace of its own if a shell command is to run before it."""
    command = [str(BIN / "ray"), "start", "--block", "--num-cpus=4", '--resources={"unpack_slots": 2}']
    command += ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}", *options]
    if before:
        command = ["unshare", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **variables}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


@contextmanager
def joined(address: str, before: str = "", **variables: str) -> Any:
    """Another node, by its id."""
    known = alive()
    with raylet([f"--address={address}"], before, **variables):
        assert until(lambda: bool(alive() - known))
        (node_id,) = alive() - known
        yield node_id
    assert until(lambda: node_id not in alive())


def used(pool: Pool) -> int:
    return sum(node["used"] for node in pool.stats()["nodes"].values())


def origin(pool: Pool, node_id: str, environment: str) -> str:
    outcome = ray.get(pool.unpack(node_id, environment))
    if isinstance(outcome, MiniSandboxError):
        return repr(outcome)
    lease = pool.acquire_sync(environment, avoid=frozenset(alive() - {node_id}))
    assert lease.node.node_id == node_id
    assert lease.call_sync("add")[0] == 1
    lease.release()
    return outcome.origin


def travel(address: str, results: dict[str, Any]) -> None:
    """Only this process and the head see the archives; the other node's store is on a disk of 200 MiB."""
    first, second, third = (plant(ARCHIVES, name, kib=3000) for name in ("first", "second", "third"))
    large, small = plant(ARCHIVES, "large", kib=60 << 10), plant(ARCHIVES, "small")
    (head,) = alive()
    nodes = CACHE / "nodes"
    nodes.mkdir(exist_ok=True)
    with joined(address, f"mount -t tmpfs none {ARCHIVES} && mount -t tmpfs -o size=200m none {nodes}") as other:
        config = ClusterConfig(address=address, workers_per_node=1, sandboxes_per_worker=2)
        with Pool(config, counter.Counter, ARCHIVES) as pool:
            results["directory"] = [origin(pool, head, first), origin(pool, other, first)]
        with Pool(config, counter.Counter, ARCHIVES.as_uri()) as pool:
            results["url"] = [origin(pool, head, second), origin(pool, other, second)]
        without_head = config.model_copy(update={"exclude_labels": {"role": "home"}})
        with Pool(without_head, counter.Counter, ARCHIVES) as pool:
            results["from_a_node_without_sandboxes"] = origin(pool, other, third)
            results["full"] = fill(pool, nodes, large, small)


def fill(pool: Pool, nodes: Path, large: str, small: str) -> list[Any]:
    """What happens when the disk of the only node is full, and again free."""
    lease = pool.acquire_sync(None)
    pid = lease.call_sync("add")[1]
    ballast = Path(f"/proc/{pid}/root{nodes}/ballast")
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 90 << 20)
    found = []
    for environment, patience in (large, 30), (small, 3):
        try:
            refused = pool.acquire_sync(environment, timeout=patience)
            refused.call_sync("add")
        except MiniSandboxError as error:
            found.append(type(error).__name__)
        refused.release()
    found.append(lease.call_sync("add")[0])
    lease.release()
    held = pool.acquire_sync(None, timeout=30)
    found.append(held.call_sync("add")[0])
    ballast.unlink()
    lease = pool.acquire_sync(large, timeout=60)
    found.append(lease.call_sync("add")[0])
    lease.release()
    held.release()
    return found


def metrics(port: int, results: dict[str, Any]) -> None:
    def scraped() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        ours = [line.rsplit(" ", 1) for line in lines if line.startswith("ray_minisandbox_")]
        return {name: float(value) for name, value in ours}

    config = ClusterConfig(workers_per_node=1, sandboxes_per_worker=3)
    with Pool(config, counter.Counter, ARCHIVES) as pool:
        environment = plant(ARCHIVES, "metrics")
        lease = pool.acquire_sync(environment)
        lease.call_sync("add")
        expected = {"ray_minisandbox_leases": 1.0, "ray_minisandbox_unpacks_total": 1.0}
        until(lambda: expected.items() <= {name.partition("{")[0]: value for name, value in scraped().items()}.items())
        results["metrics"] = scraped()


def scheduler_pid(name: str) -> int:
    actor = ray.get_actor(name, NAMESPACE)
    return ray._private.state.actors(actor._actor_id.hex())["Pid"]


def private_name(pool: Pool) -> str:
    return f"private-{pool._name}"


def driver(address: str, name: str, count: int) -> None:
    """Holds slots of a shared pool and says what becomes of them."""
    config = shared(address, name)
    with connect(config), Pool(config, counter.Counter, ARCHIVES) as pool:
        leases = [pool.acquire_sync(None) for _ in range(count)]
        print(json.dumps([lease.call_sync("add")[1] for lease in leases]), flush=True)
        until(lambda: all(lease.ended for lease in leases), 120)
        again = pool.acquire_sync(None)
        print(json.dumps([leases[0].ended, again.call_sync("add")[0]]), flush=True)


def shared(address: str, name: str) -> ClusterConfig:
    return ClusterConfig(address=address, pool=name, workers_per_node=1, sandboxes_per_worker=4)


@contextmanager
def another_driver(address: str, name: str, count: int) -> Any:
    command = [sys.executable, __file__, "driver", address, name, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def verb(*arguments: str) -> list[Any]:
    command = [sys.executable, "-m", "minisandbox_ray", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return [run.returncode, run.stdout, run.stderr]


def share(address: str, results: dict[str, Any]) -> None:
    found = results["shared"] = {}
    config = shared(address, "common")
    with another_driver(address, "common", 3) as first:
        assert first.stdout
        workers = json.loads(first.stdout.readline())
        with Pool(config, counter.Counter, ARCHIVES) as pool, Pool(config, counter.Counter, ARCHIVES) as other:
            found["same_worker"] = pool.acquire_sync(None).call_sync("add")[1] == workers[0]
            try:
                Pool(config.model_copy(update={"lease_seconds": 5.0}), counter.Counter, ARCHIVES)
            except MiniSandboxError as error:
                found["other_settings"] = [type(error).__name__, str(error)]
            found["turns"] = turns(pool, other, first)
            found["workers_kept"] = until(lambda: used(pool) == 0) and pool.stats()["lost_workers"] == 0
            # The first driver, which made the pool, is gone; now the scheduler.
            held = [pool.acquire_sync(None) for _ in range(4)]
            held_pid = held[0].call_sync("add")[1]

            async def lose_the_scheduler() -> int:
                waiting = [asyncio.create_task(each.acquire(None, timeout=120)) for each in (pool, other)]
                await asyncio.sleep(0.5)
                os.kill(scheduler_pid("common"), signal.SIGKILL)
                leases = await asyncio.gather(*waiting)
                answers = [await lease.call("add") for lease in leases]
                for lease in leases:
                    lease.release()
                return sum(count for count, _ in answers)

            found["served"] = asyncio.run(lose_the_scheduler())
            found["ended"] = [lease.ended for lease in held]
            found["old_worker_gone"] = until(lambda: not Path(f"/proc/{held_pid}/exe").exists())
            found["free"] = until(lambda: used(pool) == 0)
            found["capacity"] = pool.capacity
            with another_driver(address, "common", 2) as stopped:
                assert stopped.stdout
                stopped.stdout.readline()
                os.kill(stopped.pid, signal.SIGSTOP)
                found["silent"] = until(lambda: used(pool) == 0, 40)
                os.kill(stopped.pid, signal.SIGCONT)
                found["silent_driver"] = json.loads(stopped.stdout.readline())
            status = verb("status", "--json", "--address", address)
            found["status"] = [status[0], json.loads(status[1])["common"]["clients"]]
            found["unknown"] = verb("pool", "stop", "uncommon", "--address", address)
            lease = pool.acquire_sync(None)
            worker = lease.call_sync("add")[1]
            found["stop"] = verb("pool", "stop", "common", "--address", address)
            try:
                pool.acquire_sync(None, timeout=30)
            except MiniSandboxError as error:
                found["after_stop"] = str(error)
            found["lease_after_stop"] = lease.ended
            found["worker_gone"] = until(lambda: not Path(f"/proc/{worker}/exe").exists())
    found["actors"] = ray.util.list_named_actors(all_namespaces=True)


def turns(pool: Pool, other: Pool, first: subprocess.Popen[str]) -> list[Any]:
    """All slots are taken; two clients wait for three each; another driver's three come back when it is killed."""
    order: list[str] = []

    async def wait(name: str, each: Pool) -> Lease:
        lease = await each.acquire(None)
        order.append(name)
        return lease

    async def main() -> list[Any]:
        waiting = [asyncio.create_task(wait(f"a{number}", pool)) for number in range(3)]
        await asyncio.to_thread(until, lambda: pool.stats()["waiting"] == 3)
        waiting += [asyncio.create_task(wait(f"b{number}", other)) for number in range(3)]
        await asyncio.to_thread(until, lambda: pool.stats()["waiting"] == 6)
        started = time.monotonic()
        first.kill()
        while len(order) < 3:
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - started
        granted = sorted(order)
        for task in waiting:
            if task.done():
                (await task).release()
        for lease in await asyncio.gather(*waiting):
            lease.release()
        return [seconds, granted]

    outcome = asyncio.run(main())
    for lease in list(pool._leases.values()):
        lease.release()
    return outcome


def faults(results: dict[str, Any]) -> None:
    """A private pool whose scheduler, then a worker of which, does not answer."""
    found = results["private"] = {}
    config = ClusterConfig(workers_per_node=1, sandboxes_per_worker=3)
    with Pool(config, counter.Counter, ARCHIVES) as pool:
        calls = count_calls()
        lease = pool.acquire_sync(None)
        for _ in range(200):
            lease.call_sync("add")
        found["calls"] = dict(calls)
        calls.clear()

        async def many() -> None:
            for lease in await asyncio.gather(*(pool.acquire(None) for _ in range(2))):
                lease.release()
            waiting = [asyncio.create_task(pool.acquire(None)) for _ in range(200)]
            await asyncio.sleep(0.5)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

        asyncio.run(many())
        found["many"] = calls["submit"]
        os.kill(scheduler_pid(private_name(pool)), signal.SIGKILL)
        found["served"] = pool.acquire_sync(None, timeout=120).call_sync("add")[0]
        found["ended"] = lease.ended
        lease = pool.acquire_sync(None)
        pid = lease.call_sync("add")[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            lease.call_sync("add", within=1)
        except MiniSandboxError as error:
            found["stopped"] = [type(error).__name__, str(error)]
        found["taken_out"] = until(lambda: pool.stats()["lost_workers"] == 1)
        again = [pool.acquire_sync(None, timeout=60) for _ in range(3)]
        found["again"] = [lease.call_sync("add")[0] for lease in again]
        found["stopped_worker_gone"] = until(lambda: not Path(f"/proc/{pid}/exe").exists())


def count_calls() -> Counter[str]:
    """Of actor methods, by name, that this process makes from now on."""
    calls: Counter[str] = Counter()
    original = ray.actor.ActorHandle._actor_method_call

    def counted(self: Any, method_name: str, *arguments: Any, **keywords: Any) -> Any:
        calls[method_name] += 1
        return original(self, method_name, *arguments, **keywords)

    ray.actor.ActorHandle._actor_method_call = counted  # type: ignore[method-assign]
    return calls


def bad_nodes(address: str, results: dict[str, Any]) -> None:
    """A node with another version of the package, then one whose cache is read-only."""
    package = Path(minisandbox_ray.__file__).parent
    shutil.copytree(package, CACHE / "other" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    init = CACHE / "other" / package.name / "__init__.py"
    init.write_text(init.read_text().replace(minisandbox_ray.__version__, "0.0.1"))
    shared = ClusterConfig(pool="bad", workers_per_node=1, sandboxes_per_worker=1)

    def start() -> Any:
        try:
            with Pool(shared, counter.Counter, ARCHIVES) as pool:
                return pool.acquire_sync(None).call_sync("add")[0]
        except MiniSandboxError as error:
            return [type(error).__name__, str(error)]

    config = ClusterConfig(workers_per_node=1, sandboxes_per_worker=1)
    with (
        Pool(config, counter.Counter, ARCHIVES) as pool,
        joined(address, PYTHONPATH=f"{CACHE / 'other'}:{os.environ['PYTHONPATH']}"),
    ):
        results["mixed_versions"] = start()
        until(lambda: bool(pool.stats()["troubles"]))
        results["trouble"] = list(pool.stats()["troubles"].values())
        results["still"] = [len(pool.stats()["nodes"]), pool.acquire_sync(None).call_sync("add")[0]]
    with joined(address, f"mount --bind {CACHE} {CACHE} && mount -o remount,bind,ro {CACHE}"):
        results["unwritable_store"] = start()
    results["mended"] = start()  # the pool that failed is in nobody's way
    stop_pool("bad")


def main() -> None:
    results: dict[str, Any] = {"seconds": {}}
    ports = free_port(), free_port(), free_port()
    address = f"127.0.0.1:{ports[0]}"
    options = ["--head", f"--port={ports[0]}", f"--metrics-export-port={ports[1]}", "--labels=role=home"]
    options += ["--include-dashboard=false", f"--ray-client-server-port={ports[2]}", "--node-ip-address=127.0.0.1"]
    parts: dict[str, Callable[[], None]] = {
        "share": lambda: share(address, results),
        "faults": lambda: faults(results),
        "metrics": lambda: metrics(ports[1], results),
    }
    if os.geteuid() == 0:  # mounts
        parts |= {"travel": lambda: travel(address, results), "bad_nodes": lambda: bad_nodes(address, results)}
    with ExitStack() as stack:
        stack.enter_context(raylet(options))
        assert until(lambda: socket.socket().connect_ex(("127.0.0.1", ports[0])) == 0)
        until(lambda: reach(address, stack))
        for name in sys.argv[1:] or parts:
            started = time.monotonic()
            try:
                parts[name]()
            except Exception:
                results[f"{name}_failed"] = traceback.format_exc()
            results["seconds"][name] = round(time.monotonic() - started, 1)
        stack.callback(ray.shutdown)
    print(json.dumps(results))


def reach(address: str, stack: ExitStack) -> bool:
    try:
        stack.enter_context(connect(ClusterConfig(address=address)))
    except MiniSandboxError:
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1:2] == ["driver"]:
        driver(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()

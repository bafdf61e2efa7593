"""Raylets on this machine, and pools on them; prints what the tests look at, as JSON. Run in its own process.

``RAY_TMPDIR`` names a short directory for Ray's temporary files, ``MINISANDBOX_CACHE`` an empty one.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import counter
import ray
from archives import plant
from ray import cloudpickle
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from minisandbox_ray.cluster import ClusterConfig, Lease, Pool, connect
from minisandbox_ray.errors import ClusterError, ConfigError

cloudpickle.register_pickle_by_value(counter)

NODE = {"num_cpus": 4, "resources": {"unpack_slots": 2}}
ARCHIVES = Path(os.environ["MINISANDBOX_CACHE"]) / "archives"


def until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def used(pool: Pool) -> dict[str, int]:
    return {node_id: node["used"] for node_id, node in pool.stats()["nodes"].items()}


def spread(pool: Pool) -> list[int]:
    return sorted(used(pool).values())


def take(pool: Pool, count: int, environment: str | None = None) -> list[Lease]:
    async def main() -> list[Lease]:
        return list(await asyncio.gather(*(pool.acquire(environment) for _ in range(count))))

    return asyncio.run(main())


def give_back(pool: Pool, leases: list[Lease]) -> None:
    for lease in leases:
        lease.release()
    assert until(lambda: not any(used(pool).values())), pool.stats()


def call_all(leases: list[Lease], method: str, *arguments: Any) -> list[Any]:
    async def main() -> list[Any]:
        return await asyncio.gather(*(lease.call(method, *arguments) for lease in leases), return_exceptions=True)

    return asyncio.run(main())


def even(pool: Pool, results: dict[str, Any]) -> None:
    leases = []
    results["steps"] = []
    for _ in range(8):
        leases.append(pool.acquire_sync(None))
        results["steps"].append(spread(pool))
    leases += take(pool, 56)
    results["none_holds"] = spread(pool)
    give_back(pool, leases)
    environment = plant(ARCHIVES, "even")
    first = pool.acquire_sync(environment)
    first.call_sync("add")
    holder = first.node.node_id
    give_back(pool, [first])
    again = pool.acquire_sync(environment)
    results["comes_back"] = again.node.node_id == holder
    give_back(pool, [again])
    leases = take(pool, 64, environment)
    results["one_holds"] = spread(pool)
    results["calls"] = [outcome[0] for outcome in call_all(leases, "add")]
    results["unpacks"] = pool.stats()["unpacks"]
    give_back(pool, leases)


def join_and_drain(cluster: Cluster, pool: Pool, results: dict[str, Any]) -> None:
    capacity = pool.capacity
    joined = cluster.add_node(**NODE)
    results["joined"] = until(lambda: pool.capacity == capacity + 32)
    leases = take(pool, 40)
    results["with_joined"] = spread(pool)
    cold = plant(ARCHIVES, "drained", kib=16384)
    cold_leases = take(pool, 5, cold)
    accepted, _ = GcsClient(address=cluster.address).drain_node(
        joined.node_id, autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "the test", 0
    )
    results["drain_accepted"] = accepted
    results["drains"] = until(lambda: pool.stats()["nodes"][joined.node_id]["draining"])
    results["cold_calls"] = [repr(outcome) for outcome in call_all(cold_leases, "add")]
    there = [lease for lease in leases + cold_leases if lease.node.node_id == joined.node_id]
    more = take(pool, 16)
    results["new_there"] = sum(lease.node.node_id == joined.node_id for lease in more)
    results["kept"] = [outcome[0] for outcome in call_all(there[:1], "add")]
    for lease in leases + cold_leases + more:
        lease.release()
    results["drained"] = until(lambda: joined.node_id not in pool.stats()["nodes"])
    results["lost_by_drain"] = pool.stats()["lost_workers"]
    give_back(pool, [])
    cluster.remove_node(joined, allow_graceful=False)


def lose_a_node(cluster: Cluster, victim: Any, pool: Pool, results: dict[str, Any]) -> None:
    leases = take(pool, 16)

    async def lose() -> list[str]:
        calls = [asyncio.create_task(lease.call("wait", 60)) for lease in leases]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(cluster.remove_node, victim, False)
        lost = [lease for lease in leases if lease.node.node_id == victim.node_id]
        while sum(call.done() for call in calls) < len(lost):
            await asyncio.sleep(0.1)
        for lease in leases:
            lease.release()
        return [type(outcome).__name__ for outcome in await asyncio.gather(*calls, return_exceptions=True)]

    results["after_loss"] = asyncio.run(lose())
    results["gone"] = until(lambda: victim.node_id not in used(pool) and not any(used(pool).values()))
    again = take(pool, pool.capacity)
    results["again"] = [outcome[0] for outcome in call_all(again, "add")]
    give_back(pool, again)


def unequal(cluster: Cluster, config: ClusterConfig, results: dict[str, Any]) -> None:
    cluster.add_node(num_cpus=1, resources={"unpack_slots": 1, "sandbox": 12})
    cluster.wait_for_nodes()
    config = ClusterConfig(address=cluster.address, exclude_labels=config.exclude_labels)
    with Pool(config, counter.Counter, ARCHIVES) as pool:
        results["capacities"] = sorted(node["slots"] for node in pool.stats()["nodes"].values())
        leases = take(pool, pool.capacity // 2)
        results["follows"] = spread(pool)
        results["names"] = [node["name"] for node in pool.stats()["nodes"].values()]
        for lease in leases:
            lease.release()
        try:
            Pool(config, counter.Counter, ARCHIVES).close()
            results["taken"] = "nothing was said"
        except ClusterError as error:
            results["taken"] = str(error)
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(Pool, config, counter.Counter, ARCHIVES)
            time.sleep(2)
            results["waits"] = not waiting.done()
            pool.close()
            second = waiting.result()
            results["then_has"] = second.capacity
            second.close()


def main() -> None:
    results: dict[str, Any] = {"seconds": {}}
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        second, bad = cluster.add_node(**NODE), cluster.add_node(num_cpus=2)
        trains = cluster.add_node(num_cpus=2, labels={"role": "train"})
        cluster.wait_for_nodes()
        config = ClusterConfig(
            address=cluster.address, workers_per_node=1, sandboxes_per_worker=32, exclude_labels={"role": "train"}
        )
        try:
            connect(config)
        except ConfigError as error:
            results["without_slots"] = str(error)
        cluster.remove_node(bad)
        cluster.add_node(**NODE)
        cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        with connect(config):
            with Pool(config, counter.Counter, ARCHIVES) as pool:
                results["excluded"] = trains.node_id not in used(pool)
                results["capacity"] = pool.capacity
                for name, work in {
                    "even": lambda: even(pool, results),
                    "drain": lambda: join_and_drain(cluster, pool, results),
                    "lose": lambda: lose_a_node(cluster, second, pool, results),
                }.items():
                    started = time.monotonic()
                    work()
                    results["seconds"][name] = time.monotonic() - started
            unequal(cluster, config, results)
            results["actors"] = ray.util.list_named_actors(all_namespaces=True)
    finally:
        cluster.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    main()

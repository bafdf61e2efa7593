"""Two raylets on this machine, and pools on them; prints what the tests look at, as JSON. Run in its own process.

``RAY_TMPDIR`` names a short directory for Ray's temporary files.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import counter
from ray import cloudpickle
from ray.cluster_utils import Cluster

from minisandbox_ray.cluster import ClusterConfig, Pool, connect
from minisandbox_ray.errors import ClusterError, ConfigError

cloudpickle.register_pickle_by_value(counter)


def spread(pool: Pool) -> list[int]:
    return sorted(node["used"] for node in pool.stats()["nodes"].values())


def look(cluster: Cluster, results: dict[str, Any]) -> None:
    config = ClusterConfig(address=cluster.address, workers_per_node=2, sandboxes_per_worker=4)
    try:
        connect(config)
    except ConfigError as error:
        results["without_slots"] = str(error)
    cluster.remove_node(cluster.list_all_nodes()[-1])
    second = cluster.add_node(num_cpus=2, resources={"unpack_slots": 1})
    cluster.wait_for_nodes()
    with connect(config), Pool(config, counter.Counter, Path.cwd()) as pool:
        leases = []
        results["spread"] = []
        for _ in range(pool.capacity):
            leases.append(pool.acquire_sync(None))
            results["spread"].append(spread(pool))
        results["capacity"] = pool.capacity

        async def lose_a_node() -> list[str]:
            calls = [asyncio.create_task(lease.call("wait", 20)) for lease in leases]
            await asyncio.sleep(0.5)
            await asyncio.to_thread(cluster.remove_node, second, False)
            lost = [lease for lease in leases if lease.node.node_id == second.node_id]
            while sum(call.done() for call in calls) < len(lost):
                await asyncio.sleep(0.1)
            for lease in leases:
                lease.release()
            return [type(outcome).__name__ for outcome in await asyncio.gather(*calls, return_exceptions=True)]

        results["after_loss"] = asyncio.run(lose_a_node())
        deadline = time.monotonic() + 10
        while spread(pool) != [0] and time.monotonic() < deadline:
            time.sleep(0.1)
        results["left"] = pool.stats()
        again = [pool.acquire_sync(None) for _ in range(pool.capacity)]
        results["again"] = [lease.call_sync("add")[0] for lease in again]


def main() -> None:
    results: dict[str, Any] = {}
    head = {"num_cpus": 2, "resources": {"unpack_slots": 1}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        look(cluster, results)
    except ClusterError as error:
        results["failed"] = str(error)
    finally:
        cluster.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    main()

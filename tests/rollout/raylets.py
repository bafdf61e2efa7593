"""Episodes on two raylets of this machine, one of which is killed under them; prints what became of them, as JSON.

Run in its own process with the task as a file; ``RAY_TMPDIR`` names a short directory for Ray's temporary files.
"""

import asyncio
import json
import sys
from typing import Any

from play import SUBMIT, bash, until, used
from ray.cluster_utils import Cluster

from minisandbox_ray.cluster import ClusterConfig, connect
from minisandbox_ray.environments import cache_root
from minisandbox_ray.errors import MiniSandboxError
from minisandbox_ray.rollout import EpisodePool, SandboxEnv
from minisandbox_ray.tasks import Task, load_tasks

EPISODES = 8


async def lose_a_node(cluster: Cluster, victim: Any, pool: EpisodePool, task: Task) -> list[dict[str, Any]]:
    started = 0
    running = asyncio.Event()

    async def play() -> dict[str, Any]:
        nonlocal started
        env = SandboxEnv(pool)
        _, info = await env.areset(task)
        first = info["worker"]
        await env.astep(bash("echo kept > /tmp/kept"))
        started += 1
        if started == EPISODES:
            running.set()
        *_, info = await env.astep(bash("sleep 5; cat /tmp/kept && sed -i 's/a - b/a + b/' calc.py"))
        code = info.get("exit_code")
        _, reward, _, _, info = await env.astep(SUBMIT)
        await env.aclose()
        return {"reward": reward, "code": code, "replay": info["replay"], "moved": info["worker"] != first}

    async def kill() -> None:
        await running.wait()
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.remove_node, victim, False)

    *outcomes, _ = await asyncio.gather(*(play() for _ in range(EPISODES)), kill())
    return outcomes


def main() -> None:
    (task,) = load_tasks(sys.argv[1])
    results: dict[str, Any] = {}
    head = {"num_cpus": 2, "resources": {"unpack_slots": 1}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(num_cpus=2, resources={"unpack_slots": 1})
        cluster.wait_for_nodes()
        config = ClusterConfig(address=cluster.address, workers_per_node=1, sandboxes_per_worker=4)
        with connect(config), EpisodePool(config, cache_root() / "archives") as pool:
            results["outcomes"] = asyncio.run(lose_a_node(cluster, second, pool, task))
            until(lambda: used(pool) == 0)
            results["used"] = used(pool)
            results["nodes"] = len(pool.stats()["nodes"])
    except MiniSandboxError as error:
        results["failed"] = str(error)
    finally:
        cluster.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    main()

"""The cluster: spread, what the pool costs, cold environments, prefetch, chaos. Ratios of one run on one machine.

    python benchmarks/cluster.py [--json FILE] [--only spread,calls,cold,prefetch,chaos] [--episodes 2000] [--seed 0]

- spread_max_diff: most minus least leases of a node, of 64 on 4 raylets, each with a store of its own, where one node
  holds the environment beforehand (at most 2: 16 ± 1 each).
- steps_vs_actor_calls: steps that run `true` in a sandbox, through pool and environment, over calls of a bare Ray actor
  that runs the same command in a sandbox of its own, as many at a time (at least 0.7); …_noop: over calls that do
  nothing, which is the price of the command and the sandbox (no bar).
- reset_vs_bare: a warm reset through Ray, lease included, over a bare sandbox's start to its first answer (at most 3).
- cold32_vs_best: 32 environments that the node does not hold, reset at once: time with the default unpack slots over
  the best of 1, 2, 4 and 8 (at most 1.3). cold32_bytes_bounded: whether no more was unpacked at one time than the slots
  allow.
- prefetch_saved_share: of the time that resets wait for cold environments, what `Pool.prefetch` during a step's
  training saves (at least 0.8). The training is a pause, as if a GPU did it.
- chaos_…: see benchmarks/chaos.py.

Each part runs in a process and a Ray cluster of its own. Exit status 1 if a bar is missed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from archives import clone_archives, make_task
from measure import quantile
from report import print_bars

BARS = {
    "spread_max_diff": ("<=", 2),
    "steps_vs_actor_calls": (">=", 0.7),
    "reset_vs_bare": ("<=", 3),
    "cold32_vs_best": ("<=", 1.3),
    "cold32_bytes_bounded": (">=", 1),
    "prefetch_saved_share": (">=", 0.8),
    "chaos_reward_mismatches": ("<=", 0),
    "chaos_leaks": ("<=", 0),
    "chaos_infra_share": ("<=", 0.02),
}
TRUE = "```bash\ntrue\n```"
SLOTS = (1, 2, 4, 8)
COLD = 32
BATCH = 8
TRAINING_SECONDS = 6.0
STEPS = 4


@contextlib.contextmanager
def cluster(slots: int | None = None) -> Iterator[Any]:
    """A Ray cluster of this process's own on this machine."""
    import ray

    from minisandbox_ray.cluster import ClusterConfig, connect

    directory = tempfile.mkdtemp(prefix="mb-", dir="/tmp")
    try:
        if slots is not None:
            ray.init(
                address="local",
                resources={"unpack_slots": slots},
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                _temp_dir=directory,
            )
        with connect(ClusterConfig(address="local"), Path(directory)) as connection:
            yield connection
        ray.shutdown()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def part_spread(_: argparse.Namespace) -> dict[str, Any]:
    """64 leases on 4 raylets."""
    import ray
    from ray.cluster_utils import Cluster

    from minisandbox_ray.cluster import ClusterConfig
    from minisandbox_ray.rollout import EpisodePool

    node = {"num_cpus": 2, "resources": {"unpack_slots": 1, "sandbox": 32}, "include_dashboard": False}
    raylets = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(3):
            raylets.add_node(num_cpus=2, resources={"unpack_slots": 1, "sandbox": 32})
        raylets.wait_for_nodes()
        ray.init(address=raylets.address, log_to_driver=False, logging_level="error")
        task = make_task()
        with EpisodePool(ClusterConfig(sandboxes_per_worker=32)) as pool:
            first = pool.acquire_sync(task.environment)
            pool.stats()
            first.release()
            leases = [pool.acquire_sync(task.environment) for _ in range(64)]
            used = [entry["used"] for entry in pool.stats()["nodes"].values()]
            for lease in leases:
                lease.release()
    finally:
        ray.shutdown()
        raylets.shutdown()
    return {"spread_max_diff": max(used) - min(used), "spread_used": sorted(used)}


def part_calls(_: argparse.Namespace) -> dict[str, Any]:
    """Steps and resets through the pool, against bare actors and bare sandboxes."""
    import ray

    from minisandbox_ray.cluster import ClusterConfig
    from minisandbox_ray.environments import NodeStore, cache_root
    from minisandbox_ray.rollout import EpisodeConfig, EpisodePool, SandboxEnv
    from minisandbox_ray.sandbox import Sandbox

    workers, each, calls = 2, 4, 200
    task = make_task()

    class Bare:
        """What the pool and the environment are measured against."""

        def __init__(self) -> None:
            self.boxes = [Sandbox(_spec(task)) for _ in range(each)]

        def run(self, number: int) -> str:
            return self.boxes[number].run("true").output

        def nothing(self, number: int) -> str:
            return ""

    with cluster(), EpisodePool(ClusterConfig(workers_per_node=workers, sandboxes_per_worker=each)) as pool:
        config = EpisodeConfig(max_turns=1_000_000, episode_timeout=3000)
        envs = [SandboxEnv(pool, config) for _ in range(workers * each)]
        for env in envs:
            env.reset(task)
        actors = [ray.remote(num_cpus=0, max_concurrency=each)(Bare).remote() for _ in range(workers)]

        async def steps(env: SandboxEnv) -> None:
            for _ in range(calls):
                await env.astep(TRUE)

        async def bare(number: int, method: str) -> None:
            actor = actors[number % workers]
            for _ in range(calls):
                await getattr(actor, method).remote(number // workers)

        def rate(kind: str) -> float:
            async def all_of_them() -> None:
                if kind == "steps":
                    await asyncio.gather(*(steps(env) for env in envs))
                else:
                    await asyncio.gather(*(bare(number, kind) for number in range(workers * each)))

            begin = time.perf_counter()
            asyncio.run(all_of_them())
            return workers * each * calls / (time.perf_counter() - begin)

        rates: dict[str, list[float]] = {"steps": [], "run": [], "nothing": []}
        for turn in range(6):
            for kind, values in rates.items():
                value = rate(kind)
                if turn:  # the first is for caches
                    values.append(value)
        for env in envs:
            env.close()
        for actor in actors:
            ray.kill(actor)
        resets: dict[str, list[float]] = {"reset": [], "bare": []}
        store = NodeStore(cache_root() / "store")
        with SandboxEnv(pool, config) as env, store.use(task.environment, cache_root() / "archives") as environment:
            spec = environment.sandbox_spec(layer=store.derive(environment, task.patch))
            for turn in range(60):
                begin = time.perf_counter()
                env.reset(task)
                between = time.perf_counter()
                env.close()
                time.sleep(0.05)
                start = time.perf_counter()
                box = Sandbox(spec)
                box.run("true")
                end = time.perf_counter()
                box.close()
                time.sleep(0.05)
                if turn >= 10:
                    resets["reset"].append(between - begin)
                    resets["bare"].append(end - start)
    steps_rate, run_rate, noop_rate = (quantile(rates[kind]) for kind in ("steps", "run", "nothing"))
    return {
        "steps_vs_actor_calls": steps_rate / run_rate,
        "steps_vs_actor_calls_noop": steps_rate / noop_rate,
        "steps_per_second": steps_rate,
        "actor_calls_per_second": run_rate,
        "actor_noop_calls_per_second": noop_rate,
        "reset_vs_bare": quantile(resets["reset"]) / quantile(resets["bare"]),
        "reset_ms": quantile(resets["reset"]) * 1e3,
        "bare_ms": quantile(resets["bare"]) * 1e3,
    }


def _spec(task: Any) -> Any:
    from minisandbox_ray.environments import NodeStore, cache_root

    store = NodeStore(cache_root() / "store")
    return store.materialise(task.environment, cache_root() / "archives").sandbox_spec()


def part_cold(arguments: argparse.Namespace) -> dict[str, Any]:
    """32 cold environments at once, with the given unpack slots."""
    from minisandbox_ray.cluster import ClusterConfig
    from minisandbox_ray.environments import cache_root
    from minisandbox_ray.rollout import EpisodePool, SandboxEnv

    tasks = clone_archives(make_task(), COLD)
    shutil.rmtree(cache_root() / "store", ignore_errors=True)
    with cluster(arguments.slots), EpisodePool(ClusterConfig(sandboxes_per_worker=COLD)) as pool:
        prime(pool)
        envs = [SandboxEnv(pool) for _ in tasks]

        async def all_resets() -> None:
            await asyncio.gather(*(env.areset(task) for env, task in zip(envs, tasks, strict=True)))

        begin = time.perf_counter()
        asyncio.run(all_resets())
        seconds = time.perf_counter() - begin
        for env in envs:
            env.close()
        node = next(iter(pool.stats()["nodes"].values()))
        largest = max(_unpacked_bytes(task) for task in tasks)
    return {
        "seconds": seconds,
        "slots": node["unpack_slots"],
        "slots_peak": node["unpack_slots_peak"],
        "bytes_peak": node["unpack_bytes_peak"],
        "bytes_allowed": node["unpack_slots"] * largest,
    }


def prime(pool: Any) -> None:
    """Ray's task processes and the interpreter's copy are there; only what is measured is cold."""
    from minisandbox_ray.rollout import SandboxEnv

    with SandboxEnv(pool) as env:
        env.reset(make_task())


def _unpacked_bytes(task: Any) -> int:
    from minisandbox_ray.environments import cache_root, read_manifest

    return read_manifest(cache_root() / "archives", task.environment).unpacked_bytes


def part_prefetch(_: argparse.Namespace) -> dict[str, Any]:
    """Steps of 8 episodes and a pause: warm, cold, cold with prefetch."""
    from minisandbox_ray.cluster import ClusterConfig
    from minisandbox_ray.environments import cache_root
    from minisandbox_ray.rollout import EpisodePool, SandboxEnv

    tasks = clone_archives(make_task(), BATCH * (STEPS + 1))
    batches = [tasks[start : start + BATCH] for start in range(0, len(tasks), BATCH)]

    def train(pool: Any, *, with_prefetch: bool) -> float:
        async def rollout(batch: list[Any]) -> None:
            envs = [SandboxEnv(pool) for _ in batch]

            async def episode(env: SandboxEnv, task: Any) -> None:
                await env.areset(task)
                await env.astep(TRUE)
                await env.aclose()

            await asyncio.gather(*(episode(env, task) for env, task in zip(envs, batch, strict=True)))

        asyncio.run(rollout(batches[0]))  # not counted: nobody could ask for the first batch before
        begin = time.perf_counter()
        for batch in batches[1:]:
            if with_prefetch:
                pool.prefetch({task.environment: 1 for task in batch})
            time.sleep(TRAINING_SECONDS)
            asyncio.run(rollout(batch))
        return time.perf_counter() - begin

    taken = {}
    for kind in ("cold", "prefetch", "warm"):
        if kind != "warm":
            shutil.rmtree(cache_root() / "store", ignore_errors=True)
        with cluster(), EpisodePool(ClusterConfig(sandboxes_per_worker=BATCH * 2)) as pool:
            prime(pool)
            taken[kind] = train(pool, with_prefetch=kind == "prefetch")
    return {
        "prefetch_saved_share": (taken["cold"] - taken["prefetch"]) / (taken["cold"] - taken["warm"]),
        **{f"prefetch_{kind}_seconds": seconds for kind, seconds in taken.items()},
    }


def part_chaos(arguments: argparse.Namespace) -> dict[str, Any]:
    """See chaos.py."""
    import chaos

    return chaos.run(arguments.episodes, arguments.seed)


PARTS = {"spread": part_spread, "calls": part_calls, "cold": part_cold, "prefetch": part_prefetch, "chaos": part_chaos}


def in_process(part: str, cache: Path, *more: str) -> dict[str, Any]:
    """Run a part; -> its figures."""
    command = [sys.executable, __file__, "--part", part, *more]
    ray_directory = tempfile.mkdtemp(prefix="mb-", dir="/tmp")
    environment = {**os.environ, "MINISANDBOX_CACHE": str(cache), "RAY_TMPDIR": ray_directory}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    finally:
        shutil.rmtree(ray_directory, ignore_errors=True)
    if done.returncode:
        sys.exit(f"part {part} failed")
    return json.loads(done.stdout.splitlines()[-1])


def cold(cache: Path) -> dict[str, Any]:
    """The default number of slots against the others; in turns, three times, medians. What earlier runs wrote is on the
    disk before the next one starts: it is most of what one run differs from another in."""
    from minisandbox_ray.cluster.nodes import default_unpack_slots

    default = default_unpack_slots(os.cpu_count() or 1)
    runs: dict[int, list[dict[str, Any]]] = {}
    for _ in range(3):
        for slots in sorted({default, *SLOTS}):
            os.sync()
            runs.setdefault(slots, []).append(in_process("cold", cache, "--slots", str(slots)))
    times = {slots: quantile([run["seconds"] for run in each]) for slots, each in runs.items()}
    every = [run for each in runs.values() for run in each]
    return {
        "cold32_vs_best": times[default] / min(times.values()),
        "cold32_bytes_bounded": int(
            all(run["slots_peak"] <= run["slots"] and run["bytes_peak"] <= run["bytes_allowed"] for run in every)
        ),
        "cold32_default_slots": default,
        "cold32_seconds": times,
        "cold32_two_slots_peak_mib": max(run["bytes_peak"] for run in runs[2]) >> 20,
    }


def main() -> int:
    """Print the figures; -> exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures by name to this file")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, separated by commas")
    parser.add_argument("--episodes", type=int, default=2000, help="episodes of the chaos part (2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the chaos part")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--slots", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](arguments)))
        return 0
    wanted = arguments.only.split(",")
    figures: dict[str, Any] = {name: None for name in BARS}
    with tempfile.TemporaryDirectory(prefix="minisandbox-cluster-") as cache:
        for part in PARTS:
            if part in wanted:
                more = ["--episodes", str(arguments.episodes), "--seed", str(arguments.seed)] if part == "chaos" else []
                figures |= cold(Path(cache)) if part == "cold" else in_process(part, Path(cache), *more)
                print(
                    part,
                    json.dumps({name: figures[name] for name in figures if figures[name] is not None}),
                    file=sys.stderr,
                )
    missed = print_bars(figures, BARS)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

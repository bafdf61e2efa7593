"""Many episodes of many tasks, as many at a time as a pool has slots."""

import asyncio
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import ray

from minisandbox_ray import __version__
from minisandbox_ray.errors import MiniSandboxError
from minisandbox_ray.rollout.config import EpisodeConfig
from minisandbox_ray.rollout.env import SandboxEnv
from minisandbox_ray.rollout.policies import Policy
from minisandbox_ray.rollout.pool import EpisodePool
from minisandbox_ray.rollout.trajectory import Trajectory, Turn, task_digest
from minisandbox_ray.tasks import Task

RESET_PARTS = ("materialise", "derive", "sandbox")
STEP_PARTS = ("command", "diff", "grade", "replay")


async def play(
    episodes: Iterable[tuple[Task, int]],
    pool: EpisodePool,
    make_policy: Callable[[], Policy],
    *,
    policy: str,
    seed: int = 0,
    config: EpisodeConfig | None = None,
    concurrency: int | None = None,
    on_trajectory: Callable[[Trajectory], None],
) -> None:
    """Play each (task, sample), ``concurrency`` (default: the pool's slots) at a time.

    ``on_trajectory`` gets each trajectory as it is finished; a failed episode has one, too. ``policy`` is its name
    there. Cancelled, it gives up what is running. Raises ConfigError, and what ``on_trajectory`` raises.
    """
    waiting = iter(episodes)

    async def player() -> None:
        for task, sample in waiting:
            on_trajectory(await play_one(task, sample, pool, make_policy(), policy, seed + sample, config))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency or max(1, pool.capacity)):
                group.create_task(player())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def play_one(
    task: Task, sample: int, pool: EpisodePool, policy: Policy, name: str, seed: int, config: EpisodeConfig | None
) -> Trajectory:
    """One episode from reset to its end. Raises ConfigError; every other failure is in the trajectory."""
    seconds: dict[str, float] = defaultdict(float)
    turns: list[Turn] = []
    info: dict = {}
    reward = 0.0
    prompt = ""
    started = time.perf_counter()
    env = SandboxEnv(pool, config)
    try:
        observation, info = await env.areset(task, seed)
        seconds["wait"] += info["seconds"]["wait"]
        seconds["reset"] += sum(info["seconds"][part] for part in RESET_PARTS)
        prompt = observation
        policy.reset(task, sample, seed)
        over = False
        while not over:
            asked = time.perf_counter()
            action = await asyncio.to_thread(policy.act, observation)
            acted = time.perf_counter()
            seconds["policy"] += acted - asked
            observation, reward, terminated, truncated, info = await env.astep(action)
            for part in STEP_PARTS:
                seconds[part] += info["seconds"].get(part, 0.0)
            turns.append(
                Turn(
                    action=action,
                    observation=observation,
                    exit_code=info.get("exit_code"),
                    seconds=time.perf_counter() - acted,
                )
            )
            over = terminated or truncated
    except MiniSandboxError as error:
        if error.owner == "user":
            raise
        info = {**info, "failure_owner": error.owner, "failure": str(error)}
    finally:
        await env.aclose()
    graded = info.get("graded")
    return Trajectory(
        instance_id=task.instance_id,
        task_digest=task_digest(task),
        sample=sample,
        seed=seed,
        environment=task.environment,
        policy=name,
        repo=task.repo,
        prompt=prompt,
        turns=turns,
        diff=info.get("diff", ""),
        reward=reward,
        resolved=bool(graded and graded["resolved"]),
        graded=graded,
        failure_owner=info.get("failure_owner"),
        failure=info.get("failure", ""),
        replay=info.get("replay"),
        seconds={**seconds, "total": time.perf_counter() - started},
        node=info.get("node", ""),
        versions={"minisandbox_ray": __version__, "ray": ray.__version__, "python": platform.python_version()},
    )

"""Whether tasks are what they say: the gold fix earns 1, doing nothing earns 0."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from minisandbox_ray.errors import MiniSandboxError
from minisandbox_ray.rollout.config import EpisodeConfig
from minisandbox_ray.rollout.env import SandboxEnv
from minisandbox_ray.rollout.pool import EpisodePool
from minisandbox_ray.tasks import Task

SUBMIT = "```bash\nsubmit\n```"


@dataclass(frozen=True)
class Validation:
    """A task's rewards for its gold fix and for no change; None where the episode failed."""

    instance_id: str
    gold: float | None
    empty: float | None
    reason: str = ""
    """Why it is off, in one line."""

    @property
    def valid(self) -> bool:
        """Gold earns 1 and nothing earns 0."""
        return self.gold == 1.0 and self.empty == 0.0


def validate_tasks(
    tasks: list[Task],
    pool: EpisodePool,
    config: EpisodeConfig | None = None,
    on_row: Callable[[Validation], None] = lambda row: None,
) -> list[Validation]:
    """Run every task twice, as many at a time as the pool has slots; rows come in the order of the tasks.

    ``on_row`` is called with each row as it is found. Task failures become rows; failures of the cluster are raised.
    """
    config = (config or EpisodeConfig()).model_copy(update={"max_turns": 2})
    rows: dict[str, Validation] = {}
    with ThreadPoolExecutor(max_workers=max(1, pool.capacity)) as threads:
        pending = [threads.submit(_validate, task, pool, config) for task in tasks]
        try:
            for done in as_completed(pending):
                row = done.result()
                rows[row.instance_id] = row
                on_row(row)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return [rows[task.instance_id] for task in tasks]


def _validate(task: Task, pool: EpisodePool, config: EpisodeConfig) -> Validation:
    gold, gold_reason = _reward(task, [task.gold_action(), SUBMIT], pool, config)
    empty, empty_reason = _reward(task, [SUBMIT], pool, config)
    reason = f"gold: {gold_reason}" if gold != 1.0 else ""
    if empty != 0.0:
        reason = f"empty: {empty_reason or 'the tests pass without a fix'}"
    return Validation(task.instance_id, gold, empty, reason)


def _reward(task: Task, actions: list[str], pool: EpisodePool, config: EpisodeConfig) -> tuple[float | None, str]:
    with SandboxEnv(pool, config) as env:
        try:
            env.reset(task)
        except MiniSandboxError as error:
            if error.owner != "task":
                raise
            return None, str(error)
        for action in actions:
            _, reward, _, _, info = env.step(action)
            if info.get("failure_owner"):
                return None, info["failure"]
            if info.get("exit_code"):
                return None, f"the gold command ended with status {info['exit_code']}"
    return reward, info["graded"]["reason"]

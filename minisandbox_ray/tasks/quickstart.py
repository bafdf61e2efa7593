"""The quickstart's tasks and its action space: tasks that some enumerated command solves, and all their commands."""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.environments import NodeStore, cache_root
from minisandbox_ray.environments.cache import write_atomically
from minisandbox_ray.errors import TaskError
from minisandbox_ray.sandbox import Limits
from minisandbox_ray.tasks.commands import enumerate_commands
from minisandbox_ray.tasks.factory import FactoryConfig, Progress, make_tasks
from minisandbox_ray.tasks.grading import GradingConfig, grade
from minisandbox_ray.tasks.task import Task, dump_tasks

FORMAT = 1
"""Changes when the same tasks would give other commands."""

_LIMITS = Limits(memory_mib=1024)


class QuickstartConfig(BaseModel):
    """How tasks and commands are chosen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    factory: FactoryConfig
    """Where the tasks come from."""
    tasks: int = Field(16, ge=1)
    """Tasks taken, at most; packages take turns."""
    commands_per_task: int = Field(7, ge=1)
    """Commands enumerated for each task."""


class Quickstart(BaseModel):
    """What the quickstart trains on."""

    tasks: list[Task]
    """Tasks that at least one of the commands solves."""
    commands: list[str]
    """All tasks' commands, each once, sorted: the action space."""
    solutions: dict[str, str]
    """By instance_id, the first of the task's commands that the grader found to solve it. Not for the policy."""


def make_quickstart(
    config: QuickstartConfig, archives: Path, store: NodeStore, progress: Progress | None = None
) -> Quickstart:
    """Tasks and commands, made once and then read from the cache (`cache_root()/tasks`).

    Raises what `make_tasks` raises; TaskError if no task is solved by any command.
    """
    tasks = make_tasks(config.factory, archives, store, progress)
    parts = [FORMAT, config.model_dump(exclude={"factory"}), config.factory.suite_timeout, dump_tasks(tasks)]
    cached = cache_root() / "tasks" / f"quickstart-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.json"
    if cached.exists():
        return Quickstart.model_validate_json(cached.read_bytes())
    chosen: list[Task] = []
    commands: set[str] = set()
    solutions: dict[str, str] = {}
    with ThreadPoolExecutor(config.factory.workers) as pool:
        waiting = list(_take_turns(tasks))
        while waiting and len(chosen) < config.tasks:
            # Side by side as many as there are workers, and no more than may be needed.
            batch, waiting = waiting[: config.factory.workers], waiting[config.factory.workers :]
            tried = pool.map(lambda task: try_commands(task, config, archives, store), batch)
            for task, (enumerated, solution) in zip(batch, tried, strict=True):
                if solution and len(chosen) < config.tasks:
                    chosen.append(task)
                    commands.update(enumerated)
                    solutions[task.instance_id] = solution
                if progress:
                    progress(f"{task.instance_id}: {len(enumerated)} commands", len(chosen), config.tasks)
    if not chosen:
        raise TaskError(f"none of {len(tasks)} tasks is solved by any of its {config.commands_per_task} commands")
    quickstart = Quickstart(tasks=chosen, commands=sorted(commands), solutions=solutions)
    write_atomically(cached, quickstart.model_dump_json().encode())
    return quickstart


def try_commands(task: Task, config: QuickstartConfig, archives: Path, store: NodeStore) -> tuple[list[str], str]:
    """The task's commands, and the first of them that solves it according to the grader (empty: none)."""
    grading = GradingConfig(timeout=config.factory.suite_timeout, limits=_LIMITS)
    with store.use(task.environment, archives) as env:
        layer = store.derive(env, task.patch)
        hidden = task.hide_gold()
        candidates = enumerate_commands(hidden, env, layer, config.commands_per_task, limits=_LIMITS)
        solved_by = (each.command for each in candidates if grade(hidden, each.diff, env, layer, grading).resolved)
        return [each.command for each in candidates], next(solved_by, "")


def _take_turns(tasks: list[Task]) -> Iterator[Task]:
    """The first task of each repository, then the second of each, and so on."""
    by_repo: dict[str, list[Task]] = {}
    for task in tasks:
        by_repo.setdefault(task.repo, []).append(task)
    for row in zip_longest(*by_repo.values()):
        yield from (task for task in row if task is not None)

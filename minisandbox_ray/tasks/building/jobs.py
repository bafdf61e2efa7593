"""Which environments a list of tasks needs: one for each digest, however many tasks share it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from minisandbox_ray.environments import NodeStore, Source
from minisandbox_ray.environments.archive import is_complete
from minisandbox_ray.environments.build import find_digest
from minisandbox_ray.environments.repository import find_commit
from minisandbox_ray.errors import BuildError, TaskError
from minisandbox_ray.tasks.recipes import NoRecipeError, Recipe, find_recipe
from minisandbox_ray.tasks.recipes.script import script_recipe
from minisandbox_ray.tasks.task import Task

Tables = Literal["tables", "auto", "no-tables"]
"""Recipes from the public packages' tables; those, else found automatically; or found automatically always."""


@dataclass
class Job:
    """One environment to build."""

    key: str
    """Its digest; where the recipe is yet to be found, its repository and commit."""
    source: Source | None
    """What becomes /testbed; None for a machine, which has no repository."""
    recipes: dict[str, Recipe] = field(default_factory=dict)
    """By task: they share a spec, and differ in how tests are run. Empty where it is yet to be found."""
    tasks: list[Task] = field(default_factory=list)
    """Who needs it."""

    @property
    def automatic(self) -> bool:
        """Whether the recipe is yet to be found."""
        return not self.recipes

    @property
    def title(self) -> str:
        """A few words for people."""
        return self.source.describe() if self.source else next(iter(self.recipes.values())).spec.describe()

    @property
    def notes(self) -> list[str]:
        """What the recipe does otherwise than the table."""
        return next(iter(self.recipes.values())).notes if self.recipes else []

    def built(self, archives: Path) -> bool:
        """Whether there is nothing to do."""
        return not self.automatic and is_complete(archives, self.key)


@dataclass
class Plan:
    """What is to be done for a list of tasks."""

    jobs: list[Job] = field(default_factory=list)
    unplanned: dict[str, str] = field(default_factory=dict)
    """Reason, one line, by id of a task whose recipe or sources cannot be had."""


def plan_jobs(
    tasks: Iterable[Task],
    store: NodeStore,
    repo_mirror: Path | None = None,
    tables: Tables = "tables",
    on_task: Callable[[Task], None] | None = None,
) -> Plan:
    """Find each task's recipe and its environment's digest; nothing is built.

    Raises ConfigError where the package with a table is missing, and for a mirror that is no directory.
    """
    plan = Plan()
    jobs: dict[str, Job] = {}
    unreachable: dict[str, str] = {}
    for task in tasks:
        if on_task:
            on_task(task)
        try:
            if task.repo in unreachable and task.base_commit:
                raise BuildError(unreachable[task.repo])
            job, recipe = _job(task, store, repo_mirror, tables)
        except TaskError as error:
            reason = " ".join(str(error).split())
            plan.unplanned[task.instance_id] = reason
            if "cannot be had" in reason and "lacks the commit" not in reason:  # neither will its other commits
                unreachable[task.repo] = reason
            continue
        job = jobs.setdefault(job.key, job)
        job.tasks.append(task)
        if recipe is not None:
            job.recipes[task.instance_id] = recipe
    plan.jobs = list(jobs.values())
    return plan


def _job(task: Task, store: NodeStore, mirror: Path | None, tables: Tables) -> tuple[Job, Recipe | None]:
    if task.script is not None:
        recipe = script_recipe(task.script)
        return Job(find_digest(recipe.spec, store), None), recipe
    if tables != "no-tables":
        try:
            recipe = find_recipe(task, mirror)
        except NoRecipeError:
            if tables == "tables":
                raise
        else:
            return Job(find_digest(recipe.spec, store, mirror), recipe.spec.source), recipe
    if not task.base_commit:
        raise BuildError("the task names no commit of its repository")
    source = Source(kind="git", repository=task.repo, commit=task.base_commit)
    return Job(f"{task.repo}@{find_commit(source, mirror).id}", source), None

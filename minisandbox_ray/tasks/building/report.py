"""What a build of a data set came to, for people and for programs."""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from minisandbox_ray.tasks.building.jobs import Plan
from minisandbox_ray.tasks.building.run import Outcome, outcomes_by_task
from minisandbox_ray.tasks.datasets import Refusal
from minisandbox_ray.tasks.recipes import Recipe
from minisandbox_ray.tasks.task import Task

Status = Literal["built", "found", "failed"]


class TaskRow(BaseModel):
    """A row of the data set that has no environment, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instance_id: str
    field: str = ""
    """The column that is to blame, if one is."""
    reason: str
    """One line."""


class EnvironmentRow(BaseModel):
    """One environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str
    """Its name; of one that failed while its recipe was looked for, OWNER/NAME@COMMIT."""
    source: str
    """"pallets/flask at 7ee9ceb71e86"."""
    python: str = ""
    """As the recipe says."""
    tasks: list[str]
    """Ids."""
    status: Status
    attempts: int
    """Builds in this run; 0 if it was found."""
    seconds: float
    """Of the last attempt."""
    archive_bytes: int = 0
    unpacked_bytes: int = 0
    cause: str = ""
    """Class of the failure."""
    message: str = ""
    """What the error says, with the failed command's last lines."""
    log: str = ""
    """File with all that the last attempt printed."""
    notes: list[str] = []
    """What the recipe does otherwise than the table it is from."""


class BuildReport(BaseModel):
    """The JSON file of ``build --report``: one object with these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str
    """As it was named."""
    format: str
    """swe-bench, swe-smith, …"""
    tasks: int
    """Rows asked for, those that are refused included."""
    ready: int
    """Tasks whose environment is there."""
    refused: list[TaskRow]
    """Rows that are no tasks."""
    unplanned: list[TaskRow]
    """Tasks without a recipe, or whose repository cannot be had."""
    environments: list[EnvironmentRow]

    @property
    def complete(self) -> bool:
        """Whether every row has its environment."""
        return self.ready == self.tasks


def make_report(
    dataset: str, format: str, refused: Iterable[Refusal], plan: Plan, outcomes: list[Outcome]
) -> BuildReport:
    """Put together what became of every row."""
    bad = [TaskRow(instance_id=each.instance_id, field=each.field, reason=each.reason) for each in refused]
    lost = [TaskRow(instance_id=name, reason=reason) for name, reason in plan.unplanned.items()]
    ready = sum(bool(outcome.result.digest) for _, outcome in outcomes_by_task(outcomes))
    planned = sum(len(outcome.job.tasks) for outcome in outcomes)
    return BuildReport(
        dataset=dataset,
        format=format,
        tasks=planned + len(bad) + len(lost),
        ready=ready,
        refused=bad,
        unplanned=lost,
        environments=[_row(outcome) for outcome in outcomes],
    )


def built_tasks(tasks: Iterable[Task], outcomes: list[Outcome]) -> list[Task]:
    """Those of the tasks whose environment is there, with it and all that grading needs, in their order."""
    by_task = dict(outcomes_by_task(outcomes))
    ready = [task for task in tasks if task.instance_id in by_task and by_task[task.instance_id].result.digest]
    return [_complete(task, by_task[task.instance_id]) for task in ready]


def _complete(task: Task, outcome: Outcome) -> Task:
    recipe = outcome.job.recipes.get(task.instance_id)
    if recipe is not None:
        return recipe.complete(task, outcome.result.digest)
    return task.model_copy(update={"environment": outcome.result.digest, "test_command": outcome.result.test_command})


def _row(outcome: Outcome) -> EnvironmentRow:
    job, result = outcome.job, outcome.result
    recipe: Recipe | None = next(iter(job.recipes.values()), None)
    status: Status = "failed" if not result.digest else "built" if outcome.attempts else "found"
    return EnvironmentRow(
        digest=result.digest or job.key,
        source=job.title,
        python=recipe.spec.python if recipe else "",
        tasks=[task.instance_id for task in job.tasks],
        status=status,
        attempts=outcome.attempts,
        seconds=round(outcome.seconds, 1),
        archive_bytes=result.archive_bytes,
        unpacked_bytes=result.unpacked_bytes,
        cause=result.cause,
        message=result.message,
        log=str(outcome.log or ""),
        notes=job.notes,
    )

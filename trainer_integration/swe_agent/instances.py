"""Our tasks as SWE-agent's instances, and its configurations with our deployment in the place of its own.

Its configuration models name the deployments of SWE-ReX in a closed union. The models here are subclasses of them in
which that field is ours: SWE-agent takes instances of a subclass as they are, and calls `deployment.get_deployment()`.
"""

import random
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from sweagent.agent.problem_statement import EmptyProblemStatement, ProblemStatementConfig, TextProblemStatement
from sweagent.environment.repo import PreExistingRepoConfig
from sweagent.environment.swe_env import EnvironmentConfig
from sweagent.run.batch_instances import AbstractInstanceSource, BatchInstance
from sweagent.run.run_batch import RunBatchConfig
from sweagent.run.run_single import RunSingleConfig

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task, load_tasks, require_environments
from trainer_integration.environments import named_task

from .config import MiniSandboxDeploymentConfig

TESTBED = PreExistingRepoConfig(repo_name="testbed")
"""Where environments have their repository; it is there already."""


class SandboxEnvironmentConfig(EnvironmentConfig):
    """SWE-agent's `env`."""

    deployment: MiniSandboxDeploymentConfig = MiniSandboxDeploymentConfig()  # type: ignore[assignment]
    """The sandbox."""


class TaskInstances(BaseModel, AbstractInstanceSource):
    """Tasks of a file, a sandbox each."""

    model_config = ConfigDict(extra="forbid")

    path: Path
    """Tasks (JSON lines)."""
    filter: str = ".*"
    """Regular expression that the beginning of an instance id must match."""
    slice: str = ""
    """Of the tasks that are left, as in Python: stop, start:stop or start:stop:step."""
    shuffle: bool = False
    """Whether in another order, always the same one."""
    deployment: MiniSandboxDeploymentConfig = MiniSandboxDeploymentConfig()
    """Every task's sandbox."""
    type: Literal["minisandbox"] = "minisandbox"
    """Discriminator for (de)serialization/CLI. Do not change."""

    def get_instance_configs(self) -> list[BatchInstance]:  # type: ignore[override]
        """As SWE-agent's batches call it. Raises ConfigError."""
        tasks = [task for task in load_tasks(self.path) if re.match(self.filter, task.instance_id)]
        if self.shuffle:
            random.Random(42).shuffle(tasks)
        try:
            bounds = [int(part) if part else None for part in self.slice.split(":")]
            tasks = tasks[slice(*bounds)]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"instances.slice is stop, start:stop or start:stop:step, not {self.slice!r}") from error
        require_environments(tasks)
        return [self._instance(task) for task in tasks]

    @property
    def id(self) -> str:
        """Part of the default output directory's name."""
        return self.path.stem

    def _instance(self, task: Task) -> BatchInstance:
        deployment = self.deployment.model_copy(update={"tasks": self.path, "task": task.instance_id})
        return BatchInstance(
            env=SandboxEnvironmentConfig(deployment=deployment, repo=repository(task)),
            problem_statement=statement(task),
        )


class BatchConfig(RunBatchConfig):
    """``run-batch``'s."""

    instances: TaskInstances = Field(description="Tasks to run.")  # type: ignore[assignment]


class SingleConfig(RunSingleConfig):
    """``run``'s: with `env.deployment.tasks` and `task`, the problem is that task's; an environment's repository is the
    one to work on, unless `env.repo` says otherwise."""

    env: SandboxEnvironmentConfig = Field(default_factory=SandboxEnvironmentConfig, description="The sandbox.")
    problem_statement: ProblemStatementConfig = Field(
        default_factory=EmptyProblemStatement, description="The problem, where no task is named."
    )

    @model_validator(mode="after")
    def _takes_the_task(self) -> Self:
        if self.env.deployment.tasks is not None:
            task = named_task(self.env.deployment.tasks, self.env.deployment.task)
            if isinstance(self.problem_statement, EmptyProblemStatement):
                self.problem_statement = statement(task)
            self.env.repo = self.env.repo or repository(task)
        elif self.env.deployment.environment is not None:
            self.env.repo = self.env.repo or TESTBED
        return self


def statement(task: Task) -> TextProblemStatement:
    """What the agent is told."""
    return TextProblemStatement(text=task.problem_statement, id=task.instance_id)


def repository(task: Task) -> PreExistingRepoConfig:
    """Where the agent works. Raises ConfigError for a task that no patch can solve."""
    if task.script:
        raise ConfigError(
            f"task {task.instance_id} is judged by what an agent leaves there, and SWE-agent hands in a patch; "
            "`python -m minisandbox_ray rollout` plays it"
        )
    return TESTBED

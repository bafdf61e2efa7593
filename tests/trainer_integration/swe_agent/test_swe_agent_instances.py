"""Tasks as SWE-agent's instances. Its package is no package of the index: these run where it is installed by hand."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sweagent", reason="SWE-agent is not installed; docs/runs/swe_agent.sh is its recorded run")

from sweagent.run.common import BasicCLI

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task, save_tasks
from trainer_integration.swe_agent import MiniSandboxDeployment
from trainer_integration.swe_agent.instances import BatchConfig, SingleConfig, TaskInstances


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    made = [
        Task(
            instance_id=f"{name}__1",
            repo=name,
            problem_statement=f"Mend {name}.",
            FAIL_TO_PASS=["t::t"],
            environment="0" * 64,
        )
        for name in ("a", "b", "c")
    ]
    save_tasks(made, tmp_path / "tasks.jsonl")
    return tmp_path / "tasks.jsonl"


def names(source: TaskInstances) -> list[str]:
    return [instance.problem_statement.id for instance in source.get_instance_configs()]


def test_all_or_some(tasks: Path) -> None:
    assert names(TaskInstances(path=tasks)) == ["a__1", "b__1", "c__1"]
    assert names(TaskInstances(path=tasks, filter="[bc]")) == ["b__1", "c__1"]
    assert names(TaskInstances(path=tasks, slice=":2")) == ["a__1", "b__1"]
    assert names(TaskInstances(path=tasks, slice="2")) == ["a__1", "b__1"]
    assert names(TaskInstances(path=tasks, slice="::-1")) == ["c__1", "b__1", "a__1"]
    assert names(TaskInstances(path=tasks, shuffle=True)) == names(TaskInstances(path=tasks, shuffle=True))
    with pytest.raises(ConfigError, match=r"instances\.slice"):
        names(TaskInstances(path=tasks, slice="a:b"))


def test_its_command_line_makes_our_deployment(tasks: Path) -> None:
    words = [
        f"--instances.path={tasks}",
        "--instances.deployment.sandbox.limits.memory_mib=512",
        "--agent.model.name=m",
    ]
    config = BasicCLI(BatchConfig).get_config(words)
    first = config.instances.get_instance_configs()[0]
    assert first.problem_statement.text == "Mend a."
    assert (first.env.deployment.task, first.env.deployment.sandbox.limits.memory_mib) == ("a__1", 512)
    assert isinstance(first.env.deployment.get_deployment(), MiniSandboxDeployment)
    assert first.env.repo.repo_name == "testbed"


def test_one_task_s_problem_and_repository(tasks: Path) -> None:
    words = [f"--env.deployment.tasks={tasks}", "--env.deployment.task=b__1", "--agent.model.name=m"]
    config = BasicCLI(SingleConfig).get_config(words)
    assert (config.problem_statement.text, config.env.repo.repo_name) == ("Mend b.", "testbed")


def test_a_task_without_an_environment_is_refused(tasks: Path) -> None:
    row = json.loads(tasks.read_text().splitlines()[0]) | {"environment": ""}
    tasks.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match="names no environment"):
        names(TaskInstances(path=tasks))

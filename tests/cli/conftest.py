"""Two tasks, their file, and a cluster that the verbs find."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rollout.calc import build_task, cache_in

from minisandbox_ray.cluster import ClusterConfig, connect
from minisandbox_ray.environments import NodeStore
from minisandbox_ray.tasks import Task, save_tasks
from minisandbox_ray.tasks.validation import stamped


@pytest.fixture(scope="package")
def tasks(sandboxes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Task]]:
    with cache_in(tmp_path_factory.mktemp("cache")) as cache:
        task = build_task(cache, NodeStore(cache / "store"), tmp_path_factory.mktemp("source"))
        yield [stamped(task), stamped(task.model_copy(update={"instance_id": "calc__2"}))]


@pytest.fixture(scope="package")
def file(tasks: list[Task], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    save_tasks(tasks, path)
    return path


@pytest.fixture
def cluster(tasks: list[Task], tmp_path: Path) -> Iterator[None]:
    """This process's own, which the verb finds."""
    with connect(ClusterConfig(address="local"), tmp_path / "cluster"):
        yield

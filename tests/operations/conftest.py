"""A real environment and tasks on it, and a Ray cluster that ``ray start`` made."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rollout.calc import build_task, cache_in

from minisandbox_ray.environments import NodeStore
from minisandbox_ray.tasks import Task, save_tasks

from .head import Head, start_head


@pytest.fixture(scope="package")
def cache(sandboxes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with cache_in(tmp_path_factory.mktemp("cache")) as root:
        yield root


@pytest.fixture(scope="package")
def tasks(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    task = build_task(cache, NodeStore(cache / "store"), tmp_path_factory.mktemp("source"))
    return [task, task.model_copy(update={"instance_id": "calc__2"})]


@pytest.fixture(scope="package")
def file(tasks: list[Task], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    save_tasks(tasks, path)
    return path


@pytest.fixture(scope="package")
def head(cache: Path) -> Iterator[Head]:
    with start_head(Path(tempfile.gettempdir()) / "op", cache) as head:
        yield head

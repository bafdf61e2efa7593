"""Builds without a package index: environments of nothing but a venv and files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox_ray.environments import EnvSpec, NodeStore, Source
from minisandbox_ray.tasks import Task
from minisandbox_ray.tasks.building import Job
from minisandbox_ray.tasks.building.jobs import find_digest
from minisandbox_ray.tasks.recipes import Recipe


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(shared_cache))
    yield shared_cache


@pytest.fixture
def store(cache: Path) -> NodeStore:
    return NodeStore(cache / "store")


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    return tmp_path / "archives"


def task(name: str, **fields: str) -> Task:
    return Task.model_validate({"instance_id": name, "repo": "owner/name", "FAIL_TO_PASS": ["t"], **fields})


def job(store: NodeStore, folder: Path, *install: str) -> Job:
    """One whose environment is made by shell commands; its task has their first as its name."""
    folder.mkdir(exist_ok=True)
    (folder / "module.py").write_text("x = 1\n")
    source = Source(kind="path", path=folder)
    recipe = Recipe(spec=EnvSpec(source=source, install=list(install)), test_command=["/venv/bin/pytest", "-x"])
    name = install[0].split("\n")[0]
    return Job(find_digest(recipe.spec, store), source, {name: recipe}, [task(name)])

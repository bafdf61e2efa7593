"""A small repository built into a real environment, a task on it, and a pool of episodes on a local Ray cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox_ray.cluster import ClusterConfig, Connection, connect
from minisandbox_ray.environments import NodeStore
from minisandbox_ray.rollout import EpisodePool
from minisandbox_ray.tasks import Task

from .calc import build_task, cache_in


@pytest.fixture(scope="package")
def cache(sandboxes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with cache_in(tmp_path_factory.mktemp("cache")) as root:
        yield root


@pytest.fixture(scope="package")
def store(cache: Path) -> NodeStore:
    return NodeStore(cache / "store")


@pytest.fixture(scope="package")
def task(cache: Path, store: NodeStore, tmp_path_factory: pytest.TempPathFactory) -> Task:
    return build_task(cache, store, tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="package")
def local_cluster(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with connect(ClusterConfig(address="local"), tmp_path_factory.mktemp("run")) as connection:
        yield connection


@pytest.fixture(scope="package")
def pool(local_cluster: Connection, cache: Path) -> Iterator[EpisodePool]:
    with EpisodePool(ClusterConfig(workers_per_node=2, sandboxes_per_worker=2), cache / "archives") as pool:
        yield pool

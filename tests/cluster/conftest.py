"""A local Ray cluster and a pool on it, shared by this folder's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray import cloudpickle

from minisandbox_ray.cluster import ClusterConfig, Connection, Pool, connect

from . import counter

cloudpickle.register_pickle_by_value(counter)  # workers cannot import the tests


@pytest.fixture(scope="package")
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINISANDBOX_CACHE", str(tmp_path_factory.mktemp("cache")))
        with connect(ClusterConfig(address="local"), tmp_path_factory.mktemp("run")) as connection:
            yield connection


@pytest.fixture
def pool(local_cluster: Connection, tmp_path: Path) -> Iterator[Pool]:
    config = ClusterConfig(workers_per_node=2, sandboxes_per_worker=2)
    with Pool(config, counter.Counter, tmp_path / "archives") as pool:
        yield pool

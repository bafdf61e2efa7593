from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from minisandbox_ray.environments import NodeStore
from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks import FactoryConfig, PackageSpec, Task, make_tasks
from minisandbox_ray.tasks.task import dump_tasks

CONFIG = FactoryConfig(
    packages=[PackageSpec(name="unidiff", version="0.7.5", modules=["unidiff"], tests=["tests"])],
    per_package=3,
    seed=7,
)


@dataclass
class Made:
    """A first run's result, in a cache of its own."""

    tasks: list[Task]
    cache: Path


@pytest.fixture(scope="module")
def made(places: tuple[Path, NodeStore], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("MINISANDBOX_CACHE", str(cache))
        try:
            tasks = make_tasks(CONFIG, *places)
        except BuildError as error:
            pytest.skip(f"no environment without a package index: {str(error).splitlines()[0]}")
        yield Made(tasks, cache)


def test_tasks_are_real(made: Made, places: tuple[Path, NodeStore]) -> None:
    assert len(made.tasks) == CONFIG.per_package
    archives, store = places
    for task in made.tasks:
        name, _, rest = task.instance_id.partition("__")
        assert name == task.repo == "unidiff"
        assert rest.startswith("0.7.5.")
        assert 1 <= len(task.FAIL_TO_PASS) <= CONFIG.max_fail_to_pass
        assert task.PASS_TO_PASS
        assert not set(task.FAIL_TO_PASS) & set(task.PASS_TO_PASS)
        with store.use(task.environment, archives) as env:
            assert (store.derive(env, task.patch) / "unidiff").is_dir()


def test_statements_name_the_tests_and_not_the_bug(made: Made) -> None:
    for task in made.tasks:
        assert task.FAIL_TO_PASS[0] in task.problem_statement
        assert len(task.problem_statement) < 4000
        for line in task.patch.splitlines():
            if line.startswith("+") and not line.startswith("+++") and len(line) > 20:
                assert line[1:].strip() not in task.problem_statement


def test_the_same_seed_gives_the_same_bytes(
    made: Made, places: tuple[Path, NodeStore], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path))
    again = make_tasks(CONFIG.model_copy(update={"workers": 1}), *places)
    assert dump_tasks(again) == dump_tasks(made.tasks)


def test_a_second_call_reads_the_cache(made: Made, places: tuple[Path, NodeStore]) -> None:
    steps: list[tuple[str, int, int]] = []
    assert make_tasks(CONFIG, *places, lambda *step: steps.append(step)) == made.tasks
    assert steps[-1] == ("unidiff: 3 tasks, made before", 3, 3)
    assert len(list((made.cache / "tasks").iterdir())) == 1

from pathlib import Path

import pytest

from minisandbox_ray.environments import NodeStore
from minisandbox_ray.tasks import make_tasks
from minisandbox_ray.tasks.task import dump_tasks
from minisandbox_ray.tasks.validation import is_validated

from .conftest import FACTORY, Made


def test_tasks_are_real(made: Made, places: tuple[Path, NodeStore]) -> None:
    assert len(made.tasks) == FACTORY.per_package
    archives, store = places
    for task in made.tasks:
        name, _, rest = task.instance_id.partition("__")
        assert name == task.repo == "unidiff"
        assert rest.startswith("0.7.5.")
        assert 1 <= len(task.FAIL_TO_PASS) <= FACTORY.max_fail_to_pass
        assert task.PASS_TO_PASS and is_validated(task)
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
    again = make_tasks(FACTORY.model_copy(update={"workers": 1}), *places)
    assert dump_tasks(again) == dump_tasks(made.tasks)


def test_a_second_call_reads_the_cache(
    made: Made, places: tuple[Path, NodeStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(made.cache))
    steps: list[tuple[str, int, int]] = []
    assert make_tasks(FACTORY, *places, lambda *step: steps.append(step)) == made.tasks
    assert steps[-1] == ("unidiff: 3 tasks, made before", 3, 3)
    assert list((made.cache / "tasks").glob("*.partial")) == []

from pathlib import Path

import pytest

from minisandbox_ray.environments import NodeStore
from minisandbox_ray.tasks import Quickstart, QuickstartConfig, enumerate_commands, make_quickstart

from .conftest import FACTORY, Made

CONFIG = QuickstartConfig(factory=FACTORY, tasks=2, commands_per_task=6)


@pytest.fixture(autouse=True)
def cache(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the factory's tasks are."""
    monkeypatch.setenv("MINISANDBOX_CACHE", str(made.cache))


@pytest.fixture
def quickstart(made: Made, places: tuple[Path, NodeStore]) -> Quickstart:
    """Two of the made tasks, and their commands."""
    return make_quickstart(CONFIG, *places)


def test_every_task_is_solved_by_a_command_of_its_own(quickstart: Quickstart, made: Made) -> None:
    assert 1 <= len(quickstart.tasks) <= CONFIG.tasks
    assert {task.instance_id for task in quickstart.tasks} == set(quickstart.solutions)
    assert all(task in made.tasks for task in quickstart.tasks)
    assert set(quickstart.solutions.values()) <= set(quickstart.commands)
    assert quickstart.commands == sorted(set(quickstart.commands))
    assert len(quickstart.commands) > 2 * len(quickstart.tasks)


def test_the_action_space_does_not_depend_on_the_gold(quickstart: Quickstart, places: tuple[Path, NodeStore]) -> None:
    archives, store = places
    commands = set()
    for task in quickstart.tasks:
        with store.use(task.environment, archives) as env:
            layer = store.derive(env, task.patch)
            found = enumerate_commands(task.hide_gold(), env, layer, CONFIG.commands_per_task)
            commands.update(candidate.command for candidate in found)
    assert sorted(commands) == quickstart.commands


def test_a_second_call_reads_the_cache(quickstart: Quickstart, places: tuple[Path, NodeStore]) -> None:
    steps: list[str] = []
    assert make_quickstart(CONFIG, *places, lambda *step: steps.append(step[0])) == quickstart
    assert steps == ["unidiff: environment", "unidiff: 3 tasks, made before"]

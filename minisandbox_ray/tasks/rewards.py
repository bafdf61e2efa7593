"""What a grade is worth."""

import importlib
import math
from collections.abc import Callable, Mapping

from minisandbox_ray.errors import TaskError
from minisandbox_ray.tasks.task import Task
from minisandbox_ray.tasks.testrun import PASSING, Status

RewardFunction = Callable[[Task, Mapping[str, Status]], float]
"""Called with the task and the status of every listed test of an honest run; a finite number. Tasks that are graded by
expected statuses (R2E-Gym) earn 1 or 0, whatever the function."""


def resolved(task: Task, tests: Mapping[str, Status]) -> float:
    """1 if all FAIL_TO_PASS and PASS_TO_PASS tests pass, else 0 (SWE-bench's measure)."""
    return float(all(tests[test] in PASSING for test in task.tests))


def f2p_fraction(task: Task, tests: Mapping[str, Status]) -> float:
    """The share of the FAIL_TO_PASS tests that pass, if all PASS_TO_PASS tests still do; else 0."""
    if any(tests[test] not in PASSING for test in task.PASS_TO_PASS):
        return 0.0
    return _share(task.FAIL_TO_PASS, tests)


def fractions(task: Task, tests: Mapping[str, Status]) -> float:
    """The share of the FAIL_TO_PASS tests that pass times the share of the PASS_TO_PASS tests that still do."""
    return _share(task.FAIL_TO_PASS, tests) * _share(task.PASS_TO_PASS, tests)


REWARDS: dict[str, RewardFunction] = {"resolved": resolved, "f2p_fraction": f2p_fraction, "fractions": fractions}
"""By name."""


def load_reward(name: str) -> RewardFunction:
    """A reward function by name, or by import path as in `package.module:function`. Raises ValueError."""
    if name in REWARDS:
        return REWARDS[name]
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"no reward function {name!r}: {', '.join(REWARDS)}, or module:function")
    try:
        found = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise ValueError(f"the reward function {name!r} cannot be imported: {error}")
    except AttributeError:
        raise ValueError(f"the module {module} has no {function!r}")
    if not callable(found):
        raise ValueError(f"{name!r} is no function")
    return found  # type: ignore[no-any-return]


def reward_of(name: str, task: Task, tests: Mapping[str, Status]) -> float:
    """What the function called so gives. Raises TaskError if it fails, or gives no finite number."""
    function = load_reward(name)
    try:
        value = float(function(task, tests))
    except Exception as error:
        raise TaskError(f"task {task.instance_id}: the reward function {name} failed: {type(error).__name__}: {error}")
    if not math.isfinite(value):
        raise TaskError(f"task {task.instance_id}: the reward function {name} gave {value}, no finite number")
    return value


def _share(wanted: list[str], tests: Mapping[str, Status]) -> float:
    return sum(tests[test] in PASSING for test in wanted) / len(wanted) if wanted else 1.0

import pytest
from pydantic import ValidationError

from minisandbox_ray.errors import TaskError
from minisandbox_ray.tasks import GradingConfig, Task
from minisandbox_ray.tasks.rewards import load_reward, reward_of
from minisandbox_ray.tasks.testrun import Status

TASK = Task(instance_id="a", repo="a", FAIL_TO_PASS=["f1", "f2"], PASS_TO_PASS=["p1", "p2"])


def count(task: Task, tests: dict[str, Status]) -> int:
    """A user's own."""
    return list(tests.values()).count("passed") + len(task.PASS_TO_PASS)


def endless(task: Task, tests: dict[str, Status]) -> float:
    return float("inf")


def broken(task: Task) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("failing", "resolved", "f2p_fraction", "fractions"),
    [
        ([], 1, 1, 1),
        (["f1"], 0, 0.5, 0.5),
        (["f1", "f2"], 0, 0, 0),
        (["p1"], 0, 0, 0.5),
        (["f1", "p1"], 0, 0, 0.25),
    ],
)
def test_values(failing: list[str], resolved: float, f2p_fraction: float, fractions: float) -> None:
    tests: dict[str, Status] = {test: "failed" if test in failing else "passed" for test in TASK.tests}
    names = ["resolved", "f2p_fraction", "fractions"]
    assert [reward_of(name, TASK, tests) for name in names] == [resolved, f2p_fraction, fractions]


def test_a_user_s_own() -> None:
    name = f"{__name__}:count"
    assert GradingConfig(reward=name).reward == name
    assert reward_of(name, TASK, {"f1": "passed", "f2": "error"}) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best", "no reward function 'best': resolved, f2p_fraction, fractions, or module:function"),
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("math:no_such_function", "the module math has no 'no_such_function'"),
        ("math:pi", "'math:pi' is no function"),
    ],
)
def test_a_bad_name_is_bad_configuration(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_reward(name)
    with pytest.raises(ValidationError, match="reward"):
        GradingConfig(reward=name)


@pytest.mark.parametrize(("name", "message"), [("endless", "gave inf"), ("broken", "failed: TypeError")])
def test_a_function_that_fails_is_no_agent_s_fault(name: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        reward_of(f"{__name__}:{name}", TASK, {})

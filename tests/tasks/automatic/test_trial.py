"""Runs that are cut short by a limit of the sandbox."""

from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.trial import Trial, _without_suspects
from minisandbox_ray.tasks.testrun import Case, TestRun


def cases(*files: str) -> dict[str, Case]:
    return {f"{file}::test_1": Case("passed") for file in files}


def test_the_file_in_which_a_limit_was_hit_and_the_next_one_are_left_out() -> None:
    files = [f"tests/test_{name}.py" for name in "abcdef"]
    trial = Trial(Plan(python="3.12.1", targets=["tests"]))
    cut = TestRun(limit="memory", unfinished=cases(*files[:3]))
    less = _without_suspects(trial, files, TestRun(cases=cases(*reversed(files))), cut)
    assert less is not None and set(less.cases) == set(cases(files[0], files[1], files[4], files[5]))
    assert trial.plan.options == [f"--ignore={files[2]}", f"--ignore={files[3]}"]
    assert trial.plan.learned == ["4 of 6 test files: all hit the memory limit"]


def test_what_leaves_less_than_half_is_no_suite() -> None:
    trial = Trial(Plan(python="3.12.1", targets=["tests"]))
    first = TestRun(cases=cases("tests/test_a.py", "tests/test_b.py", "tests/test_c.py"))
    files = ["tests/test_a.py", "tests/test_b.py", "tests/test_c.py"]
    cut = TestRun(limit="pids", unfinished=cases("tests/test_a.py"))
    assert _without_suspects(trial, files, first, cut) is None and not trial.plan.learned

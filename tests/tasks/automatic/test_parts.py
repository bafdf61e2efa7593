"""What is left of a suite of which too much fails."""

from minisandbox_ray.tasks.automatic.parts import working_part
from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.trial import Trial

PLAN = Plan(python="3.12.1", targets=["tests", "test_root.py"])


def ids(file: str, count: int) -> list[str]:
    return [f"{file}::test_{number}" for number in range(count)]


def test_files_of_which_most_fails_are_left_out() -> None:
    trial = Trial(PLAN, "tests", files=3, passing=ids("tests/test_a.py", 9), failing=ids("test_root.py", 8))
    trial.passing += [f"tests/test_b.py::{name}" for name in "abcde"]
    trial.failing += ["tests/test_b.py::f"]
    part = working_part(trial)
    assert part is not None and part.learned == ["2 of 3 test files: in the others most fails"]
    assert (part.targets, part.options) == (["tests"], ["--ignore=test_root.py"])


def test_half_of_the_files_and_of_the_tests_have_to_be_left() -> None:
    trial = Trial(PLAN, "tests", files=2, passing=ids("tests/test_a.py", 9), failing=ids("tests/test_b.py", 10))
    assert working_part(trial) is None, "too few tests"
    trial = Trial(PLAN, "collect", files=4, uncollected=["tests/test_a.py", "tests/test_b.py", "tests/test_c.py"])
    assert working_part(trial) is None, "too few files"
    trial = Trial(PLAN, "collect", files=4, uncollected=["tests/test_a.py", "tests/test_b.py"])
    assert working_part(trial) is not None
    assert working_part(Trial(PLAN, "build", log="error")) is None
    assert working_part(Trial(PLAN, "tests", files=1, failing=ids("tests/test_a.py", 3))) is None

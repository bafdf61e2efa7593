"""Which files of a slow suite are kept."""

from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.slow import files_in_time, files_listed
from minisandbox_ray.tasks.testrun import Case, TestRun


def test_the_files_are_read_in_all_ways_that_pytest_lists_them() -> None:
    for log in ("t/a.py: 3\nt/b.py: 1\n", "t/a.py::one\nt/a.py::two[1: 2]\nt/b.py::C::one\n"):
        assert files_listed(log) == ["t/a.py", "t/b.py"]
    assert files_listed("<Dir t>\n  <Module a.py>\n    <Function one>\n") == ["a.py"]


def test_files_that_ended_are_kept_and_those_it_did_not_come_to_are_run_alone() -> None:
    ended = {"a.py::1": Case("passed", seconds=5), "b.py::1": Case("passed", seconds=1)}
    asked = []

    def run(file: str, seconds: float) -> TestRun:
        asked.append((file, seconds))
        cases = {f"{file}::1": Case("passed", seconds=3)} if file in "b.py c.py" else {}
        return TestRun(cases=cases, timed_out=not cases, seconds=3 if cases else seconds)

    cases = files_in_time(["a.py", "b.py", "c.py", "d.py", "e.py"], ended, run, 20)
    assert list(cases) == ["b.py::1", "c.py::1", "a.py::1"], "d.py does not end"
    assert asked == [("b.py", 20), ("c.py", 17), ("d.py", 14)], "it was in the middle of b.py; then the time is used up"


def test_more_files_than_the_next_run_has_time_for_are_not_kept() -> None:
    took = {"a": 9, "b": 2, "c": 6, "d": 0}
    ended = {f"{name}.py::1": Case("passed", seconds=seconds) for name, seconds in took.items()}
    kept = files_in_time([f"{name}.py" for name in took], ended, lambda *_: TestRun(), 20)
    assert list(kept) == ["b.py::1", "c.py::1"]


def test_the_shorter_list_tells_which_files_run() -> None:
    plan = Plan(python="3.12.1", targets=["tests", "e.py"])
    files = ["tests/a.py", "tests/b.py", "tests/c.py", "e.py"]
    assert plan.of_files("", ["tests/a.py"], files).targets == ["tests/a.py"]
    few = plan.of_files("", ["tests/a.py", "tests/b.py", "tests/c.py"], files)
    assert (few.targets, few.options) == (["tests"], ["--ignore=e.py"])

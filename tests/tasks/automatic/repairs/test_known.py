"""What all repairs together propose for one log."""

from .conftest import next_plan


def test_what_one_log_shows_to_be_missing_is_added_at_once() -> None:
    log = "E   ModuleNotFoundError: No module named 'yaml'\nE       fixture 'mocker' not found"
    name, plan = next_plan(f"{log}\nFileNotFoundError: No such file or directory: 'jq'", "tests")
    assert (name, plan.requirements[-2:]) == ("missing_program", ["PyYAML", "pytest-mock"])
    assert plan.system_packages == ["jq"] and plan.learned == ["jq", "PyYAML", "pytest-mock"]


def test_nothing_is_proposed_twice() -> None:
    log = "E       fixture 'mocker' not found"
    _, plan = next_plan(log, "collect")
    assert next_plan(log, "collect", plan)[0] == ""

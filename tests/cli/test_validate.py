"""The verb validate, as far as it needs no cluster: what is known already."""

import json
import os
from pathlib import Path

import pytest

from minisandbox_ray.cli.main import main
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task, load_tasks, save_tasks
from minisandbox_ray.tasks.validation import (
    Validation,
    is_validated,
    load_validation,
    require_validated,
    save_validation,
    speaks_of_network,
    stamped,
)

TASK = Task(
    instance_id="calc__1",
    repo="calc",
    patch="diff --git a/calc.py b/calc.py\n",
    environment="a" * 64,
    FAIL_TO_PASS=["tests/test_calc.py::test_add"],
)
FOUND = Validation(instance_id="calc__1", gold=[True] * 3, empty=[False] * 3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_found_before_is_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks, valid = tmp_path / "tasks.jsonl", tmp_path / "valid.jsonl"
    save_tasks([TASK], tasks)
    save_validation(TASK, FOUND)
    assert main(["validate", str(tasks), "--only-valid", str(valid)]) == 0
    assert "1 of 1 tasks are valid, 1 found so before" in capsys.readouterr().out
    assert main(["validate", str(tasks), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["instance_id"], row["valid"], row["gold"], row["flaky"]) == ("calc__1", True, [True] * 3, [])
    (written,) = load_tasks(valid)
    assert written == stamped(TASK)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1, not 0"),
        (["--timeout", "-1"], "--timeout must be above 0"),
        (["--only-valid", "."], "--only-valid . is a directory"),
        (["--only-valid", "/dev/null"], "--only-valid /dev/null is a device"),
        (["--only-valid", "/proc/x"], "cannot write /proc/x: "),
        (["--only-valid", "/proc/version/x"], "cannot write /proc/version/x: Not a directory"),
    ],
)
def test_bad_input(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path / "tasks.jsonl"), *arguments]) == 2
    said = capsys.readouterr().err  # at once: the tasks, which there are none, are not even read
    assert message in said and said.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_takes_no_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    assert main(["validate", "tasks.jsonl", "--only-valid", str(tmp_path / "closed" / "deep" / "valid.jsonl")]) == 2
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "valid"),
    [
        ({}, True),
        ({"gold": [True, False, True]}, False),
        ({"gold": [True, None, True]}, False),
        ({"empty": [False, True, False]}, False),
        ({"flaky": ["tests/test_calc.py::test_add"]}, False),
        ({"missing": ["tests/test_calc.py::test_add"]}, False),
        ({"gold": [], "empty": []}, False),
    ],
)
def test_what_is_valid(fields: dict[str, list], valid: bool) -> None:
    found = FOUND.model_copy(update=fields)
    assert found.valid is valid
    save_validation(TASK, found)
    assert is_validated(TASK) is valid


def test_a_mark_holds_for_the_very_task() -> None:
    assert load_validation(TASK) is None and not is_validated(TASK)
    marked = stamped(TASK)
    assert is_validated(marked)
    assert is_validated(marked.model_copy(update={"problem_statement": "says more"}))
    for change in ({"PASS_TO_PASS": ["x.py::y"]}, {"test_patch": "diff"}, {"environment": "b" * 64}):
        assert not is_validated(marked.model_copy(update=change))
    require_validated([marked], "go on")
    with pytest.raises(ConfigError, match="task calc__1 of 2 never proved valid: validate it"):
        require_validated([marked, TASK], "validate it")


def test_what_a_missing_network_looks_like() -> None:
    log = "socket.gaierror: [Errno -3] Temporary failure in name resolution\n"
    assert speaks_of_network(log) == "Temporary failure in name resolution"
    assert speaks_of_network("assert 1 == 2") == ""

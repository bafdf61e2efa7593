"""Tasks of public data sets: tests that only the grader has, ids of their parsers, expected statuses, printed logs."""

from pathlib import Path

import pytest

from minisandbox_ray.errors import TaskError
from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.tasks import GradingConfig, Task, gold_diff, grade, grade_key
from minisandbox_ray.tasks.commandline import is_pytest
from minisandbox_ray.tasks.scripted import ScriptedTask
from minisandbox_ray.tasks.source import unified_patch

from .conftest import BROKEN, CALC, TEST_CALC, Bench

NEW = "tests/test_new.py"
TEST_NEW = """\
import pytest
from calc import clamp


@pytest.mark.parametrize("value", [4, 11], ids=["a few", "a lot"])
def test_clamp(value):
    assert 0 <= clamp(value, 0, 10) <= 10


def test_low():
    assert clamp(-3, 0, 10) == 0


def test_off():
    assert clamp(12, 0, 10) == 12
"""
GOLD = unified_patch("calc.py", BROKEN, CALC)


def new_file(path: str, text: str) -> str:
    return unified_patch(path, "", text).replace(f"--- a/{path}", "new file mode 100644\n--- /dev/null")


def hidden(bench: Bench, **fields: object) -> Task:
    """SWE-bench's shape: the tree has the bug, and the test patch brings a file and changes another."""
    return bench.task.model_copy(
        update={
            "instance_id": "calc__2",
            "gold_patch": GOLD,
            "test_patch": new_file(NEW, TEST_NEW)
            + unified_patch(
                "tests/test_calc.py", TEST_CALC, TEST_CALC + "\n\ndef test_more():\n    assert total([7]) == 7\n"
            ),
            "FAIL_TO_PASS": [f"{NEW}::test_clamp[a lot]"],
            "PASS_TO_PASS": [f"{NEW}::test_clamp[a few]", f"{NEW}::test_low", "tests/test_calc.py::test_more"],
            **fields,
        }
    )


def test_the_grader_brings_the_tests(bench: Bench) -> None:
    task = hidden(bench)
    diff = gold_diff(task, bench.env, bench.layer)
    assert diff == GOLD or "calc.py" in diff
    good = grade(task, diff, bench.env, bench.layer)
    assert (good.resolved, good.reason, good.witnessed) == (True, "", True)
    assert "control" in good.durations
    empty = grade(task, "", bench.env, bench.layer)
    assert (empty.resolved, empty.reason) == (False, "1 of 1 FAIL_TO_PASS tests still fail")
    with Sandbox(bench.env.sandbox_spec(layer=bench.layer)) as sandbox:
        assert "test_new" not in sandbox.execute(["ls", "tests"]).stdout.decode()


def test_what_the_agent_puts_in_their_place_is_dropped(bench: Bench) -> None:
    task = hidden(bench)
    own = new_file(NEW, "def test_clamp():\n    pass\n") + unified_patch("tests/test_calc.py", TEST_CALC, "")
    result = grade(task, own, bench.env, bench.layer)
    assert (result.resolved, result.outcome, result.dropped) == (False, "nothing_left", ["tests/test_calc.py", NEW])
    assert grade(task, GOLD + own, bench.env, bench.layer).resolved


def test_tests_that_cannot_be_brought_are_the_task_s_failure(bench: Bench) -> None:
    task = hidden(bench, test_patch=unified_patch("tests/test_none.py", "a\n", "b\n"))
    with pytest.raises(TaskError, match="test_patch does not apply"):
        grade(task, GOLD, bench.env, bench.layer)


def test_a_script_of_its_own_is_refused(bench: Bench) -> None:
    script = ScriptedTask(folder="/nowhere", base="debian:12")
    task = hidden(bench, graded_by="script", script=script, FAIL_TO_PASS=[])
    with pytest.raises(TaskError, match="not supported yet"):
        grade(task, GOLD, bench.env, bench.layer)


def test_ids_that_tests_share(bench: Bench) -> None:
    """SWE-bench cuts ids at the first space: one id, two tests, of which one fails without the fix."""
    pytest.importorskip("swebench", reason="the parsers are those of the package swebench")
    task = hidden(
        bench,
        FAIL_TO_PASS=[f"{NEW}::test_clamp[a"],
        PASS_TO_PASS=[f"{NEW}::test_low"],
        log_parser="swebench:pallets/flask",
        test_targets=[NEW],
    )
    good = grade(task, GOLD, bench.env, bench.layer)
    assert (good.resolved, good.tests) == (True, {f"{NEW}::test_clamp[a": "passed", f"{NEW}::test_low": "passed"})
    assert "control" in good.durations
    assert grade(task, "", bench.env, bench.layer).tests[f"{NEW}::test_clamp[a"] == "failed"


@pytest.mark.parametrize(
    ("listed", "resolved"), [("test_inner.py::test_hello", True), ("tests/test_calc.py::test_imaginary", False)]
)
def test_ids_of_a_run_inside_a_test(bench: Bench, listed: str, resolved: bool) -> None:
    """SWE-bench took what pytest printed inside a test for tests; of a file that is there nobody believes it."""
    pytest.importorskip("swebench", reason="the parsers are those of the package swebench")
    inner = f"\n\ndef test_inside():\n    print('PASSED {listed}')\n"
    task = hidden(
        bench,
        test_patch=new_file(NEW, TEST_NEW + inner),
        FAIL_TO_PASS=[f"{NEW}::test_clamp[a"],
        PASS_TO_PASS=[f"{NEW}::test_low", listed],
        log_parser="swebench:pytest-dev/pytest",
        test_targets=[NEW],
    )
    graded = grade(task, GOLD, bench.env, bench.layer)
    assert (graded.resolved, graded.tests[listed]) == (resolved, "passed" if resolved else "missing")


def test_expected_statuses(bench: Bench) -> None:
    """R2E-Gym's shape: every test has a status that it must have, failures included."""
    expected = {
        "test_clamp[a few]": "PASSED",
        "test_clamp[a lot]": "PASSED",
        "test_low": "PASSED",
        "test_off": "FAILED",
    }
    task = hidden(
        bench,
        test_patch="",
        hidden_tests={"r2e_tests/test_1.py": TEST_NEW},
        graded_by="statuses",
        expected_statuses=expected,
        FAIL_TO_PASS=[],
        PASS_TO_PASS=[],
    )
    good = grade(task, GOLD, bench.env, bench.layer)
    assert (good.resolved, good.reward, good.tests["test_off"]) == (True, 1.0, "failed")
    assert "control" in good.durations
    empty = grade(task, "", bench.env, bench.layer)
    assert (empty.resolved, empty.reason) == (
        False,
        "2 tests have another status than expected, test_clamp[a lot] first",
    )
    fewer = task.model_copy(update={"expected_statuses": {"test_low": "PASSED"}})
    assert grade(fewer, GOLD, bench.env, bench.layer).reward == 0.0
    key = grade_key(task, GOLD, "digest", GradingConfig())
    assert grade_key(fewer, GOLD, "digest", GradingConfig()) != key


RUNNER = """\
import os, sys, calc
good = calc.clamp(11, 0, 10) == 10
print("noise " * 3)
print("PASSED" if good else "FAILED", "tests/odd.py::test_clamp")
print("PASSED tests/odd.py::test_other")
sys.exit(0 if good else 1)
"""


@pytest.mark.parametrize(
    ("addition", "resolved"),
    [
        ("", True),
        ("import os; print('PASSED tests/odd.py::test_clamp'); os._exit(0)", False),  # the other one is not told
        ("print('FAILED tests/odd.py::test_other')", False),
        ("import atexit, os; atexit.register(os._exit, 3)", False),
        ("import os; os.kill(os.getpid(), 9)", False),
        ("print('x' * 20_000_000)", False),
    ],
)
def test_a_runner_of_its_own(bench: Bench, addition: str, resolved: bool) -> None:
    pytest.importorskip("swebench", reason="the parsers are those of the package swebench")
    task = hidden(
        bench,
        test_patch=new_file("tests/run.py", RUNNER),
        FAIL_TO_PASS=["tests/odd.py::test_clamp"],
        PASS_TO_PASS=["tests/odd.py::test_other"],
        log_parser="swebench:pallets/flask",
        test_command=["python", "tests/run.py"],
        test_targets=["odd"],
    )
    diff = unified_patch("calc.py", BROKEN, CALC + addition + "\n")
    result = grade(task, diff, bench.env, bench.layer)
    assert (result.resolved, result.witnessed, result.tampered) == (resolved, False, []), result
    if not addition:
        empty = grade(task, "", bench.env, bench.layer)
        assert empty.tests == {"tests/odd.py::test_clamp": "failed", "tests/odd.py::test_other": "passed"}


def test_a_control_run_without_an_end_is_no_tampering(bench: Bench) -> None:
    slow = (
        "import atexit, sys, time\n"
        "atexit.register(lambda: str(getattr(sys, 'last_value', '')) == 'assert 0' and time.sleep(1000))\n"
    )
    diff = unified_patch("calc.py", BROKEN, CALC.replace("def clamp", slow + "\n\ndef clamp"))
    result = grade(bench.task, diff, bench.env, bench.layer, GradingConfig(timeout=8))
    assert (result.resolved, result.reward, result.owner, result.tampered) == (False, 0.0, "agent", [])
    assert result.reason == "the tests took more than 8 s in the control run"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("/venv/bin/pytest -x", True),
        ("python -m pytest", True),
        ("env A=1 py.test", True),
        ("bin/test -C --verbose", False),
        ("./tests/runtests.py --verbosity 2", False),
        ("bash -c pytest", False),
    ],
)
def test_which_commands_are_pytest(command: str, answer: bool) -> None:
    assert is_pytest(command.split()) is answer


def test_the_sandbox_of_the_agent_lacks_the_layer_of_tests(bench: Bench, tmp_path: Path) -> None:
    assert not (bench.layer / NEW).exists() and not (bench.env.testbed / NEW).exists()

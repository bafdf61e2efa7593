from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.tasks import GradingConfig, gold_diff, grade, grade_key
from minisandbox_ray.tasks.source import unified_patch

from .conftest import BROKEN, CALC, TEST_CALC, Bench

TESTS = "tests/test_calc.py"
GOLD = unified_patch("calc.py", BROKEN, CALC)
FORCE_GREEN = """\
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""


def broken_with(line: str) -> str:
    """A diff that puts a statement at the top of the module."""
    return unified_patch("calc.py", BROKEN, BROKEN.replace('ä."""\n', f'ä."""\n{line}\n'))


def test_gold_is_resolved_and_nothing_is_not(bench: Bench) -> None:
    gold = gold_diff(bench.task, bench.env, bench.layer)
    good = grade(bench.task, gold, bench.env, bench.layer)
    assert (good.resolved, good.reward, good.owner, good.reason) == (True, 1.0, None, "")
    assert set(good.tests) == set(bench.task.tests)
    bad = grade(bench.task, "", bench.env, bench.layer)
    assert (bad.resolved, bad.reward, bad.owner) == (False, 0.0, "agent")
    assert bad.reason == "2 of 2 FAIL_TO_PASS tests still fail"
    assert "test_inherited" in bad.log


def test_a_fix_that_breaks_another_test_is_not_resolved(bench: Bench) -> None:
    wrong = unified_patch("calc.py", BROKEN, CALC.replace("result += value", "result -= value"))
    result = grade(bench.task, wrong, bench.env, bench.layer)
    assert result.reward == 0
    assert result.reason == "1 of 5 PASS_TO_PASS tests broke"
    assert result.tests[f"{TESTS}::test_total"] == "failed"


@pytest.mark.parametrize(
    "diff",
    [
        GOLD.replace("if value < high", "if value << high"),
        "not a patch at all\n",
        "--- a/calc.py\n+++ b/calc.py\n",
        GOLD[: len(GOLD) // 2],
    ],
)
def test_a_diff_that_does_not_apply_is_the_agent_s_failure(bench: Bench, diff: str) -> None:
    result = grade(bench.task, diff, bench.env, bench.layer)
    assert (result.reward, result.owner) == (0, "agent")
    assert result.reason.startswith("the diff does not apply: ")
    assert set(result.tests.values()) == {"missing"}


@pytest.mark.parametrize(
    "extra",
    [
        unified_patch(TESTS, TEST_CALC, TEST_CALC.replace("assert clamp(5, 0, 10) == 5", "pass")),
        unified_patch("conftest.py", "", FORCE_GREEN).replace(
            "--- a/conftest.py", "new file mode 100644\n--- /dev/null"
        ),
        unified_patch("pytest.py", "", "print('passed')\n").replace(
            "--- a/pytest.py", "new file mode 100644\n--- /dev/null"
        ),
    ],
    ids=["edited test", "planted conftest", "planted pytest"],
)
def test_changes_to_the_tests_are_discarded(bench: Bench, extra: str) -> None:
    assert grade(bench.task, extra, bench.env, bench.layer).reward == 0
    assert grade(bench.task, GOLD + extra, bench.env, bench.layer).reward == 1


@pytest.mark.parametrize(
    "way_out", ["import os; os._exit(0)", "raise SystemExit(0)", "import os; os.kill(os.getpid(), 9)"]
)
def test_a_program_that_ends_early_passes_nothing(bench: Bench, way_out: str) -> None:
    result = grade(bench.task, broken_with(way_out), bench.env, bench.layer)
    assert (result.reward, result.owner) == (0, "agent")
    assert set(result.tests.values()) == {"missing"}


def test_an_endless_loop_is_the_agent_s_failure(bench: Bench) -> None:
    config = GradingConfig(timeout=2)
    result = grade(bench.task, broken_with("while True: pass"), bench.env, bench.layer, config)
    assert (result.reward, result.owner) == (0, "agent")
    assert result.reason == "the tests took more than 2 s"


def test_the_log_is_bounded(bench: Bench) -> None:
    noise = broken_with("import sys; sys.__stdout__.write('x' * 1_000_000)")
    result = grade(bench.task, noise, bench.env, bench.layer, GradingConfig(log_chars=500))
    assert 100 < len(result.log) <= 500


def test_a_sandbox_that_does_not_start_is_not_the_agent_s_failure(bench: Bench) -> None:
    with pytest.raises(SandboxError):
        grade(bench.task, GOLD, bench.env, Path("/nonexistent/layer"))


def test_keys_tell_apart_what_is_graded_differently(bench: Bench) -> None:
    config = GradingConfig()
    key = grade_key(bench.task, GOLD, "digest", config)
    planted = unified_patch("conftest.py", "", "x = 1\n")
    assert grade_key(bench.task, GOLD, "digest", GradingConfig(cache=False)) == key
    others = [
        grade_key(bench.task, "", "digest", config),
        grade_key(bench.task, GOLD + planted, "digest", config),  # it tells what was dropped
        grade_key(bench.task, GOLD, "digest", GradingConfig(reward="f2p_fraction")),
        grade_key(bench.task, GOLD, "other", config),
        grade_key(bench.task, GOLD, "digest", GradingConfig(timeout=1)),
        grade_key(bench.task.model_copy(update={"PASS_TO_PASS": []}), GOLD, "digest", config),
        grade_key(bench.task.model_copy(update={"patch": "x"}), GOLD, "digest", config),
    ]
    assert len({key, *others}) == 8


def test_partial_credit(bench: Bench) -> None:
    half = unified_patch("calc.py", BROKEN, BROKEN.replace("value < high", "value < high and value != 5"))
    config = GradingConfig(reward="f2p_fraction")
    result = grade(bench.task, half, bench.env, bench.layer, config)
    assert (result.resolved, result.reward, result.owner) == (False, 0.5, "agent")
    assert "control" in result.durations  # what earns something is looked at
    assert grade(bench.task, half + "rubbish", bench.env, bench.layer, config).reward == 0
    assert grade(bench.task, broken_with("raise SystemExit(0)"), bench.env, bench.layer, config).reward == 0
    assert grade(bench.task, GOLD, bench.env, bench.layer, config).reward == 1


def test_a_grade_tells_what_became_of_the_diff(bench: Bench) -> None:
    new = "diff --git a/{0} b/{0}\nnew file mode {1}\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+/etc\n"
    outcomes = {
        "": "empty",
        GOLD: "applied",
        GOLD + new.format("pytest.ini", "100644"): "cut_down",
        new.format("tests/conftest.py", "100644"): "nothing_left",
        new.format("link", "120000"): "refused_symlink",
        GOLD.replace("value < high", "value << high"): "conflict",
        GOLD.replace("\n", "\n\n"): "no_patch",
    }
    found = {diff: grade(bench.task, diff, bench.env, bench.layer) for diff in outcomes}
    assert {diff: result.outcome for diff, result in found.items()} == outcomes
    assert found[GOLD + new.format("pytest.ini", "100644")].dropped == ["pytest.ini"]
    assert [diff for diff, result in found.items() if result.resolved] == [
        GOLD,
        GOLD + new.format("pytest.ini", "100644"),
    ]


def test_without_a_control_run(bench: Bench) -> None:
    result = grade(bench.task, GOLD, bench.env, bench.layer, GradingConfig(control=False))
    assert (result.resolved, set(result.durations)) == (True, {"apply", "tests"})

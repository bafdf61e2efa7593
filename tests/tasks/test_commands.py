import subprocess
from pathlib import Path

import pytest

from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.tasks import Task, enumerate_commands, grade
from minisandbox_ray.tasks.commands import sed_command
from minisandbox_ray.tasks.localise import suspicious_lines
from minisandbox_ray.tasks.mutate import Mutation
from minisandbox_ray.tasks.source import unified_patch

from .conftest import CALC, IDS, Bench

LINES = [
    "x = a < b  # a < b",
    "x = a < b or a < b",
    "x = 'it''s' < \"a\" and f(r'\\d[0-9]*/^$&|') < b",
    "\tx = größe['ä'] < b.c*2 # 100% sure, a|b/c#d@e!f~g,h",
    "if a < b: return [a < b, {}]",
]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("last", [False, True])
def test_a_command_changes_its_place_and_nothing_else(tmp_path: Path, line: str, last: bool) -> None:
    text = f"{line}\n{line}\n{line}\n"
    at = line.rindex("<") if last else line.index("<")
    start = len(line) + 1 + at
    command = sed_command(Mutation("my file.py", 2, 2, start, start + 1, "<", "<= \\1&/", "compare", "f"), text)
    (tmp_path / "my file.py").write_text(text)
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    changed = f"{line[:at]}<= \\1&/{line[at + 1 :]}"
    assert (tmp_path / "my file.py").read_text() == f"{line}\n{changed}\n{line}\n"
    assert done.stdout.decode() == f"{changed}\n"


def test_a_command_fails_where_its_text_is_not(tmp_path: Path) -> None:
    text = "def f():\n    return 1 < 2\n"
    command = sed_command(Mutation("a.py", 2, 2, 22, 23, "<", "<=", "compare", "f"), text)
    assert command == "sed -i '2s/1 < 2/1 <= 2/w /dev/stdout' a.py | grep ."
    (tmp_path / "a.py").write_text(text.replace("<", ">"))
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False).returncode == 1
    assert (tmp_path / "a.py").read_text() == text.replace("<", ">")
    (tmp_path / "a.py").unlink()
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False).returncode == 1


@pytest.fixture(scope="module")
def sum_task(bench: Bench) -> Task:
    """total() subtracts."""
    broken = CALC.replace("result += value", "result -= value")
    patch = unified_patch("calc.py", CALC, broken)
    failing = ["tests/test_calc.py::test_total"]
    passing = [test for test in IDS if test not in failing]
    return bench.task.model_copy(update={"patch": patch, "FAIL_TO_PASS": failing, "PASS_TO_PASS": passing})


def test_suspicion_falls_on_what_only_failing_tests_run(bench: Bench, sum_task: Task) -> None:
    layer = bench.store.derive(bench.env, sum_task.patch)
    lines = suspicious_lines(sum_task.hide_gold(), bench.env, layer)
    assert {place[0] for _, place in lines} == {"calc.py"}
    assert CALC.splitlines()[lines[0][1][1] - 1].strip() in {"for value in values:", "result += value"}
    assert all(0 < score <= 1 for score, _ in lines)


def test_hiding_the_gold_changes_no_command(bench: Bench, sum_task: Task) -> None:
    layer = bench.store.derive(bench.env, sum_task.patch)
    candidates = enumerate_commands(sum_task, bench.env, layer, 5)
    assert enumerate_commands(sum_task.hide_gold(), bench.env, layer, 5) == candidates
    assert len({each.command for each in candidates}) == len(candidates) > 1
    solving = [each.command for each in candidates if grade(sum_task, each.diff, bench.env, layer).resolved]
    assert solving == ["sed -i '16s/result -= value/result += value/w /dev/stdout' calc.py | grep ."]


def test_commands_do_what_they_say_in_a_fresh_sandbox(bench: Bench, sum_task: Task) -> None:
    layer = bench.store.derive(bench.env, sum_task.patch)
    for candidate in enumerate_commands(sum_task, bench.env, layer, 3):
        with Sandbox(bench.env.sandbox_spec(layer=layer)) as sandbox:
            assert sandbox.run(candidate.command).exit_code == 0
            expected = [line for line in candidate.diff.splitlines() if line[0] in "+-"]
            assert [line for line in sandbox.diff().splitlines() if line[0] in "+-"] == expected
            assert sandbox.run(candidate.command).exit_code == 1

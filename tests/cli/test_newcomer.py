"""A newcomer's path: a folder of one's own with one failing test becomes a validated task, a rollout, and a grade."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rollout.calc import TESTS, cache_in

from minisandbox_ray.cli.main import main
from minisandbox_ray.cluster import ClusterConfig, connect
from minisandbox_ray.tasks import load_tasks

FIXED = "def add(a, b):\n    return a + b\n"


@pytest.fixture
def folder(sandboxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "calc"
    (folder / "tests").mkdir(parents=True)
    (folder / "calc.py").write_text(FIXED.replace("+", "-"))
    (folder / "tests" / "test_calc.py").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    with cache_in(tmp_path / "cache_of_its_own") as _:
        yield folder


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path) -> None:
    (tmp_path / "cache_of_its_own").mkdir()


def write_fix(folder: Path) -> Path:
    """As one does: git diff > fix.patch."""
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    broken = (folder / "calc.py").read_text()
    (folder / "calc.py").write_text(FIXED)
    diff = subprocess.run(["git", "diff"], cwd=folder, check=True, capture_output=True, text=True).stdout
    (folder / "calc.py").write_text(broken)
    fix = folder.parent / "fix.patch"
    fix.write_text(diff)
    return fix


@pytest.mark.parametrize("content", ["", " \n\n\t\n"])
def test_a_fix_without_a_patch_is_refused_and_writes_no_task(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calc").mkdir()
    (tmp_path / "empty.patch").write_text(content)
    assert main(["task", "new", "calc", "--fix", "empty.patch"]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert "--fix empty.patch holds no patch" in said.err
    assert not (tmp_path / "tasks.jsonl").exists()


def test_from_a_folder_to_a_grade(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fix(folder)
    if (status := main(["task", "new", "calc", "--fix", "fix.patch"])) == 1:
        pytest.skip(f"no environment without a package index: {capsys.readouterr().err.splitlines()[0]}")
    assert status == 0, capsys.readouterr().err
    assert "task calc-1: 1 tests to make pass, 1 to keep | tasks.jsonl" in capsys.readouterr().out
    with connect(ClusterConfig(address="local"), tmp_path / "ray"):
        assert main(["validate", "tasks.jsonl"]) == 0
        assert "1 of 1 tasks are valid" in capsys.readouterr().out
        assert main(["rollout", "tasks.jsonl", "--policy", "gold", "--output", "runs/gold"]) == 0
    assert "1 episodes: 1 resolved" in capsys.readouterr().out
    assert main(["trajectories", "show", "runs/gold"]) == 0
    assert main(["report", "runs/gold"]) == 0
    assert (tmp_path / "runs" / "gold" / "report.html").is_file()
    report = json.loads((tmp_path / "runs" / "gold" / "report.json").read_text())
    assert report["resolved_ids"] == ["calc-1"]
    capsys.readouterr()

    # Another one of the same folder, without a gold fix and with words of one's own.
    assert main(["task", "new", "calc", "--statement", "It adds wrongly."]) == 0
    assert "no gold fix" in capsys.readouterr().out
    first, second = load_tasks(tmp_path / "tasks.jsonl")
    assert (first.FAIL_TO_PASS, first.PASS_TO_PASS) == (
        ["tests/test_calc.py::test_add"],
        ["tests/test_calc.py::test_zero"],
    )
    assert "this test fails:\n\n    tests/test_calc.py::test_add\n" in first.problem_statement
    assert (second.instance_id, second.problem_statement, second.gold_patch) == ("calc-2", "It adds wrongly.", "")

    # A test that the code is not even importable for.
    (folder / "tests" / "test_zero.py").write_text("def test_zero():\n    pass\n")
    (folder / "tests" / "test_more.py").write_text(
        "from calc import sub\n\ndef test_sub():\n    assert sub(3, 1) == 2\n"
    )
    (tmp_path / "more.patch").write_text(
        "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,4 @@\n def add(a, b):\n     return a - b\n"
        "+def sub(a, b):\n+    return a - b\n"
    )
    assert main(["task", "new", "calc", "--fix", "more.patch", "--id", "sub"]) == 0
    third = load_tasks(tmp_path / "tasks.jsonl")[2]
    assert (third.FAIL_TO_PASS, third.PASS_TO_PASS) == (
        ["tests/test_more.py::test_sub"],
        ["tests/test_calc.py::test_zero", "tests/test_zero.py::test_zero"],
    )
    assert "1 that fail with the fix as well" in capsys.readouterr().out

    # What is wrong is told in a line.
    def complaint(*arguments: str) -> str:
        assert main(["task", "new", *arguments]) == 2
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1), said
        return said.err

    assert "nowhere is no directory" in complaint("nowhere")
    assert "cannot read none.patch" in complaint("calc", "--fix", "none.patch")
    assert "tasks.jsonl has such a task" in complaint("calc", "--id", "calc-1")
    assert "does not exist" in complaint("calc", "--tests", "spec")
    assert "--python or --package" in complaint("calc", "--python", "two")
    (tmp_path / "bad.patch").write_text((tmp_path / "fix.patch").read_text().replace("a - b", "a * b"))
    assert "bad.patch does not apply to calc" in complaint("calc", "--fix", "bad.patch")
    (tmp_path / "useless.patch").write_text((tmp_path / "fix.patch").read_text().replace("a + b", "a * b"))
    assert "useless.patch makes no failing test pass" in complaint("calc", "--fix", "useless.patch")
    assert "no test of calc runs" in complaint("calc", "--tests", "calc.py")
    assert "no test fails in calc" in complaint("calc", "--tests", "tests/test_zero.py")

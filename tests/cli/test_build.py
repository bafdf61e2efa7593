import json
from pathlib import Path

import pytest

from minisandbox_ray.cli.main import main
from minisandbox_ray.environments import EnvSpec, Source
from minisandbox_ray.tasks import load_tasks
from minisandbox_ray.tasks.building import jobs as jobs_module
from minisandbox_ray.tasks.recipes import Recipe

ROW = {
    "repo": "pallets/flask",
    "base_commit": "0123456",
    "version": "2.3",
    "patch": "",
    "test_patch": "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-a\n+b\n",
    "problem_statement": "It breaks.",
    "environment_setup_commit": "",
    "FAIL_TO_PASS": ["t.py::t"],
}


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three rows: two of one environment, and one that is no task."""
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path / "cache"))
    rows = [
        {**ROW, "instance_id": "a-1"},
        {**ROW, "instance_id": "a-2"},
        {**ROW, "instance_id": "a-3", "repo": "flask"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["{rows}", "--workers", "0"], "--workers must be at least 1"),
        (["{rows}", "--repo-mirror", "/nowhere"], "--repo-mirror /nowhere is no directory"),
        (["{rows}", "--out", "/nowhere/tasks.jsonl"], "cannot write /nowhere/tasks.jsonl"),
        (["{rows}", "--out", "/"], "--out / is a directory, expected a file"),
        (["{rows}", "--report", "/"], "--report / is a directory, expected a file"),
        (["{rows}", "--only", "a-4"], "--only: the data set has no row a-4; near it: a-3, a-2, a-1"),
        (["{rows}", "--only", ","], "names no row"),
        (["{rows}", "--format", "r2e-gym", "--split", "x", "--report", "/nowhere/x"], "cannot write /nowhere/x"),
        (["/nowhere.jsonl"], "data set /nowhere.jsonl: no such file or folder"),
        (["/nowhere.yaml"], "cannot read /nowhere.yaml"),
        (["/nowhere.yaml", "--out", "x"], "--out is for data sets"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], reason: str, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", *(word.format(rows=dataset) for word in words)]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


def test_rows_without_environments_are_told(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("swebench", reason="the tables are those of the package swebench")
    mirror, report = tmp_path / "mirror", tmp_path / "report.json"
    mirror.mkdir()
    (mirror / "pallets__flask").mkdir()  # no repository: GitHub would be asked, were the version in the table
    text = dataset.read_text().replace('"2.3"', '"9.9"')
    dataset.write_text(text)
    words = ["--repo-mirror", str(mirror), "--report", str(report), "--out", str(tmp_path / "out.jsonl")]
    assert main(["build", str(dataset), *words]) == 1
    assert "0 of 3 tasks are ready" in capsys.readouterr().out
    said = json.loads(report.read_text())
    assert [(row["instance_id"], row["field"]) for row in said["refused"]] == [("a-3", "repo")]
    assert [row["instance_id"] for row in said["unplanned"]] == ["a-1", "a-2"]
    assert "no recipe for version 9.9" in said["unplanned"][0]["reason"]
    assert load_tasks(tmp_path / "out.jsonl") == []


def test_tasks_get_their_environment(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is replaced by a recipe that needs no package index."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "t.py").write_text("a\n")
    recipe = Recipe(
        spec=EnvSpec(source=Source(kind="path", path=source), install=["echo 1 > made"]),
        test_command=["/venv/bin/pytest"],
        test_targets=["t.py"],
        log_parser="swebench:pallets/flask",
    )
    monkeypatch.setattr(jobs_module, "find_recipe", lambda task, mirror: recipe)
    out = tmp_path / "out.jsonl"
    assert main(["build", str(dataset), "--only", "a-2,a-1", "--out", str(out), "--workers", "1"]) == 0
    assert "2 of 2 tasks are ready; environments: 1 built, 0 found, 0 failed" in capsys.readouterr().out
    tasks = load_tasks(out)
    assert [task.instance_id for task in tasks] == ["a-1", "a-2"]
    assert len({task.environment for task in tasks}) == 1
    assert (tmp_path / f"cache/archives/{tasks[0].environment}.tar.zst").exists()
    assert (tasks[0].test_targets, tasks[0].log_parser) == (["t.py"], "swebench:pallets/flask")
    assert main(["build", str(dataset), "--only", "a-1"]) == 0
    assert "1 of 1 tasks are ready; environments: 0 built, 1 found, 0 failed" in capsys.readouterr().out

"""Patches from elsewhere, graded."""

import json
from pathlib import Path

import pytest

from minisandbox_ray.cli.main import main
from minisandbox_ray.tasks import Task, save_tasks

FIX = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
WRONG = FIX.replace("+    return a + b", "+    return b - a")
NO_MATCH = FIX.replace("return a - b", "return 7")


def prediction(task: Task, patch: str | None) -> dict:
    return {"instance_id": task.instance_id, "model_patch": patch, "model_name_or_path": "somebody"}


def test_predictions_become_a_report(
    cluster: None, tasks: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    five = [tasks[0].model_copy(update={"instance_id": f"calc__{number}"}) for number in range(6)]
    file = tmp_path / "tasks.jsonl"
    save_tasks(five, file)
    patches = [FIX, WRONG, NO_MATCH, "", None]
    predictions = tmp_path / "preds.json"
    given = {task.instance_id: prediction(task, patch) for task, patch in zip(five[:5], patches, strict=True)}
    predictions.write_text(json.dumps(given))
    command = ["evaluate", str(predictions), str(file), "--output", str(tmp_path / "out")]
    assert main(command) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["resolved_ids"] == ["calc__0"]
    assert report["unresolved_ids"] == ["calc__1"]
    assert report["error_ids"] == ["calc__2"]
    assert report["errors"] == {"calc__2": "the patch does not apply"}
    assert report["empty_patch_ids"] == ["calc__3", "calc__4"]
    assert report["incomplete_ids"] == ["calc__5"]
    assert report["completed_ids"] == ["calc__0", "calc__1"]
    assert report["submitted_instances"] == 5
    assert report["pass_at_k"] == {"1": 0.2}
    assert "1 resolved, 1 unresolved, 2 empty_patch, 1 error" in capsys.readouterr().out
    # Again, as JSON lines: what is graded is not graded again, but another file is another batch.
    assert main(command) == 0
    assert "0 played" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    lines = tmp_path / "all_preds.jsonl"
    lines.write_text("".join(json.dumps(each) + "\n" for each in given.values()))
    assert main(["evaluate", str(lines), str(file), "--output", str(tmp_path / "out")]) == 2
    assert "choose another --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("preds.json", "{", "is no JSON file of predictions"),
        ("preds.json", "{}", "holds no predictions"),
        ("preds.json", "7", "holds neither an object nor a list"),
        ("preds.json", '{"calc__2": 7}', "calc__2: Input should be"),
        ("preds.json", '[{"model_patch": ""}]', "entry 1: instance_id: Field required"),
        ("preds.jsonl", "[]", "line 1: Input should be"),
        ("preds.jsonl", '{"instance_id": "calc__2", "model_patch": 7}', "line 1: model_patch: Input should be"),
        ("preds.jsonl", '{"instance_id": "a"}\n{"instance_id": "a"}', "line 2: a occurs twice"),
        ("preds.json", '{"other": {"model_patch": "x"}}', "has no task other of"),
    ],
)
def test_bad_predictions_are_one_line(
    file: Path, name: str, content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    assert main(["evaluate", str(tmp_path / name), str(file), "--output", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert said in shown.err
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_output(
    file: Path, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("preds.json").write_text(json.dumps([prediction(tasks[0], FIX)]))
    Path("fix.patch").write_text(FIX)
    assert main(["evaluate", "preds.json", str(file), "--output", "fix.patch"]) == 2
    assert capsys.readouterr().err == "minisandbox_ray evaluate: fix.patch is no directory\n"
    assert Path("fix.patch").read_text() == FIX


def test_missing_files_are_one_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path / "none.json"), str(file)]) == 2
    assert "No such file" in capsys.readouterr().err

import json
from pathlib import Path

import pytest

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task, load_tasks, require_environments, save_tasks

ROW = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "patch": "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-ä\n+b\n",
    "FAIL_TO_PASS": ["tests/test_x.py::test_a[1::2]"],
    "PASS_TO_PASS": ["tests/test_x.py::test_b"],
    "created_at": "2025-04-01",
    "image_name": "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    "base_commit": "0123",
    "problem_statement": "It\u2028fails.",
}


def test_a_public_row_survives_a_round_trip(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(ROW, ensure_ascii=False) + "\n\n")
    tasks = load_tasks(tmp_path / "in.jsonl")
    save_tasks(tasks, tmp_path / "out.jsonl")
    assert load_tasks(tmp_path / "out.jsonl") == tasks
    written = json.loads((tmp_path / "out.jsonl").read_text())
    assert {key: written[key] for key in ROW} == ROW
    save_tasks(tasks, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.jsonl", "in.jsonl", "out.jsonl"]


def test_lists_may_come_as_json_text() -> None:
    assert Task.model_validate({**ROW, "FAIL_TO_PASS": '["a::b"]'}).FAIL_TO_PASS == ["a::b"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: not a JSON object"),
        ("[]", "line 2: field row"),
        (json.dumps({**ROW, "FAIL_TO_PASS": []}), "line 2: field FAIL_TO_PASS"),
        (json.dumps({**ROW, "FAIL_TO_PASS": "tests"}), "line 2: field FAIL_TO_PASS"),
        (json.dumps({**ROW, "PASS_TO_PASS": [3]}), "line 2: field PASS_TO_PASS.0"),
        (json.dumps({key: value for key, value in ROW.items() if key != "repo"}), "line 2: field repo"),
        (json.dumps(ROW), "line 2: instance_id oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc occurs twice"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_tasks(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the task file"):
        load_tasks(tmp_path / "none.jsonl")


def test_hidden_gold_is_gone() -> None:
    task = Task.model_validate(ROW)
    hidden = task.hide_gold()
    assert "-ä" in task.gold_action()
    assert "-ä" not in hidden.model_dump_json()
    with pytest.raises(ConfigError, match="hidden"):
        hidden.gold_command()


def test_the_gold_action_is_one_fenced_block_that_the_patch_cannot_end() -> None:
    task = Task.model_validate({**ROW, "patch": f"{ROW['patch']}END_OF_PATCH\n"})
    action = task.gold_action()
    assert action.count("```bash\n") == 1
    assert "<<'END_OF_PATCH_'\n" in action
    assert action.endswith("\nEND_OF_PATCH_\n```\n")


def test_a_task_without_an_environment_is_named(tmp_path: Path) -> None:
    row = {"instance_id": "a__b.1", "repo": "a", "FAIL_TO_PASS": ["t.py::test"]}
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=r"task a__b\.1 names no environment"):
        require_environments(load_tasks(path))
    path.write_text(json.dumps({**row, "environment": "../../etc"}) + "\n")
    with pytest.raises(ConfigError, match="line 1: field environment"):
        load_tasks(path)

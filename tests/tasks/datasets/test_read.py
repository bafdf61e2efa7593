import json
from pathlib import Path
from typing import Any

import pytest

from minisandbox_ray.errors import ConfigError, TaskError
from minisandbox_ray.tasks import Task, load_tasks, save_tasks
from minisandbox_ray.tasks.datasets import read_dataset

from .rows import COMMIT, FIX, R2E_GYM, SWE_BENCH, SWE_GYM, SWE_SMITH, TESTS

VERIFIED = Path(__file__).parents[4] / "shared/data/swe_bench_verified.parquet"
FORMATS = {"swe-bench": SWE_BENCH, "swe-gym": SWE_GYM, "swe-smith": SWE_SMITH, "r2e-gym": R2E_GYM}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refusals(path: Path) -> list[tuple[str, str]]:
    return [(each.instance_id, each.field) for each in read_dataset(path).refused]


def test_all_of_verified_loads() -> None:
    if not VERIFIED.exists():
        pytest.skip("no ../shared/data/swe_bench_verified.parquet")
    loaded = read_dataset(VERIFIED)
    assert loaded.format == "swe-bench" and loaded.refused == []
    assert len(loaded.tasks) == len({task.instance_id for task in loaded.tasks}) == 500
    assert all(task.FAIL_TO_PASS and task.gold_patch and task.test_patch and task.version for task in loaded.tasks)
    assert all(len(task.base_commit) == len(task.environment_setup_commit) == 40 for task in loaded.tasks)
    assert sum(len(task.tests) for task in loaded.tasks) > 50_000


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "folder", "saved", "saved splits"])
def test_every_format_is_told_by_its_columns_in_every_kind_of_file(tmp_path: Path, name: str, kind: str) -> None:
    row, place, split = FORMATS[name], tmp_path / "data", None
    if kind == "jsonl":
        place = write(tmp_path / "rows.jsonl", [row])
    elif kind == "json":
        place = tmp_path / "rows.json"
        place.write_text(json.dumps([row]))
    else:
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_list([row])
        if kind == "parquet":
            place = tmp_path / "rows.parquet"
            data.to_parquet(str(place))
        elif kind == "folder":
            split = "test"
            for each in ("test-00000-of-00001", "train-00000-of-00001"):
                data.to_parquet(str(place / "data" / f"{each}.parquet"))
        elif kind == "saved":
            data.save_to_disk(str(place))
        else:
            split = "train"
            datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(place))
    loaded = read_dataset(place, split=split)
    assert (loaded.format, loaded.refused, len(loaded.tasks)) == (name, [], 1)
    assert loaded.tasks == read_dataset(write(tmp_path / "same.jsonl", [row]), format=loaded.format).tasks


def test_swe_bench_keeps_what_its_harness_needs(tmp_path: Path) -> None:
    (task,) = read_dataset(write(tmp_path / "rows.jsonl", [SWE_BENCH])).tasks
    assert (task.repo, task.base_commit, task.version) == ("octo/calc", COMMIT, "4.3")
    assert (task.patch, task.gold_patch, task.test_patch) == ("", FIX, TESTS)
    assert task.environment_setup_commit == COMMIT[::-1] and task.hints_text == "Look at calc.py."
    assert task.FAIL_TO_PASS == ["test_calc.py::test_add[1]", "test_neg (calc.tests.AddTests)"]
    assert task.PASS_TO_PASS == []
    assert task.model_extra == {"difficulty": "<15 min fix"}
    assert task.gold_command().startswith("git apply --whitespace=nowarn <<'END_OF_PATCH'\ndiff")
    hidden = task.hide_gold()
    assert "a + b" not in hidden.model_dump_json()
    with pytest.raises(ConfigError, match="gold fix is hidden"):
        hidden.gold_command()


def test_swe_smith_breaks_a_repository_and_commit_that_its_names_tell(tmp_path: Path) -> None:
    (task,) = read_dataset(write(tmp_path / "rows.jsonl", [SWE_SMITH])).tasks
    assert (task.repo, task.base_commit, task.patch, task.gold_patch) == ("Octo/calc.py", "01234567", FIX, "")
    assert task.gold_command().startswith("git apply -R ")
    old = {**SWE_SMITH, "repo": "", "instance_id": "x", "image_name": "swesmith.x86_64.octo__calc.py.01234567"}
    (task,) = read_dataset(write(tmp_path / "rows.jsonl", [old])).tasks
    assert (task.repo, task.base_commit) == ("octo/calc.py", "01234567")


def test_r2e_gym_is_graded_by_statuses(tmp_path: Path) -> None:
    (task,) = read_dataset(write(tmp_path / "rows.jsonl", [R2E_GYM])).tasks
    assert (task.instance_id, task.repo) == (f"python-pillow__Pillow-{COMMIT}", "python-pillow/Pillow")
    assert task.base_commit == f"{COMMIT}^"
    assert task.problem_statement == "Sums are wrong."
    assert task.graded_by == "statuses" and task.FAIL_TO_PASS == []
    with pytest.raises(TaskError, match="is graded by its statuses"):
        assert task.tests is None, "a grader that runs no test finds no failure"
    assert task.expected_statuses == {"test_add": "PASSED", "test_old": "FAILED"}
    assert task.hidden_tests == {"r2e_tests/test_1.py": "def test_add(): ...\n"}
    assert task.gold_patch == (
        "diff --git a/calc.py b/calc.py\nindex 1111111..2222222 100644\n--- a/calc.py\n+++ b/calc.py\n"
        "@@ -1,2 +1,2 @@\n def add(a, b):\n-a - b\n+a + b\n"
    )


def test_the_factorys_own_tasks_come_back(tmp_path: Path) -> None:
    task = Task(instance_id="one", repo="inflection", FAIL_TO_PASS=["t.py::a"], patch=FIX, environment="ab" * 32)
    save_tasks([task], tmp_path / "tasks.jsonl")
    loaded = read_dataset(tmp_path / "tasks.jsonl")
    assert (loaded.format, loaded.tasks, loaded.refused) == ("minisandbox", [task], [])


@pytest.mark.parametrize("name", FORMATS)
def test_tasks_of_every_format_survive_a_task_file(tmp_path: Path, name: str) -> None:
    loaded = read_dataset(write(tmp_path / "rows.jsonl", [FORMATS[name]]))
    save_tasks(loaded.tasks, tmp_path / "tasks.jsonl")
    assert load_tasks(tmp_path / "tasks.jsonl") == loaded.tasks


def test_a_bad_row_is_named_by_id_and_field_and_the_rest_load(tmp_path: Path) -> None:
    bad: list[tuple[str, Any]] = [
        ("FAIL_TO_PASS", '["unfinished'),
        ("FAIL_TO_PASS", "[]"),
        ("FAIL_TO_PASS", None),
        ("PASS_TO_PASS", [3]),
        ("base_commit", ""),
        ("base_commit", "--upload-pack=x"),
        ("environment_setup_commit", "main"),
        ("repo", "../../etc"),
        ("repo", "../.."),
        ("patch", "no patch at all"),
        ("test_patch", 3.5),
        ("problem_statement", None),
        ("version", ["4.3"]),
        ("hints_text", {}),
    ]
    rows = [{**SWE_BENCH, "instance_id": f"row-{at}", name: value} for at, (name, value) in enumerate(bad)]
    path = write(tmp_path / "rows.jsonl", [SWE_BENCH, *rows, {**SWE_BENCH, "instance_id": "last"}])
    loaded = read_dataset(path)
    assert [task.instance_id for task in loaded.tasks] == ["octo__calc-7", "last"]
    assert [(each.instance_id, each.field) for each in loaded.refused] == [
        (f"row-{at}", name) for at, (name, _) in enumerate(bad)
    ]
    assert not any("\n" in str(each) or len(str(each)) > 300 for each in loaded.refused)


def test_rows_that_are_none_or_have_no_id_are_named_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [SWE_BENCH, {**SWE_BENCH, "instance_id": None}, SWE_BENCH, [1]])
    path.write_text(path.read_text() + '{"instance_id": "cut\n')
    loaded = read_dataset(path)
    assert len(loaded.tasks) == 1
    assert [str(each).split(": ")[:2] for each in loaded.refused] == [
        ["row 2", "instance_id"],
        ["octo__calc-7", "instance_id"],
        ["row 4", "is not a JSON object"],
        ["row 5", "is not JSON"],
    ]


def test_bad_rows_of_swe_smith_and_r2e_gym(tmp_path: Path) -> None:
    smith = [
        {**SWE_SMITH, "instance_id": "a", "repo": "b", "image_name": "c"},
        {**SWE_SMITH, "image_name": "jyangballin/swesmith.x86_64.octo_1776_calc.py.76543210"},
        {**SWE_SMITH, "patch": ""},
    ]
    assert [field for _, field in refusals(write(tmp_path / "smith.jsonl", smith))] == [
        "image_name",
        "image_name",
        "patch",
    ]
    r2e = [
        {**R2E_GYM, "expected_output_json": "{"},
        {**R2E_GYM, "expected_output_json": "{}"},
        {**R2E_GYM, "expected_output_json": '{"a": null}'},
        {**R2E_GYM, "repo_name": "unheard-of"},
        {**R2E_GYM, "parsed_commit_content": '{"old_commit_hash": 3}'},
        {**R2E_GYM, "parsed_commit_content": json.dumps({"old_commit_hash": COMMIT[::-1], "file_diffs": [{}]})},
        {**R2E_GYM, "execution_result_content": '{"test_file_names": ["../x"], "test_file_codes": [""]}'},
        {**R2E_GYM, "execution_result_content": '{"test_file_names": ["x"], "test_file_codes": []}'},
    ]
    fields = ["expected_output_json"] * 3 + ["repo_name"]
    fields += ["parsed_commit_content"] * 2 + ["execution_result_content"] * 2
    assert refusals(write(tmp_path / "r2e.jsonl", r2e)) == [(f"row {at}", field) for at, field in enumerate(fields, 1)]


def test_what_is_no_data_set_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "broken.json").write_text("[{")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/state.json").write_text("{}")
    (tmp_path / "two").mkdir()
    write(tmp_path / "two/test.jsonl", [SWE_BENCH])
    write(tmp_path / "two/dev.jsonl", [SWE_BENCH])
    write(tmp_path / "other.jsonl", [{"a": 1}])
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("none.jsonl", {}, "no such file or folder"),
        ("broken.parquet", {}, "cannot be read"),
        ("broken.json", {}, "cannot be read"),
        ("notes.txt", {}, "expected a folder or a file of"),
        ("empty", {}, "neither task folders nor files"),
        ("empty", {"format": "harbor"}, "no folder with a task.toml"),
        ("saved", {}, "cannot be read"),
        ("two", {}, "has several splits, name one: dev, test"),
        ("two", {"split": "train"}, "has no split train: dev, test"),
        ("other.jsonl", {}, r"its columns \(a\) tell no format"),
        ("other.jsonl", {"format": "swe"}, "no data set format 'swe'"),
    ]
    for name, options, complaint in cases:
        with pytest.raises(ConfigError, match=complaint) as caught:
            read_dataset(tmp_path / name, **options)
        assert "\n" not in str(caught.value)
    assert len(read_dataset(tmp_path / "two", split="dev").tasks) == 1


def test_a_name_that_the_hub_does_not_give_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="is no path here, and the hub does not give it") as caught:
        read_dataset("nobody/no-such-data-set")
    assert "\n" not in str(caught.value)

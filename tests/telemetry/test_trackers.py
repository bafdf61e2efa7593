"""Trackers: the console's line, metrics.jsonl, and what an offline W&B directory holds."""

import json
import os
import re
import struct
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from minisandbox_ray.telemetry import ConsoleTracker, JsonlTracker, WandbTracker, read_metrics
from minisandbox_ray.telemetry.provenance import provenance
from minisandbox_ray.telemetry.wandb_file import cut_back, records

STEP = {
    "reward/avg_raw_reward": 0.25,
    "policy/final_loss": -0.5,
    "timing/step": 4.0,
    "timing/generate": 2.0,
    "environment/episodes": 100,
    "environment/grade_cache_hits": 90,
    "environment/failures": 0,
}


def test_one_console_line_per_step():
    lines: list[str] = []
    tracker = ConsoleTracker(60, write=lines.append)
    tracker.log(STEP, 1)
    tracker.log({"timing/step": 1.0}, 2)  # what is flushed when a step fails is no step
    tracker.log({**STEP, "environment/failures": 3}, 2)
    assert len(lines) == 2
    assert lines[0].startswith("step  1/60 | reward 0.250 | loss -0.5000 | 4.0 s | 50.0 episodes/s | 90/100 grades")
    assert lines[0].endswith("to go")
    assert "3 episodes failed and masked" in lines[1]


def test_metrics_file_is_read_back_without_its_torn_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.log({**STEP, "text": "not a number"}, 1)
    tracker.log(STEP, 2)
    tracker.finish()
    with path.open("a") as file:
        file.write('{"step": 3, "rew')
    rows = read_metrics(path)
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0] == {"step": 1, **STEP}


@pytest.fixture
def no_wandb_key(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


def test_without_a_key_wandb_records_offline_and_the_curve_can_be_read_back(no_wandb_key, tmp_path: Path, capfd):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    tracker = WandbTracker(run_dir, "project", "name", {"seed": 3})
    for step, reward in enumerate((0.1, 0.5, 0.9), 1):
        tracker.log({**STEP, "reward/avg_raw_reward": reward}, step)
    tracker.finish()
    (file,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    assert tracker.hint == f"W&B recorded offline; upload with: wandb sync {file.parent}"
    assert capfd.readouterr().out == ""
    curve = {row["_step"]: row["reward/avg_raw_reward"] for row in read_wandb_history(file)}
    assert curve == {1: 0.1, 2: 0.5, 3: 0.9}


@pytest.mark.parametrize("mode", ["disabled", "offline"])
def test_wandbs_own_mode_wins(no_wandb_key, monkeypatch, tmp_path: Path, mode):
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    tracker = WandbTracker(tmp_path, "project", "name", {})
    tracker.log(STEP, 1)
    tracker.finish()
    assert bool(tracker.hint) == (mode == "offline")
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or b"0" * 40 not in file.read_bytes(), f"the key is in {file}"


@pytest.mark.parametrize("padding", [10, 20_000])  # W&B writes blocks of 32 KiB: all that is new is lost, or some of it
def test_a_resumed_run_goes_on_where_the_killed_one_was_cut_back_to(no_wandb_key, tmp_path: Path, padding):
    """It had gone further than the checkpoint that the second part goes on from."""
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(padding)], check=False)
    resumed = WandbTracker(tmp_path, "project", "name", {}, resumed_step=3)
    for step in (4, 5, 6):
        resumed.log({**STEP, "reward/avg_raw_reward": float(step)}, step)
    resumed.finish()
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == (1 if padding == 10 else 2)
    assert {path.name for path in files} == {f"run-{(tmp_path / 'wandb-id').read_text().strip()}.wandb"}
    curve = [(row["_step"], row["reward/avg_raw_reward"]) for path in files for row in read_wandb_history(path)]
    assert curve == [(1, -1.0), (2, -2.0), (3, -3.0), (4, 4.0), (5, 5.0), (6, 6.0)]
    assert resumed.hint == f"W&B recorded offline; upload with: wandb sync {' '.join(str(f.parent) for f in files)}"


KILLED = """
import os, signal, sys, time
from pathlib import Path
from minisandbox_ray.telemetry import JsonlTracker, WandbTracker
run_dir = Path(sys.argv[1])
for tracker in (JsonlTracker(run_dir / "metrics.jsonl"), WandbTracker(run_dir, "project", "name", {})):
    for step in range(1, 6):
        tracker.log({"reward/avg_raw_reward": -float(step), "text": "x" * int(sys.argv[2])}, step)
time.sleep(2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("step", "kept"), [(0, []), (2, [1, 2]), (9, [1, 2, 3, 4])])
def test_a_file_that_was_torn_is_cut_back_all_the_same(no_wandb_key, tmp_path: Path, step, kept):
    tracker = WandbTracker(tmp_path, "project", "name", {"text": "x" * 40_000})
    for number in range(1, 6):
        tracker.log({**STEP, "text": "y" * 40_000}, number)
    tracker.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    last = max(end for end, record in records(file) if record.WhichOneof("record_type") == "history")
    os.truncate(file, last - 5)
    cut_back(file, step)
    assert [row["_step"] for row in read_wandb_history(file)] == kept


def test_tables_charts_and_what_the_run_was_made_with(no_wandb_key, tmp_path: Path):
    tracker = WandbTracker(tmp_path, "project", "name", {"seed": 3})
    tracker.log_table("evaluation/samples", ["task", "reward"], [["a__1", 1.0], ["b__2", 0.0]], 1)
    tracker.log({**STEP, "environment/reset_seconds_mean": 0.1}, 1)
    tracker.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    (row,) = read_wandb_history(file)
    assert (row["_step"], row["evaluation/samples/_type"], row["evaluation/samples/nrows"]) == (1, "table-file", 2)
    table = json.loads((file.parent / "files" / row["evaluation/samples/path"]).read_text())
    assert table == {"columns": ["task", "reward"], "data": [["a__1", 1.0], ["b__2", 0.0]]}
    chart = file.parent / "files" / row["environment/time_breakdown/path"]
    assert chart.read_bytes().startswith(b"\x89PNG")
    (run,) = (record.run for _, record in records(file) if record.WhichOneof("record_type") == "run")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["seed"] == 3
    assert config["provenance"]["ray"] == metadata.version("ray")
    assert config["provenance"]["python"].startswith("3.")


def test_the_revision_is_that_of_this_packages_files():
    revision = provenance().get("git")
    root = Path(__file__).parents[2]
    assert (revision is not None) == (root / ".git").exists()
    assert revision is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", revision)


def read_wandb_history(path: Path) -> list[dict]:
    """The steps in a ``.wandb`` file: records of W&B's own protobuf types in LevelDB's log format.

    A 7 byte file header, then blocks of 32 KiB with chunks of (checksum, length, type) and data; a record is one
    chunk of type 1, or a first (2), middle (3) and last (4) one.
    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    from wandb.proto import wandb_internal_pb2

    content, position, record, rows = path.read_bytes(), 7, b"", []
    assert content.startswith(b":W&B")
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        if kind == 0:
            break
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in {1, 4}:
            parsed = wandb_internal_pb2.Record()
            parsed.ParseFromString(record)
            record = b""
            if parsed.WhichOneof("record_type") == "history":
                items = parsed.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows

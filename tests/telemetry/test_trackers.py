"""Trackers: the console's line, metrics.jsonl, and what an offline W&B directory holds."""

import json
import struct
from pathlib import Path

import pytest

from minisandbox_ray.telemetry import ConsoleTracker, JsonlTracker, WandbTracker, read_metrics

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

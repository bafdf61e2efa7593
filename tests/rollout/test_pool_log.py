"""The pool's history as the report reads it."""

import json
import time
from pathlib import Path

from minisandbox_ray.rollout import EpisodePool, SandboxEnv
from minisandbox_ray.tasks import Task
from minisandbox_ray.telemetry.pool_log import PoolLog


def test_slots_and_stores_over_time(pool: EpisodePool, task: Task, tmp_path: Path) -> None:
    file = tmp_path / "pool.jsonl"
    started = time.time()
    with SandboxEnv(pool) as env, PoolLog(pool, file, every=0.01):
        env.reset(task)
        deadline = time.monotonic() + 60
        while not any(row["used"] and row["store_bytes"] for row in _rows(file)):  # the scheduler hears of it
            assert time.monotonic() < deadline
            time.sleep(0.01)
    rows = _rows(file)
    assert started <= rows[0]["time"] <= rows[-1]["time"] <= time.time()
    assert {row["slots"] for row in rows} == {4}
    assert rows[-1]["store_budget_bytes"] > rows[-1]["store_bytes"]


def test_no_file_no_end(pool: EpisodePool, tmp_path: Path) -> None:
    with PoolLog(pool, tmp_path / "missing" / "pool.jsonl"):
        pass
    assert not any(tmp_path.iterdir())


def _rows(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

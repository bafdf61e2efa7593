"""A run that goes on from its last checkpoint: the same configuration, and one record of its steps."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from minisandbox_ray.config import TrainConfig
from minisandbox_ray.environments.cache import write_atomically
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task
from minisandbox_ray.tasks.task import dump_tasks
from minisandbox_ray.telemetry.report import read_rows

CONFIG = "config.yaml"
"""In the run directory: what the run was started with."""
_LATEST = "checkpoints/latest_ckpt_global_step.txt"
_MAY_CHANGE = [
    *("resume", "run_dir", "cluster", "tracking", "archives", "evaluation", "skyrl.trainer.max_training_steps"),
    *("skyrl.trainer.epochs", "skyrl.trainer.ckpt_interval", "skyrl.trainer.max_ckpts_to_keep"),
]


def save_config(config: TrainConfig, run_dir: Path) -> None:
    """Keep what the run is started with."""
    write_atomically(run_dir / CONFIG, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).encode())


def prepare_resume(config: TrainConfig, run_dir: Path, tasks: list[Task]) -> int:
    """Cut the run's record back to its last checkpoint; returns that checkpoint's step.

    Raises ConfigError, with everything as it was, as `check_resume` does and for other tasks. What a kill left of a
    later checkpoint is removed.
    """
    step = check_resume(config, run_dir)
    if not _has_tasks(run_dir / "tasks.jsonl", tasks):
        raise ConfigError(f"resume: the tasks are not those that the run was started with, {run_dir / 'tasks.jsonl'}")
    for folder in (run_dir / "checkpoints").glob("global_step_*"):
        if int(folder.name.rpartition("_")[2]) > step:
            shutil.rmtree(folder)
    (run_dir / _LATEST).write_text(str(step))
    path = run_dir / "metrics.jsonl"
    kept = [row for row in read_rows(path) if row["step"] <= step] if path.exists() else []
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
    for evaluation in (run_dir / "evaluations").glob("step-*.jsonl"):
        if int(re.sub(r"\D", "", evaluation.stem) or 0) > step:
            evaluation.unlink()
    return step


def check_resume(config: TrainConfig, run_dir: Path) -> int:
    """The step of the last checkpoint. Raises ConfigError if there is nothing to go on from, or for a key that would
    make another training of it."""
    try:
        saved = yaml.safe_load((run_dir / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"resume: run_dir {run_dir} holds no run of this version: {error.strerror}") from error
    now = config.model_dump(mode="json")
    changed = [key for key in _differing(saved, now, "") if not _may_change(key)]
    if changed:
        raise ConfigError(f"resume: {changed[0]} is not what the run in {run_dir} was started with: leave it as it was")
    step = _last_step(run_dir)
    steps = config.skyrl.get("trainer", {}).get("max_training_steps")
    if steps is not None and steps <= step:
        raise ConfigError(
            f"resume: the run in {run_dir} has come to step {step}, and skyrl.trainer.max_training_steps={steps} "
            "leaves nothing to do"
        )
    return step


def _has_tasks(path: Path, tasks: list[Task]) -> bool:
    try:
        return path.read_text(encoding="utf-8") == dump_tasks(tasks)
    except (OSError, UnicodeDecodeError):
        return False


def _last_step(run_dir: Path) -> int:
    folders = [int(path.name.rpartition("_")[2]) for path in (run_dir / "checkpoints").glob("global_step_*")]
    try:
        step = int((run_dir / _LATEST).read_text())
    except FileNotFoundError:
        step = -1
    except ValueError:  # killed while it was written, which is when the checkpoint is complete
        step = max(folders, default=-1)
    # A checkpoint is written before its step is logged: one without its row would leave a gap in the record.
    path = run_dir / "metrics.jsonl"
    logged = {row["step"] for row in read_rows(path)} if path.exists() else set()
    step = max((each for each in folders if each <= step and each in logged), default=step)
    if step not in folders:
        raise ConfigError(
            f"resume: the run in {run_dir} has no checkpoint: start it anew, with skyrl.trainer.ckpt_interval=N to "
            "have one every N steps"
        )
    return step


def _differing(one: Any, other: Any, prefix: str) -> list[str]:
    """Dotted keys whose values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [*one, *(key for key in other if key not in one)]
        return [
            name
            for key in keys
            for name in _differing(one.get(key), other.get(key), f"{prefix}.{key}" if prefix else key)
        ]
    return [] if one == other else [prefix]


def _may_change(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in _MAY_CHANGE)

"""A run claims its directory, and one that is refused leaves nothing there."""

from pathlib import Path

import pytest

from minisandbox_ray.config import load_config
from minisandbox_ray.environments.cache import locked
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task, save_tasks
from minisandbox_ray.tasks.validation import stamped
from trainer_integration.skyrl.bridge import LOCK, run
from trainer_integration.skyrl.resume import save_config

QUICKSTART = f"config={Path(__file__).parents[3] / 'configs' / 'quickstart.yaml'}"


def _run(run_dir: Path, *overrides: str) -> None:
    run(load_config([QUICKSTART, f"run_dir={run_dir}", *overrides]))


def test_a_directory_that_holds_a_run_is_refused_and_kept(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="holds a run already"):
        _run(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == "{}\n"


def test_what_is_no_directory_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=f"run_dir {path} "):
            _run(path)


def test_tasks_that_never_proved_valid_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path / "cache"))
    task = Task(instance_id="a__1", repo="a", patch="x", environment="a" * 64, FAIL_TO_PASS=["t.py::test"])
    save_tasks([task], tmp_path / "tasks.jsonl")
    overrides = (f"tasks={tmp_path / 'tasks.jsonl'}", "policy=null", "skyrl.trainer.policy.model.path=none")
    with pytest.raises(ConfigError, match=r"task a__1 of 1 never proved valid: run .* or set allow_unvalidated=true"):
        _run(tmp_path / "run", *overrides)
    # What comes next is looked at only where that is allowed, or the task has its mark.
    save_tasks([stamped(task)], tmp_path / "tasks.jsonl")
    for more in ((), ("allow_unvalidated=true",)):
        with pytest.raises(ConfigError, match="train_batch_size"):
            _run(tmp_path / "run", *overrides, *more)


def test_a_refused_run_leaves_nothing(tmp_path: Path):
    for override in ("backend=gpu", "skyrl.trainer.max_training_steps=0", "tasks=missing.jsonl"):
        with pytest.raises(ConfigError):
            _run(tmp_path / "run", override)
        assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_process_trains_is_left_alone(tmp_path: Path):
    run_dir = tmp_path / "run"
    (run_dir / "tmp").mkdir(parents=True)
    config = load_config([QUICKSTART, f"run_dir={run_dir}", "resume=true"])
    save_config(config, run_dir)
    (run_dir / "checkpoints" / "global_step_2").mkdir(parents=True)
    (run_dir / "metrics.jsonl").write_text('{"step": 2}\n')
    (run_dir / "checkpoints" / "latest_ckpt_global_step.txt").write_text("2")
    with locked(run_dir / LOCK), pytest.raises(ConfigError, match="another process trains there"):
        run(config)
    with pytest.raises(ConfigError, match="leaves nothing to do"):
        _run(run_dir, "resume=true", "skyrl.trainer.max_training_steps=1")
    assert (run_dir / "tmp").is_dir()


def test_nothing_to_resume(tmp_path: Path):
    with pytest.raises(ConfigError, match="holds no run"):
        _run(tmp_path / "run", "resume=true")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999"])
def test_seeds_that_no_generator_takes(seed: str):
    with pytest.raises(ConfigError, match="seed"):
        load_config([QUICKSTART, f"seed={seed}"])

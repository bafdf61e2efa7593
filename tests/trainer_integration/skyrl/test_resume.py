"""What a run that goes on checks and cuts back. (That it has the undisturbed curve: test_training.py.)"""

import json
from pathlib import Path

import pytest

from minisandbox_ray.config import TrainConfig
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task, save_tasks
from trainer_integration.skyrl.resume import prepare_resume, save_config

TASKS = [Task(instance_id="a-1", repo="a", FAIL_TO_PASS=["t.py::t"])]


def config(**keys: object) -> TrainConfig:
    return TrainConfig.model_validate({"tasks": "tasks.jsonl", "skyrl": {"trainer": {"max_training_steps": 9}}, **keys})


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Killed in step 5, while the checkpoint of step 4 was written."""
    save_config(config(), tmp_path)
    save_tasks(TASKS, tmp_path / "tasks.jsonl")
    rows = [json.dumps({"step": step, "reward/avg_raw_reward": 0.5}) for step in range(1, 5)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows, '{"step": 5, "rew']))
    for step in (1, 2, 4):
        (tmp_path / f"checkpoints/global_step_{step}").mkdir(parents=True)
        (tmp_path / f"evaluations/step-{step}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / f"evaluations/step-{step}.jsonl").write_text("{}\n")
    (tmp_path / "checkpoints/latest_ckpt_global_step.txt").write_text("2")
    return tmp_path


def steps(run_dir: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_record_is_cut_back_to_the_last_whole_checkpoint(run_dir: Path) -> None:
    more = config(skyrl={"trainer": {"max_training_steps": 20}}, tracking="console", resume=True)
    assert prepare_resume(more, run_dir, TASKS) == 2
    assert steps(run_dir) == [1, 2]
    assert sorted(path.name for path in run_dir.glob("checkpoints/global_step_*")) == ["global_step_1", "global_step_2"]
    assert sorted(path.name for path in run_dir.glob("evaluations/*")) == ["step-1.jsonl", "step-2.jsonl"]


def test_killed_while_the_number_was_written_the_newest_checkpoint_is_whole(run_dir: Path) -> None:
    (run_dir / "checkpoints/latest_ckpt_global_step.txt").write_text("")
    assert prepare_resume(config(), run_dir, TASKS) == 4
    assert steps(run_dir) == [1, 2, 3, 4]


def test_a_checkpoint_whose_step_was_not_logged_any_more_is_left_for_the_one_before(run_dir: Path) -> None:
    (run_dir / "checkpoints/latest_ckpt_global_step.txt").write_text("4")
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    (run_dir / "metrics.jsonl").write_text("\n".join(lines[:3]))
    assert prepare_resume(config(), run_dir, TASKS) == 2
    assert steps(run_dir) == [1, 2]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"seed": 3}, "seed is not what"),
        ({"episode": {"max_turns": 7}}, "episode.max_turns is not"),
        ({"skyrl": {"trainer": {"train_batch_size": 2}}}, "skyrl.trainer.train_batch_size is not"),
    ],
)
def test_another_training_is_refused_and_nothing_is_lost(run_dir: Path, keys: dict, told: str) -> None:
    before = (run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=told):
        prepare_resume(config(**keys), run_dir, TASKS)
    with pytest.raises(ConfigError, match="the tasks are not those"):
        prepare_resume(config(), run_dir, [TASKS[0].model_copy(update={"repo": "b"})])
    assert (run_dir / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("steps", [1, 2])
def test_fewer_steps_than_were_made_are_refused_and_nothing_is_lost(run_dir: Path, steps: int) -> None:
    before = (run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=f"has come to step 2, and .*max_training_steps={steps} leaves nothing to do"):
        prepare_resume(config(skyrl={"trainer": {"max_training_steps": steps}}), run_dir, TASKS)
    assert (run_dir / "metrics.jsonl").read_bytes() == before


def test_a_run_without_checkpoints_or_config_is_one_line(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (run_dir / "checkpoints/latest_ckpt_global_step.txt").unlink()
    with pytest.raises(ConfigError, match="has no checkpoint: start it anew"):
        prepare_resume(config(), run_dir, TASKS)
    with pytest.raises(ConfigError, match="holds no run"):
        prepare_resume(config(), tmp_path_factory.mktemp("none"), TASKS)

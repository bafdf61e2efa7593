"""Ray jobs on a cluster with token authentication: batches and trainings that end, are stopped, or die."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rollout.calc import FIX

from minisandbox_ray.tasks import Task

from .head import Head, mounts, processes_of, sandbox_groups, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def record(tasks: list[Task], actions: list[str], path: Path) -> Path:
    """Actions as ``rollout --policy FILE`` takes them."""
    rows = [{"instance_id": task.instance_id, "actions": actions} for task in tasks]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def directories() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).iterdir()}


@pytest.fixture
def nothing_left(head: Head) -> Iterator[None]:
    """What the test's jobs left behind, on a cluster that goes on."""
    directory = Path(head.environment["RAY_TMPDIR"])
    before, mounted, temporary = set(processes_of(directory)), mounts(), directories()
    seen: set[int] = set()

    def ours() -> list[str]:
        now = processes_of(directory)
        seen.update(pid for pid, _ in now)
        return [line for key, line in now.items() if key not in before and not line.startswith("ray::IDLE")]

    ours()
    yield
    assert wait_until(lambda: not ours(), 30), ours()
    assert wait_until(lambda: not sandbox_groups(seen - {pid for pid, _ in before}), 10)
    assert mounts() == mounted
    assert directories() == temporary
    assert head.pools() == {}


def start_slow_batch(head: Head, tasks: list[Task], file: Path, directory: Path, job: str) -> set[int]:
    """A job whose sandboxes are all busy for long; -> the processes that it added, sandboxes included."""
    before = set(processes_of(Path(head.environment["RAY_TMPDIR"])))
    slow = record(tasks, ["```bash\nsleep 600\n```", "submit"], directory / "slow.jsonl")
    rollout = ["python", "-m", "minisandbox_ray", "rollout", file, "--policy", slow, "--samples", "2"]
    submitted = head.submit(job, *rollout, "--output", directory / "out", wait=False)
    assert submitted.returncode == 0, submitted.stderr

    def sleepers() -> list[str]:
        return [line for line in processes_of(Path(head.environment["RAY_TMPDIR"])).values() if line == "sleep 600"]

    assert wait_until(lambda: len(sleepers()) == 4), head.run("ray", "job", "logs", job).stdout
    return {pid for pid, _ in set(processes_of(Path(head.environment["RAY_TMPDIR"]))) - before}


@pytest.mark.usefixtures("nothing_left")
def test_a_batch_runs_as_a_job_and_no_sandbox_sees_the_token(
    head: Head, tasks: list[Task], file: Path, tmp_path: Path
) -> None:
    token = Path(head.environment["RAY_AUTH_TOKEN_PATH"])
    look = f"```bash\nenv; cat {token}; cat /proc/*/environ | tr '\\0' '\\n'\n```"
    actions = record(tasks, [look, f"```bash\n{FIX}\n```", "submit"], tmp_path / "actions.jsonl")
    rollout = ["python", "-m", "minisandbox_ray", "rollout", file, "--policy", actions, "--output", tmp_path / "out"]
    job = head.submit("batch", *rollout)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "2 episodes: 2 resolved, 0 unresolved, 2 played" in job.stdout
    for line in (tmp_path / "out" / "trajectories.jsonl").read_text().splitlines():
        seen = json.loads(line)["turns"][0]["observation"]
        assert "PATH=" in seen
        assert "No such file" in seen
        assert token.read_text() not in seen
        assert "RAY_" not in seen


def test_nobody_gets_in_without_the_token(head: Head, tmp_path: Path) -> None:
    stranger = {"RAY_AUTH_TOKEN_PATH": "", "HOME": str(tmp_path)}
    asked = head.run("python", "-m", "minisandbox_ray", "status", **stranger)
    assert (asked.returncode, asked.stdout) == (2, "")
    (line,) = asked.stderr.splitlines()
    assert line.startswith(f"minisandbox_ray status: no Ray cluster at {head.address}: ")
    assert "token" in line
    assert head.run("ray", "job", "submit", "--", "true", **stranger).returncode != 0
    (tmp_path / "token").write_text("f" * 64)
    refused = head.run("ray", "job", "list", RAY_AUTH_TOKEN_PATH=str(tmp_path / "token"))
    assert refused.returncode != 0
    assert "token" in refused.stderr


@pytest.mark.usefixtures("nothing_left")
def test_a_stopped_job_leaves_nothing_and_the_cluster_goes_on(
    head: Head, tasks: list[Task], file: Path, tmp_path: Path
) -> None:
    added = start_slow_batch(head, tasks, file, tmp_path, "stopped")
    assert sandbox_groups(added) or os.geteuid() != 0
    stopped = head.run("ray", "job", "stop", "stopped")
    assert stopped.returncode == 0, stopped.stderr
    assert f"go on with --output {tmp_path / 'out'}" in head.run("ray", "job", "logs", "stopped").stdout
    assert not sandbox_groups(added)
    rollout = ["python", "-m", "minisandbox_ray", "rollout", file, "--policy", "gold", "--output", tmp_path / "after"]
    after = head.submit("after", *rollout)
    assert after.returncode == 0, after.stdout + after.stderr
    assert "2 resolved" in after.stdout


@pytest.mark.usefixtures("nothing_left")
def test_a_driver_that_is_killed_leaves_nothing(head: Head, tasks: list[Task], file: Path, tmp_path: Path) -> None:
    start_slow_batch(head, tasks, file, tmp_path, "killed")
    now = processes_of(Path(head.environment["RAY_TMPDIR"]))
    (driver,) = [pid for (pid, _), line in now.items() if line.startswith("python -m minisandbox_ray rollout")]
    os.kill(driver, signal.SIGKILL)


TRAINING = """\
name: tiny
tracking: console
tasks: {file}
episode: {{max_turns: 1, command_timeout: 20, episode_timeout: 120}}
grading: {{timeout: 30}}
skyrl:
  trainer:
    max_training_steps: {steps}
    epochs: {steps}
    train_batch_size: 2
    policy_mini_batch_size: 2
    max_prompt_length: 128
    policy: {{model: {{path: {policy}}}}}
    algorithm: {{advantage_estimator: grpo, use_kl_loss: false}}
  generator:
    n_samples_per_prompt: 2
    max_input_length: 128
    sampling_params: {{max_generate_length: 1}}
"""


@pytest.mark.usefixtures("nothing_left")
def test_training_as_a_job_that_ends_and_one_that_is_stopped(
    head: Head, tasks: list[Task], file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("skyrl", reason="SkyRL is not installed")
    from minisandbox_ray.config import PolicyConfig, PromptConfig
    from minisandbox_ray.telemetry.temporary import temporary_files_in

    with temporary_files_in(tmp_path / "torch"):  # PyTorch leaves a directory in this process's, too
        from trainer_integration.skyrl.policy import build_policy

        build_policy(
            PolicyConfig(width=32, words=20),
            prompts=[PromptConfig().messages(task.problem_statement) for task in tasks],
            commands=[FIX, "true", "false"],
            context=129,
            seed=0,
            path=tmp_path / "policy",
        )

    def train(steps: int, wait: bool) -> Path:
        run_dir, config = tmp_path / f"run-{steps}", tmp_path / f"{steps}.yaml"
        config.write_text(TRAINING.format(file=file, policy=tmp_path / "policy", steps=steps))
        command = ["python", "-m", "minisandbox_ray.train", f"config={config}", f"run_dir={run_dir}"]
        job = head.submit(f"train-{steps}", *command, wait=wait)
        assert job.returncode == 0, job.stdout + job.stderr
        return run_dir

    def rows(run_dir: Path) -> int:
        metrics = run_dir / "metrics.jsonl"
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    done = train(2, wait=True)
    assert rows(done) == 2
    assert (done / "report.png").exists()
    endless = train(100_000, wait=False)
    assert wait_until(lambda: rows(endless) >= 3), head.run("ray", "job", "logs", "train-100000").stdout
    stopped = head.run("ray", "job", "stop", "train-100000")
    assert stopped.returncode == 0, stopped.stderr
    assert not {"ray", "tmp"} & {path.name for path in endless.iterdir()}

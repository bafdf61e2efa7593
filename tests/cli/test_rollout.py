"""A batch of episodes, as a person starts, interrupts and goes on with it."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from rollout.calc import FIX

from minisandbox_ray.cli.main import main
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout import Command, parse_action
from minisandbox_ray.rollout.policies import HARMLESS, choose_policy
from minisandbox_ray.rollout.trajectory import Trajectory, TrajectoryFile
from minisandbox_ray.tasks import Task, save_tasks


def rows(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "trajectories.jsonl").read_text().splitlines()]


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the verb says to bad input."""
    capsys.readouterr()
    assert main(["rollout", *map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1), said
    return said.err


def test_batches(
    cluster: None, tasks: list[Task], file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = [
        "rollout",
        str(file),
        "--policy",
        "gold",
        "--samples",
        "2",
        "--seed",
        "5",
        "--output",
        str(tmp_path / "gold"),
    ]
    assert main(gold) == 0
    assert re.match("4 episodes: 4 resolved, 0 unresolved, 4 played in", capsys.readouterr().out)
    found = rows(tmp_path / "gold")
    assert sorted((row["instance_id"], row["sample"], row["seed"]) for row in found) == [
        (task.instance_id, sample, 5 + sample) for task in tasks for sample in range(2)
    ]
    for row in found:
        assert (row["schema"], row["policy"], row["reward"], row["resolved"]) == (1, "gold", 1.0, True)
        assert (row["failure_owner"], row["replay"]["count"], row["environment"]) == (None, 0, tasks[0].environment)
        assert "+    return a + b" in row["diff"]
        assert [turn["exit_code"] for turn in row["turns"]] == [0, None]
        assert row["graded"]["resolved"]
        assert row["node"]
        assert row["seconds"].keys() == {
            *("total", "wait", "reset", "policy", "command", "diff", "grade", "replay"),
        }
        assert row["versions"].keys() == {"minisandbox_ray", "ray", "python"}
    # What is there is not played again, and not mixed with anything else.
    assert main(gold) == 0
    assert "4 resolved, 0 unresolved, 0 played in" in capsys.readouterr().out
    assert rows(tmp_path / "gold") == found
    for other in (["--policy", "empty", "--seed", "5"], ["--policy", "gold", "--seed", "6"]):
        assert "choose another --output" in complaint(capsys, file, *other, "--output", tmp_path / "gold")

    # Nobody's environment: a failure of the cluster, which a rerun tries again.
    lost = tasks[1].model_copy(update={"environment": "0" * 64})
    save_tasks([tasks[0], lost], tmp_path / "lost.jsonl")
    empty = ["rollout", str(tmp_path / "lost.jsonl"), "--policy", "empty", "--output", str(tmp_path / "empty")]
    for attempt in (1, 2):
        assert main(empty) == 0
        assert "0 resolved, 1 unresolved, 1 failed (1 cluster; run it again" in capsys.readouterr().out
        assert len(rows(tmp_path / "empty")) == 1 + attempt
    failure = rows(tmp_path / "empty")[-1]
    assert (failure["instance_id"], failure["failure_owner"], failure["turns"]) == ("calc__2", "cluster", [])
    assert failure["failure"]

    # What gold did, done again from its record; one task only.
    again = ["rollout", str(file), "--limit", "1", "--samples", "2", "--concurrency", "1"]
    again += ["--policy", str(tmp_path / "gold" / "trajectories.jsonl"), "--output", str(tmp_path / "again")]
    assert main(again) == 0
    assert "2 episodes: 2 resolved" in capsys.readouterr().out
    by_sample = {row["sample"]: row for row in found if row["instance_id"] == tasks[0].instance_id}
    for row in rows(tmp_path / "again"):
        assert [turn["action"] for turn in row["turns"]] == [t["action"] for t in by_sample[row["sample"]]["turns"]]
        assert row["diff"] == by_sample[row["sample"]]["diff"]

    # The bounds of episodes come from a training configuration.
    (tmp_path / "config.yaml").write_text(f"tasks: {file}\nepisode: {{max_turns: 1}}\n")
    short = ["rollout", str(tmp_path / "config.yaml"), "--policy", "random", "--output", str(tmp_path / "short")]
    assert main(short) == 0
    assert [len(row["turns"]) for row in rows(tmp_path / "short")] == [1, 1]


@pytest.mark.slow
def test_killed_and_stopped_and_gone_on_with(tasks: list[Task], file: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    actions = [f"```bash\nsleep 1\n{FIX}\n```", "submit"]
    recorded = [{"instance_id": task.instance_id, "actions": actions} for task in tasks]
    (tmp_path / "slow.jsonl").write_text("".join(json.dumps(row) + "\n" for row in recorded))
    command = [sys.executable, "-m", "minisandbox_ray", "rollout", str(file), "--samples", "4", "--concurrency", "2"]
    command += ["--policy", str(tmp_path / "slow.jsonl"), "--output", str(output), "--address", "local"]
    temporary = Path(tempfile.mkdtemp())
    environment = os.environ | {"TMPDIR": str(temporary)}

    def played() -> int:
        path = output / "trajectories.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def stop(number: int, at: int) -> tuple[int, str]:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
        deadline = time.monotonic() + 120
        while played() < at and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        return process.returncode, said

    assert stop(signal.SIGKILL, 1)[0] == -signal.SIGKILL
    whole = played()
    with (output / "trajectories.jsonl").open("a") as torn:
        torn.write('{"schema": 1, "instance_id": "calc__2", "sam')
    status, said = stop(signal.SIGTERM, whole + 1)
    assert status == 143
    assert f"go on with --output {output}" in said
    assert "Traceback" not in said
    status, said = stop(signal.SIGINT, played() + 1)
    assert (status, "Traceback" in said) == (130, False)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "8 episodes: 8 resolved, 0 unresolved" in done.stdout
    assert sorted((row["instance_id"], row["sample"]) for row in rows(output)) == [
        (task.instance_id, sample) for task in tasks for sample in range(4)
    ]
    deadline = time.monotonic() + 20
    while list(temporary.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert list(temporary.iterdir()) == []  # of the clusters, the killed one's too
    assert sorted(path.name for path in output.iterdir()) == ["pool.jsonl", "report.json", "trajectories.jsonl"]


def test_bad_input_is_one_line_and_status_2(
    tasks: list[Task], file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hidden.jsonl").write_text(tasks[0].hide_gold().model_dump_json() + "\n")
    (tmp_path / "no-environment.jsonl").write_text(
        tasks[0].model_copy(update={"environment": ""}).model_dump_json() + "\n"
    )
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "other.jsonl").write_text('{"instance_id": "other", "actions": ["submit"]}\n')
    (tmp_path / "bad.jsonl").write_text('{"instance_id": "other", "actions": ["submit"]}\n{"instance_id": "x"}\n')
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "trajectories.jsonl").write_text('{"reward": 1}\n')
    (tmp_path / "short.yaml").write_text(f"tasks: {file}\ncluster: {{lease_seconds: 60}}\n")
    out = ["--output", tmp_path / "out"]
    for arguments, said in [
        ([tmp_path / "missing.jsonl", "--policy", "gold"], "cannot read the task file"),
        ([tmp_path / "none.jsonl", "--policy", "gold"], "holds no tasks"),
        ([tmp_path / "no-environment.jsonl", "--policy", "gold"], "names no environment"),
        ([tmp_path / "hidden.jsonl", "--policy", "gold"], "its gold fix is hidden"),
        ([tmp_path / "short.yaml", "--policy", "gold"], "cluster.lease_seconds=60"),
        ([file, "--policy", "golden"], "unknown policy golden"),
        ([file, "--policy", tmp_path / "nowhere.jsonl"], "cannot read the file of actions"),
        ([file, "--policy", tmp_path / "other.jsonl"], f"no actions for sample 0 of task {tasks[0].instance_id}"),
        ([file, "--policy", tmp_path / "bad.jsonl"], "line 2: no recording"),
        ([file, "--policy", tmp_path / "binary.jsonl"], "line 1: no recording"),
        ([file, "--policy", "gold", "--samples", "0"], "--samples must be at least 1"),
        ([file, "--policy", "gold", "--seed", "-1"], "--seed must be from 0 to 2**32 - 1, not -1"),
        ([file, "--policy", "gold", "--limit", "-1"], "--limit must be at least 1"),
        ([file, "--policy", "gold", "--concurrency", "0"], "--concurrency must be at least 1"),
    ]:
        assert said in complaint(capsys, *arguments, *out), arguments
    assert not (tmp_path / "out").exists()
    assert "line 1: no trajectory" in complaint(capsys, file, "--policy", "gold", "--output", tmp_path / "foreign")
    assert "is no directory" in complaint(capsys, file, "--policy", "gold", "--output", file)


def trajectory(**fields: object) -> Trajectory:
    made: dict = dict.fromkeys(("environment", "diff", "failure", "node"), "")
    made |= {"instance_id": "one", "sample": 0, "seed": 0, "policy": "gold", "turns": [], "reward": 0.0}
    made |= {"resolved": False, "graded": None, "failure_owner": None, "replay": None, "seconds": {}, "versions": {}}
    return Trajectory.model_validate(made | fields)


def test_file_of_trajectories(tmp_path: Path) -> None:
    with TrajectoryFile(tmp_path) as first:
        first.append(trajectory(failure_owner="cluster", failure="lost"))
        first.append(trajectory(instance_id="two", diff="\udc80"))
        with pytest.raises(ConfigError, match="another process"):
            TrajectoryFile(tmp_path)
    with TrajectoryFile(tmp_path) as again:
        assert [row.is_finished for row in again.last.values()] == [False, True]
        again.append(trajectory(failure_owner="agent"))
        assert again.last["one", 0].is_finished
    lines = (tmp_path / "trajectories.jsonl").read_text().splitlines()
    assert Trajectory.model_validate(json.loads(lines[1])).diff == "\udc80"
    assert len(lines) == 3


def test_random_policy_is_seeded_and_harmless() -> None:
    task = Task(instance_id="one", repo="one", FAIL_TO_PASS=["a"])
    _, make, _ = choose_policy("random", [task], 1)

    def actions(sample: int, seed: int) -> list[str]:
        policy = make()
        policy.reset(task, sample, seed)
        return [policy.act("") for _ in range(5)]

    assert actions(0, 1) == actions(0, 1)
    assert len({str(actions(sample, 1 + sample)) for sample in range(8)}) > 4
    for action in actions(0, 1):
        parsed = parse_action(action)
        assert not isinstance(parsed, Command) or parsed.text in HARMLESS
    assert not isinstance(parse_action(actions(3, 4)[-1]), Command)

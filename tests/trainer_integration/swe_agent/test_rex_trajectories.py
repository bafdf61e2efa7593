"""SWE-agent's trajectory files, taken over with the grades of their patches."""

import json
from pathlib import Path
from typing import Any

import pytest

from minisandbox_ray.rollout.actions import Call, parse_action
from minisandbox_ray.rollout.export import chat, read_trajectories
from minisandbox_ray.rollout.trajectory import Trajectory, TrajectoryFile
from trainer_integration.swe_agent.__main__ import main


def told(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], "message_type": "observation", **fields}


def did(thought: str, action: str, name: str = "", **arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "id": "c", "function": {"name": name, "arguments": json.dumps(arguments)}}
    calls = [call] if name else None
    return {"role": "assistant", "content": thought, "thought": thought, "action": action, "tool_calls": calls}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """(SWE-agent's output, what graded it)"""
    history = [
        {"role": "system", "content": "You repair."},
        told("An example.", is_demo=True),
        did("As here.", "ls") | {"is_demo": True},
        told("Sums are wrong."),
        did(
            "Look.", "str_replace_editor view /testbed/a.py", "str_replace_editor", command="view", path="/testbed/a.py"
        ),
        told("OBSERVATION:\n     1\treturn a - b", role="tool"),
        did("Mend.", "sed -i s/-/+/ a.py"),
        told("OBSERVATION:\n"),
        did("Done.", "submit", "submit"),
    ]
    written = {"history": history, "trajectory": [{"execution_time": seconds} for seconds in (0.5, 0.25, 0.125)]}
    (tmp_path / "swe" / "a__1").mkdir(parents=True)
    (tmp_path / "swe" / "a__1" / "a__1.traj").write_text(json.dumps(written))
    row = Trajectory.model_validate(
        {
            "instance_id": "a__1",
            "sample": 0,
            "seed": 0,
            "environment": "0" * 64,
            "policy": "preds.json@0",
            "turns": [],
            "diff": "diff --git a/a.py b/a.py\n",
            "reward": 1.0,
            "resolved": True,
            "graded": {"resolved": True},
            "failure_owner": None,
            "failure": "",
            "replay": None,
            "seconds": {},
            "node": "",
            "versions": {},
        }
    )
    with TrajectoryFile(tmp_path / "graded") as file:
        file.append(row)
    return tmp_path / "swe", tmp_path / "graded"


def test_its_turns_and_our_grade(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-traj", *map(str, files), "--out", str(tmp_path / "out")]) == 0
    assert "1 trajectories, 1 resolved" in capsys.readouterr().out
    (trajectory,) = read_trajectories([tmp_path / "out"])
    assert (trajectory.prompt, trajectory.resolved, trajectory.reward) == ("Sums are wrong.", True, 1.0)
    look, mend, submit = trajectory.turns
    call = parse_action(look.action, "tools")
    assert isinstance(call, Call)
    assert call.tool.name == "str_replace_editor"
    assert look.observation == "OBSERVATION:\n     1\treturn a - b"
    assert mend.action == "Mend.\n\n```bash\nsed -i s/-/+/ a.py\n```"
    assert (submit.observation, [turn.seconds for turn in trajectory.turns]) == ("", [0.5, 0.25, 0.125])
    roles = [message["role"] for message in chat(trajectory)["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]


def test_what_is_wrong_is_one_line(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*arguments: Path) -> str:
        assert main(["import-traj", *map(str, arguments), "--out", str(tmp_path / "out")]) == 2
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1)
        return said.err

    swe, graded = files
    assert "cannot read the trajectory" in complaint(tmp_path, graded)
    (swe / "a__1" / "a__1.traj").write_text('{"history": []}')
    assert "no trajectory of SWE-agent 1.x: KeyError 'trajectory'" in complaint(swe, graded)
    assert "cannot read" in complaint(swe, tmp_path / "nowhere")

"""What agents and data sets wrote is shown, and neither obeyed nor taken for markup."""

from pathlib import Path

import pytest

from minisandbox_ray.cli.main import main
from minisandbox_ray.cli.terminal import plain
from minisandbox_ray.rollout.trajectory import Trajectory, Turn

HOSTILE = "a\x1b]0;title\x07\x1b[2Jb \u202egnp \x9b31m\x00 [/nope] [bold]c"


def test_plain() -> None:
    assert plain("naïve 👩\u200d🔬\n\ttab") == "naïve 👩\u200d🔬\n\ttab"
    assert plain(HOSTILE) == "a\\x1b]0;title\\x07\\x1b[2Jb \\u202egnp \\x9b31m\\x00 [/nope] [bold]c"
    assert plain("\udc80\r\u2028") == "\\udc80\\r\\u2028"


@pytest.mark.parametrize("more", [[], ["--task", HOSTILE]])
def test_trajectories(tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    turn = Turn(action=HOSTILE, observation=HOSTILE, exit_code=0, seconds=1.0)
    row = Trajectory(
        instance_id=HOSTILE,
        task_digest="0" * 64,
        sample=0,
        seed=0,
        environment="0" * 64,
        policy="x",
        prompt=HOSTILE,
        turns=[turn],
        diff=f"+{HOSTILE}\n",
        reward=0.0,
        resolved=False,
        failure_owner="task",
        failure=HOSTILE,
        seconds={"total": 1.0},
        versions={},
        replay=None,
        graded=None,
        node="",
    )
    file = tmp_path / "trajectories.jsonl"
    file.write_bytes(row.line())
    assert main(["trajectories", "show", str(file), *more]) == 0
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x00", "\x9b", "\u202e"} & set(shown)
    assert "[/nope]" in "".join(shown.split())
    assert main(["trajectories", "show", str(file), "--task", "\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err

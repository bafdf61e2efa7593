"""Trajectories, chosen from and written in other forms."""

import json
from functools import partial
from pathlib import Path

import pytest
from environments.conftest import filled, on_small_disk

from minisandbox_ray.cli.main import main
from minisandbox_ray.rollout.trajectory import Trajectory, TrajectoryFile, Turn


def trajectory(instance_id: str, sample: int, resolved: bool, **fields: object) -> Trajectory:
    name = instance_id.partition("__")[0]
    turns = [
        Turn(action="Look.\n\n```bash\ncat [a].py\n```", observation="x" * 3000, exit_code=0, seconds=0.5),
        Turn(action="```bash\nsubmit\n```", observation="", seconds=1.0),
    ]
    given = {
        "instance_id": instance_id,
        "sample": sample,
        "seed": sample,
        "environment": "0" * 64,
        "policy": "p",
        "repo": name,
        "prompt": f"Repair {instance_id}",
        "turns": turns,
        "diff": "diff --git a/[a].py b/[a].py\n",
        "reward": float(resolved),
        "resolved": resolved,
        "graded": {"resolved": resolved, "reason": "" if resolved else "1 of 1 FAIL_TO_PASS tests still fail"},
        "failure_owner": None,
        "failure": "",
        "replay": None,
        "seconds": {"total": 2.0},
        "node": "10.0.0.1",
        "versions": {},
    }
    return Trajectory.model_validate(given | fields)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    broken = {"failure_owner": "sandbox", "failure": "it was killed", "turns": [], "graded": None}
    with TrajectoryFile(tmp_path / "run") as file:
        file.append(trajectory("a__1", 0, False, **broken))
        file.append(trajectory("a__1", 1, True))
        file.append(trajectory("a__1", 0, True))  # tried again
        file.append(trajectory("a__2", 0, True))
        file.append(trajectory("b__1", 0, False))
        file.append(trajectory("b__2", 0, False, **broken))
    with (tmp_path / "run" / "trajectories.jsonl").open("a") as torn:
        torn.write('{"schema": 1, "instance_id": "b__3"')
    return tmp_path / "run"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], ["a__1 1", "a__1 0", "a__2 0", "b__1 0"]),
        (["--resolved"], ["a__1 1", "a__1 0", "a__2 0"]),
        (["--unresolved"], ["b__1 0"]),
        (["--per-task", "1"], ["a__1 1", "a__2 0", "b__1 0"]),
        (["--resolved", "--per-repository", "2"], ["a__1 1", "a__1 0"]),
        (["--max-turns", "2", "--max-chars", "4000", "--unresolved"], ["b__1 0"]),
    ],
)
def test_filters(output: Path, filters: list[str], expected: list[str], tmp_path: Path) -> None:
    out = tmp_path / "chosen.jsonl"
    assert main(["trajectories", "filter", str(output), "--out", str(out), *filters]) == 0
    assert [f"{row['instance_id']} {row['sample']}" for row in lines(out)] == expected
    assert main(["trajectories", "filter", str(out), "--out", str(tmp_path / "again.jsonl")]) == 0
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()


def test_nothing_that_fits_writes_nothing(output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["trajectories", "filter", str(output), "--out", str(out), "--max-chars", "100"]) == 1
    assert "no trajectory fits" in capsys.readouterr().out
    assert not out.exists()


def test_chat_messages_end_with_the_last_action(output: Path, tmp_path: Path) -> None:
    out = tmp_path / "sft.jsonl"
    file = str(output / "trajectories.jsonl")
    assert main(["trajectories", "export-sft", file, "--out", str(out), "--resolved", "--system", "You repair."]) == 0
    first = lines(out)[0]
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert [message["content"] for message in first["messages"]][:2] == ["You repair.", "Repair a__1"]
    assert first["messages"][-1]["content"] == "```bash\nsubmit\n```"
    assert (first["instance_id"], first["sample"], first["reward"]) == ("a__1", 1, 1.0)


def test_swe_agent_s_shape(output: Path, tmp_path: Path) -> None:
    assert main(["trajectories", "export-traj", str(output), "--out", str(tmp_path / "traj")]) == 0
    files = sorted(path.name for path in (tmp_path / "traj").iterdir())
    assert files == ["a__1.0.traj", "a__1.1.traj", "a__2.0.traj", "b__1.0.traj"]
    written = json.loads((tmp_path / "traj" / "a__1.0.traj").read_text())
    assert [step["action"] for step in written["trajectory"]] == ["cat [a].py", "submit"]
    assert written["trajectory"][0]["thought"] == "Look."
    assert written["info"]["submission"].startswith("diff --git")
    assert written["info"]["exit_status"] == "submitted"


def test_show_lists_or_prints_one(
    output: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["trajectories", "show", str(output)]) == 0
    listed = capsys.readouterr().out
    assert listed.count("resolved") == 4
    assert "failed (sandbox)" in listed
    assert main(["trajectories", "show", str(output), "--task", "a__1", "--sample", "0"]) == 0
    shown = capsys.readouterr().out
    for text in ("Repair a__1", "cat [a].py", "1000 characters more: --full", "diff --git a/[a].py", "reward 1"):
        assert text in shown
    assert main(["trajectories", "show", str(output), "--task", "b__1", "--full"]) == 0
    assert "characters more" not in capsys.readouterr().out
    assert main(["trajectories", "show", str(output), "--resolved", "--per-repository", "1"]) == 0
    assert "b__" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "nowhere.jsonl"], "cannot read nowhere.jsonl: No such file"),
        (["show", "RUN", "--task", "c"], "no task c among"),
        (["show", "RUN", "--task", "a__1", "--sample", "9"], "no sample 9 of task a__1"),
        (["filter", "RUN", "--out", "/proc/no/such", "--per-task", "0"], "--per-task must be at least 1"),
        (["filter", "RUN", "--out", "/proc/no/such"], "cannot write /proc/no/such"),
        (["filter", "RUN", "--out", "RUN"], "is a directory, expected a file"),
        (["filter", "BAD", "--out", "OUT"], "line 1: no trajectory: schema: Input should be 1"),
    ],
)
def test_bad_input_is_one_line(
    output: Path, arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(trajectory("a__1", 0, True).line().replace(b'"schema": 1', b'"schema": 99'))
    places = {"RUN": str(output), "BAD": str(bad), "OUT": str(tmp_path / "out.jsonl")}
    assert main(["trajectories", *(places.get(argument, argument) for argument in arguments)]) == 2
    shown = capsys.readouterr()
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert said in shown.err
    assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("is_ended", [True, False])
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("", 1, "no trajectory in some.jsonl\n"),
        ("null", 2, "some.jsonl, line 1: no trajectory: Input should be"),
        ("garbage", 2, "some.jsonl, line 1: no trajectory\n"),
        ('{"a": 1}', 2, "some.jsonl, line 1: no trajectory: instance_id: Field required"),
        ("[" * 100_000, 2, "some.jsonl, line 1: no trajectory\n"),
    ],
)
def test_a_file_without_a_trajectory_is_told(
    line: str,
    is_ended: bool,
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some.jsonl").write_text(line + "\n" * is_ended)
    assert main(["trajectories", "show", "some.jsonl"]) == status
    shown = capsys.readouterr()
    assert said in (shown.out if status == 1 else shown.err) and len((shown.out + shown.err).splitlines()) == 1


def test_a_trajectory_without_the_end_of_its_line_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some.jsonl").write_bytes(trajectory("a__1", 0, True).line().strip())
    assert main(["trajectories", "show", str(tmp_path / "some.jsonl")]) == 0
    assert "a__1" in capsys.readouterr().out


def _filter_to_a_full_disk(disk: Path, output: Path) -> None:
    (disk / "out").mkdir()
    with filled(disk):
        assert main(["trajectories", "filter", str(output), "--out", str(disk / "out.jsonl")]) == 2
        assert main(["trajectories", "export-traj", str(output), "--out", str(disk / "out")]) == 1
        assert sorted(path.name for path in disk.rglob("*")) == ["ballast", "out"]


def test_a_full_disk_keeps_no_part(output: Path, tmp_path: Path) -> None:
    on_small_disk(partial(_filter_to_a_full_disk, output=output), tmp_path, 4)

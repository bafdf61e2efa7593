"""Names that no file can have, given where a file is wanted."""

from pathlib import Path

import pytest

from minisandbox_ray.cli.main import main
from minisandbox_ray.train import main as train

LONG = "a" * 300
CONFIGURATION = Path(__file__).parents[2] / "configs" / "cpu" / "grpo.yaml"


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", LONG],
        ["task", "new", LONG],
        ["trajectories", "show", LONG],
        ["build", LONG, "--out", "x.jsonl"],
        ["validate", LONG],
        ["evaluate", LONG, LONG],
        ["shell", "--env", LONG],
        ["factory", LONG, "--out", "x.jsonl"],
    ],
)
def test_too_long(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert LONG in said


def test_too_long_for_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train([f"config={CONFIGURATION}", f"run_dir={tmp_path / LONG}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert LONG[:100] in said

"""The parts of benchmarks/training.py that take no training."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """As it is for `python benchmarks/training.py`, also where a package of tests has the name of a file there."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = [path.stem for path in BENCHMARKS.iterdir()]
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    import training

    yield training
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(hidden)


def test_a_training_in_figures(training: Any) -> None:
    rows = [
        {
            "reward/avg_raw_reward": step / 10,
            "environment/episodes": 4,
            "environment/failures": step % 2,
            "timing/step": 2.0,
        }
        for step in range(10)
    ]
    found = training.summary(rows)
    assert (found["first"], found["final"]) == pytest.approx((0.05, 0.7))
    assert (found["steps"], found["episodes"], found["failures"], found["seconds"]) == (10, 40, 5, 20.0)
    assert training.gap([0.1, 0.5, 0.9], [0.1, 0.25, 1.0]) == 0.25
    assert training.reached(training.timed(rows)) == float("inf")
    rows[6]["reward/avg_raw_reward"] = 1.7
    assert training.timed(rows)[1] == (4.0, 0.1)
    assert training.reached(training.timed(rows)) == 16.0  # (0.5 + 1.7 + 0.7) / 3
    assert set(training.BARS) >= {"final_grpo", "final_gym", "final_async_grpo", "fault_gap", "resume_gap"}


KILLING = """
import training

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Sandbox, SandboxSpec

training.keep_orphans()
boxes = [Sandbox(SandboxSpec()) for _ in range(8)]
for box in boxes:
    assert box.run("true").exit_code == 0
training.Killer(0, seed=0).once()
for box in boxes:
    assert box.run("true").exit_code == 0
killer = training.Killer(0.5, seed=0)
for _ in range(20):  # each has one chance
    killer.once()
assert 0 < killer.killed < 8, killer.killed
failed = 0
for box in boxes:
    try:
        box.run("true")
    except SandboxError:
        failed += 1
    box.close()
print(failed == killer.killed)
"""


def test_a_share_of_the_sandboxes_is_killed(sandboxes: None) -> None:
    """In a process of its own, as it keeps what detaches itself."""
    path = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent)])
    command = [sys.executable, "-c", KILLING]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True\n", done.stderr

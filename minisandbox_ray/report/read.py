"""What lies in a run's directory, read while others may still write there."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout.trajectory import Trajectory, parse_trajectory

SAMPLES = "evaluations/*.jsonl"
"""Where a training run keeps trajectories of its evaluations."""


@dataclass(frozen=True)
class Episode:
    """A trajectory without its texts, and where its line is."""

    trajectory: Trajectory
    file: Path
    start: int
    """Byte at which its line starts."""

    def whole(self) -> Trajectory:
        """With its texts. Raises ConfigError if the file has changed."""
        with self.file.open("rb") as lines:
            lines.seek(self.start)
            return parse_trajectory(lines.readline(), self.file, 0)


@dataclass(frozen=True)
class Run:
    """A training run, a batch of rollouts, or both in one directory."""

    name: str
    """Unique among those of a page."""
    directory: Path
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """metrics.jsonl, one dictionary of numbers per line; of several lines of one step all count, later ones first."""
    pool: list[dict[str, Any]] = field(default_factory=list)
    """pool.jsonl: the pool's slots and stores, from time to time."""
    report: dict[str, Any] | None = None
    """report.json of a batch; None while it runs."""
    episodes: list[Episode] = field(default_factory=list)
    """Of several lines of one (file, instance_id, sample) the last."""


def read_run(directory: Path, name: str) -> Run:
    """Raises ConfigError, one line, for a directory without a run, or with files that hold something else."""
    if not directory.is_dir():
        raise ConfigError(f"{directory} is no directory: expected one of a training run or of rollouts")
    sources = [directory / "trajectories.jsonl", *sorted(directory.glob(SAMPLES))]
    run = Run(
        name,
        directory,
        _rows(directory / "metrics.jsonl"),
        _rows(directory / "pool.jsonl"),
        _report(directory / "report.json"),
        [episode for file in sources if file.is_file() for episode in _episodes(file)],
    )
    if not run.metrics and not run.episodes and run.report is None:
        raise ConfigError(
            f"{directory} holds no run yet: expected metrics.jsonl of a training run, or trajectories.jsonl of rollouts"
        )
    return run


def _lines(file: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, first byte and content of each line that is whole."""
    start = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n") and line.strip():
                    yield number, start, line
                start += len(line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _rows(file: Path) -> list[dict[str, Any]]:
    rows = []
    for number, _, line in _lines(file):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{file}, line {number}: not JSON") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{file}, line {number}: expected an object")
        rows.append(row)
    return rows


def _report(file: Path) -> dict[str, Any] | None:
    try:
        report = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON") from error
    return report if isinstance(report, dict) else None


def _episodes(file: Path) -> list[Episode]:
    last: dict[tuple[str, int], Episode] = {}
    for number, start, line in _lines(file):
        whole = parse_trajectory(line, file, number)
        turns = [turn.model_copy(update={"action": "", "observation": ""}) for turn in whole.turns]
        small = whole.model_copy(update={"prompt": "", "turns": turns, "diff": "", "graded": _told(whole)})
        last[whole.instance_id, whole.sample] = Episode(small, file, start)
    return list(last.values())


def _told(trajectory: Trajectory) -> dict[str, Any] | None:
    """Of a grade what a list of episodes shows."""
    return trajectory.graded and {"reason": trajectory.graded.get("reason", "")}


def names_of(directories: list[Path]) -> list[str]:
    """A short name for each directory: as many of its last parts as it takes to tell them apart."""
    parts = [Path(os.path.abspath(each)).parts for each in directories]  # noqa: PTH100  (links keep their names)
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    raise ConfigError("a directory is named twice")

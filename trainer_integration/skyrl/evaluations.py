"""What is kept of the episodes of an evaluation."""

from pathlib import Path

from minisandbox_ray.telemetry import Tracker
from trainer_integration.skyrl.rollout import Rollout

TABLE = "evaluation/trajectories"
COLUMNS = ["task", "sample", "reward", "resolved", "turns", "last action", "last observation", "diff"]
SHOWN = 32
"""Episodes in the trackers' table; the file has all."""
LONGEST = 2000
"""Characters of a text in the table."""


class Evaluations:
    """Called with the episodes of each evaluation: writes them as trajectories to ``step-N.jsonl`` in a directory, and
    a table of the first of them to the tracker."""

    def __init__(self, directory: Path, policy: str, tracker: Tracker) -> None:
        """``policy`` is the name that trajectories have for what acted."""
        self._directory, self._policy, self._tracker = directory, policy, tracker

    def __call__(self, step: int, rollouts: list[Rollout]) -> None:
        self._directory.mkdir(exist_ok=True)
        with (self._directory / f"step-{step}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(
                rollout.trajectory(f"{self._policy}@{step}").model_dump_json() + "\n" for rollout in rollouts
            )
        self._tracker.log_table(TABLE, COLUMNS, [_row(rollout) for rollout in rollouts[:SHOWN]], step)


def _row(rollout: Rollout) -> list[str | int | float | bool]:
    last = rollout.steps[-1] if rollout.steps else None
    texts = [last.action if last else "", last.observation if last else "", rollout.info.get("diff", "")]
    return [
        *(rollout.task.instance_id, rollout.sample, rollout.reward, rollout.resolved, rollout.turns),
        *(text[:LONGEST] for text in texts),
    ]

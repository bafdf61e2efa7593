"""Metrics of one batch of rollouts: SkyRL's own under ``generate/``, ours under ``environment/``."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from skyrl.train.generators.utils import get_rollout_metrics

from minisandbox_ray.errors import Owner
from minisandbox_ray.telemetry.report import TIME_PARTS

if TYPE_CHECKING:
    from trainer_integration.skyrl.generator import Rollout

# The agent's own failures are rewards, not failures.
OWNERS: tuple[Owner, ...] = ("task", "sandbox", "cluster", "model")


def rollout_metrics(output: dict[str, Any], rollouts: "list[Rollout]") -> dict[str, float]:
    """Numbers for the tracker. ``environment/``: seconds per episode by part, failures by owner, cached grades.

    Failed episodes count in the failures only.
    """
    return environment_metrics(rollouts) | get_rollout_metrics(
        output["response_ids"],
        output["rewards"],
        loss_masks=output["loss_masks"],
        trajectory_completion_times=[rollout.total_seconds for rollout in rollouts],
        trajectory_time_splits={
            "llm": [rollout.seconds["model"] for rollout in rollouts],
            "env": [sum(rollout.seconds.values()) - rollout.seconds["model"] for rollout in rollouts],
        },
    )


def environment_metrics(rollouts: "Sequence[Rollout]") -> dict[str, float]:
    """Those under ``environment/``; where no episode finished, the counts only.

    ``environment/overhead_share`` is what ``Rollout.own_seconds`` says, as a share of the time from the moment that an
    episode gets a slot of the pool to its end. It tells something where grading is not cached: else hardly anything but
    our own work is left.
    """
    finished = [rollout for rollout in rollouts if not rollout.failure]
    owners = Counter(rollout.failure.owner for rollout in rollouts if rollout.failure)
    metrics: dict[str, float] = {
        "environment/episodes": len(rollouts),
        "environment/grade_cache_hits": sum(rollout.grade_cached for rollout in finished),
        "environment/failures": owners.total(),
        **{f"environment/failures_{owner}": owners[owner] for owner in OWNERS},
        # Failures that an episode survived, see EpisodeConfig.replays.
        "environment/replays": sum(rollout.info.get("replay", {}).get("count", 0) for rollout in finished),
    }
    if not finished:
        return metrics
    for part in TIME_PARTS:
        seconds = np.array([rollout.seconds[part] for rollout in finished])
        metrics |= {
            f"environment/{part}_seconds_mean": seconds.mean().item(),
            f"environment/{part}_seconds_p50": np.percentile(seconds, 50).item(),
            f"environment/{part}_seconds_p90": np.percentile(seconds, 90).item(),
            f"environment/{part}_seconds_max": seconds.max().item(),
        }
    held = sum(rollout.total_seconds - rollout.seconds["wait"] for rollout in finished)
    by_repo: dict[str, list[float]] = {}
    for rollout in finished:
        by_repo.setdefault(rollout.task.repo, []).append(rollout.reward)
    return metrics | {
        **{f"environment/reward/{repo}": np.mean(rewards).item() for repo, rewards in by_repo.items()},
        # Of the time that episodes hold a slot of the pool.
        "environment/overhead_share": sum(rollout.own_seconds for rollout in finished) / held if held > 0 else 0.0,
        "environment/resolved_mean": sum(rollout.resolved for rollout in finished) / len(finished),
        "environment/turns_mean": sum(rollout.turns for rollout in finished) / len(finished),
    }

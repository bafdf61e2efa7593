"""The end of a run: a picture of its reward curve and of where its rollout time went, and one line."""

import json
from pathlib import Path
from typing import IO, Any

# The parts of an episode's wall time; the wait for a free sandbox comes last, it is the largest where few are free.
TIME_PARTS = ("reset", "model", "step", "grade", "wait")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The training steps in a ``metrics.jsonl``, in order; a last line that a killed run left incomplete is skipped."""
    return [row for row in read_rows(path) if "reward/avg_raw_reward" in row]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The same with what was evaluated outside of training steps."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def write_report(rows: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG with the reward per step (above) and the mean seconds of an episode by part (below)."""
    from matplotlib.figure import Figure

    steps = [row["step"] for row in rows]
    # Figure without pyplot: draws with Agg, keeps no global state, needs no display.
    figure = Figure(figsize=(9, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(steps, [row["reward/avg_raw_reward"] for row in rows], marker=".", label="mean reward")
    if all("environment/resolved_mean" in row for row in rows):
        above.plot(steps, [row["environment/resolved_mean"] for row in rows], "--", alpha=0.6, label="resolved")
    above.set(ylabel="reward", ylim=(-0.05, 1.05), title="Mean reward per training step")
    above.legend(loc="lower right")
    _stack_times(below, rows)
    figure.savefig(path, dpi=120)


def write_time_breakdown(rows: list[dict[str, Any]], to: IO[bytes]) -> None:
    """Write a PNG with the mean seconds of an episode by part and training step, stacked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    _stack_times(figure.subplots(), rows)
    figure.savefig(to, format="png", dpi=120)


def _stack_times(axes: Any, rows: list[dict[str, Any]]) -> None:
    parts = {part: [row.get(f"environment/{part}_seconds_mean", 0.0) for row in rows] for part in TIME_PARTS}
    axes.stackplot([row["step"] for row in rows], list(parts.values()), labels=list(parts))
    axes.set(xlabel="training step", ylabel="seconds per episode", title="Where rollout time goes (mean per episode)")
    axes.legend(loc="upper right")


def final_line(rows: list[dict[str, Any]]) -> str:
    """First and last rewards, steps, episodes, cached grades, failures and minutes, in one line.

    Where the rewards are not what the grader said (``debug.constant_reward``), the share of episodes resolved as well.
    """
    rewards = [row["reward/avg_raw_reward"] for row in rows]
    resolved = [row.get("environment/resolved_mean", reward) for row, reward in zip(rows, rewards, strict=True)]
    episodes = sum(row.get("environment/episodes", 0) for row in rows)
    cached = sum(row.get("environment/grade_cache_hits", 0) for row in rows)
    failed = sum(row.get("environment/failures", 0) for row in rows)
    minutes = sum(row.get("timing/step", 0.0) for row in rows) / 60
    return (
        f"mean reward {_mean(rewards[:2]):.3f} (first 2 steps) -> {_mean(rewards[-5:]):.3f} (last 5 steps) in "
        f"{len(rows)} steps, {episodes:.0f} episodes ({cached:.0f} grades from cache, {failed:.0f} failed), "
        f"{minutes:.1f} min"
        + (f"; resolved {_mean(resolved[:2]):.3f} -> {_mean(resolved[-5:]):.3f}" if resolved != rewards else "")
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)

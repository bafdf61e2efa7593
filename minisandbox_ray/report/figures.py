"""The figures of a page as plain data: charts, which the page's script draws, and tables."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

from minisandbox_ray.report.read import Episode, Run
from minisandbox_ray.rollout.results import make_report
from minisandbox_ray.telemetry.report import final_line

# In the order of an episode, as the published method's figure has them.
PARTS = ("wait", "reset", "model", "step", "grade")
# What a trajectory's seconds are, in these words; the others keep their names.
PART_OF = {"policy": "model", "command": "step", "diff": "grade"}
OWNERS = ("agent", "task", "sandbox", "cluster", "model")
REWARD = "reward/avg_raw_reward"
RESOLVED = "environment/resolved_mean"
OF_REPOSITORY = "environment/reward/"
LAST = 5
"""Steps that a final reward is the mean of, as in the last line of a training run."""
_BINS_PER_DECADE = 8
_POOL_POINTS = 500

Chart = dict[str, Any]
Points = dict[float, float]


def figures_of(runs: list[Run]) -> dict[str, Any]:
    """``runs``, ``repositories``: rows of tables; ``charts``: see `_lines`, `_stack`, `_bars` and `_histogram`. Charts
    that nothing is known for are left out."""
    training = [run for run in runs if run.metrics]
    batches = [run for run in runs if batch(run)]
    charts = [
        _rewards(training),
        *_pass_at(training),
        _pass_at_k(batches),
        _time_by_step(training, PARTS),
        _time_by_step(training, PARTS[1:]),
        _time_by_run(batches),
        _reset_by_step(training),
        _reset_histogram(runs),
        _failures_by_step(training),
        _failures_by_run(runs),
        *_pools(runs),
    ]
    return {
        "runs": [_row(run) for run in runs],
        "charts": [chart for chart in charts if chart],
        "repositories": _repositories(runs),
    }


def batch(run: Run) -> list[Episode]:
    """The episodes of rollouts, without those of a training run's evaluations."""
    return [each for each in run.episodes if is_of_batch(each)]


def is_of_batch(episode: Episode) -> bool:
    """Whether it belongs to rollouts, not to an evaluation."""
    return episode.file.name == "trajectories.jsonl"


def report_of(run: Run) -> dict[str, Any]:
    """report.json, or what it would be now: task ids are then those of the episodes so far."""
    if run.report is not None:
        return run.report
    rows = [each.trajectory for each in batch(run)]
    return make_report({row.instance_id for row in rows}, rows)


def series(run: Run, key: str) -> Points:
    """A metric by step; of a step's several values the last."""
    return {row["step"]: row[key] for row in run.metrics if "step" in row and _is_number(row.get(key))}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


# The kinds of charts


def _lines(title: str, x: str, y: str, lines: list[tuple[str, Points, str]], **more: Any) -> Chart | None:
    """Lines over numbers; the third of each is its look: "main", "thin" or "dash"."""
    given = [
        {"name": name, "points": [[at, points[at]] for at in sorted(points)], "look": look}
        for name, points, look in lines
        if points
    ]
    return {"kind": "lines", "title": title, "x": x, "y": y, "series": given, **more} if given else None


def _stack(title: str, x: str, y: str, at: list[float], parts: dict[str, list[float]], **more: Any) -> Chart | None:
    """At each x the parts of a sum, one above the other."""
    given = [{"name": name, "values": values} for name, values in parts.items()]
    return {"kind": "stack", "title": title, "x": x, "y": y, "at": at, "series": given, **more} if at else None


def _bars(title: str, unit: str, rows: dict[str, dict[str, float]], **more: Any) -> Chart | None:
    """Lying bars of named parts."""
    given = [{"name": name, "parts": parts} for name, parts in rows.items() if parts]
    return {"kind": "bars", "title": title, "unit": unit, "rows": given, **more} if given else None


def _histogram(title: str, x: str, values: list[float], **more: Any) -> Chart | None:
    """Counts in bins that grow by a constant factor, and quantiles."""
    positive = sorted(value for value in values if value > 0)
    if not positive:
        return None
    low, high = (math.floor(math.log10(value) * _BINS_PER_DECADE) for value in (positive[0], positive[-1]))
    counts = Counter(math.floor(math.log10(value) * _BINS_PER_DECADE) for value in positive)
    bins = [
        [10 ** (at / _BINS_PER_DECADE), 10 ** ((at + 1) / _BINS_PER_DECADE), counts[at]] for at in range(low, high + 1)
    ]
    marks = {f"p{share}": quantile(positive, share / 100) for share in (50, 90, 99)}
    return {"kind": "histogram", "title": title, "x": x, "bins": bins, "marks": marks, **more}


def quantile(values: list[float], share: float) -> float:
    """The least of the sorted values that so many are not above (nearest rank)."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


# The charts


def _per_run(runs: list[Run], read: Callable[[Run], Points], one: str) -> list[tuple[str, Points, str]]:
    """A line per run; of several, which are seeds of one thing, the mean where all have a value as well."""
    found = {run.name: points for run in runs if (points := read(run))}
    if len(found) < 2:
        return [(one, points, "main") for points in found.values()]
    common = set.intersection(*(set(points) for points in found.values()))
    mean = {at: fmean(points[at] for points in found.values()) for at in common}
    return [*((name, points, "thin") for name, points in found.items()), (f"mean of {len(found)} runs", mean, "main")]


def _rewards(runs: list[Run]) -> Chart | None:
    lines = _per_run(runs, lambda run: series(run, REWARD), "mean reward")
    if len(runs) == 1 and (resolved := series(runs[0], RESOLVED)) != series(runs[0], REWARD):
        lines.append(("resolved", resolved, "dash"))
    return _lines("Reward", "training step", "mean reward of the step's episodes", lines, least=0, most=1)


def _pass_at(runs: list[Run]) -> list[Chart | None]:
    """pass@n of each training step and of evaluations, under SkyRL's names."""
    keys = {key for run in runs for row in run.metrics for key in row if "pass_at_" in key or _is_evaluation(key)}
    charts = []
    for key in sorted(key for key in keys if not key.startswith("reward_dropped/")):
        where, _, what = key.removeprefix("reward/avg_").rpartition("/")
        what = what.replace("pass_at_", "pass@").replace("avg_score", "mean score")
        title = f"{what}, evaluation of {where.removeprefix('eval/')}" if where else f"{what} of the step's groups"
        lines = _per_run(runs, lambda run, key=key: series(run, key), what)  # type: ignore[misc]
        charts.append(_lines(title, "training step", what, lines, least=0, most=1))
    return charts


def _is_evaluation(key: str) -> bool:
    return key.startswith("eval/") and key.endswith("/avg_score")


def _pass_at_k(runs: list[Run]) -> Chart | None:
    found = [(run.name, {float(k): rate for k, rate in report_of(run).get("pass_at_k", {}).items()}) for run in runs]
    lines = [(name, {k: rate for k, rate in points.items() if _is_number(rate)}, "main") for name, points in found]
    note = "Mean over tasks of the chance that one of k samples is resolved"
    return _lines("pass@k", "k samples", "pass@k", lines, least=0, most=1, log=True, note=note)


def _time_by_step(runs: list[Run], parts: tuple[str, ...]) -> Chart | None:
    """Means over the runs that came to a step."""
    found = {part: [series(run, f"environment/{part}_seconds_mean") for run in runs] for part in parts}
    at = sorted({step for each in found.values() for points in each for step in points})

    def values(each: list[Points]) -> list[float]:
        return [fmean([points[step] for points in each if step in points] or [0.0]) for step in at]

    # Where few slots serve many episodes, nothing else can be seen beside the wait.
    title = "Where rollout time goes" + ("" if "wait" in parts else ", without the wait for a slot")
    note = "Mean of an episode by part" + (f", of {len(runs)} runs" if len(runs) > 1 else "")
    values_of = {part: values(each) for part, each in found.items()}
    return _stack(title, "training step", "seconds per episode", at, values_of, note=note)


def seconds_of(episodes: Iterable[Episode]) -> dict[str, float]:
    """Mean wall time by part of episodes that came to their grade; `other` is what no part has."""
    finished = [each.trajectory.seconds for each in episodes if each.trajectory.failure_owner in (None, "agent")]
    if not finished:
        return {}
    sums: dict[str, float] = dict.fromkeys([*PARTS, "replay", "other"], 0.0)
    for seconds in finished:
        parts = {name: value for name, value in seconds.items() if name != "total"}
        for name, value in parts.items():
            sums[PART_OF.get(name, name)] = sums.get(PART_OF.get(name, name), 0.0) + value
        sums["other"] += max(0.0, seconds.get("total", 0.0) - sum(parts.values()))
    return {name: value / len(finished) for name, value in sums.items() if value or name in PARTS}


def _time_by_run(runs: list[Run]) -> Chart | None:
    rows = {run.name: seconds_of(batch(run)) for run in runs}
    note = "Mean seconds of an episode by part; model is the policy, grade includes taking the diff"
    return _bars("Where time of rollouts goes", "s", rows, note=note)


def _reset_by_step(runs: list[Run]) -> Chart | None:
    lines = []
    for name, look in (("p50", "main"), ("p90", "main"), ("max", "dash")):
        each = [series(run, f"environment/reset_seconds_{name}") for run in runs]
        steps = {step for points in each for step in points}
        lines.append((name, {at: fmean(points[at] for points in each if at in points) for at in steps}, look))
    note = "Of the step's episodes, without the wait for a slot"
    return _lines("Reset latency by step", "training step", "seconds", lines, least=0, note=note)


def _reset_histogram(runs: list[Run]) -> Chart | None:
    values = [
        each.trajectory.seconds["reset"] for run in runs for each in run.episodes if "reset" in each.trajectory.seconds
    ]
    return _histogram("Reset latency", "seconds", values, note=f"{len(values)} episodes, without the wait for a slot")


def _failures_by_step(runs: list[Run]) -> Chart | None:
    found = {owner: [series(run, f"environment/failures_{owner}") for run in runs] for owner in OWNERS}
    at = sorted({step for each in found.values() for points in each for step in points})
    parts = {owner: [sum(points.get(step, 0.0) for points in each) for step in at] for owner, each in found.items()}
    parts = {owner: values for owner, values in parts.items() if any(values)}
    if not parts:
        return None
    note = "Failed episodes by whose fault it was; they are masked out of the loss"
    return _stack("Failures by step", "training step", "episodes", at, parts, note=note)


def failures_of(run: Run) -> dict[str, float]:
    """Failed episodes by owner: those of training steps and those of trajectories."""
    counts: dict[str, float] = {}
    for owner in OWNERS:
        count = sum(series(run, f"environment/failures_{owner}").values())
        count += sum(each.trajectory.failure_owner == owner for each in run.episodes)
        if count:
            counts[owner] = count
    return counts


def _failures_by_run(runs: list[Run]) -> Chart | None:
    return _bars("Failures by owner", "episodes", {run.name: failures_of(run) for run in runs})


def _pools(runs: list[Run]) -> list[Chart | None]:
    charts: list[Chart | None] = []
    for run in runs:
        rows = _thinned([row for row in run.pool if _is_number(row.get("time"))])
        suffix = f", {run.name}" if len(runs) > 1 else ""

        def of(key: str, scale: float = 1.0, rows: list[dict[str, Any]] = rows) -> Points:
            return {row["time"] - rows[0]["time"]: row[key] / scale for row in rows if _is_number(row.get(key))}

        slots = [
            ("in use", of("used"), "main"),
            ("waiting requests", of("waiting"), "main"),
            ("all", of("slots"), "dash"),
        ]
        charts.append(_lines(f"Slots{suffix}", "seconds", "slots", slots, least=0))
        store = [("used", of("store_bytes", 2**30), "main"), ("budget", of("store_budget_bytes", 2**30), "dash")]
        charts.append(_lines(f"Node stores{suffix}", "seconds", "GiB on all nodes", store, least=0))
    return charts


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """So many that a chart shows them; of rows that lie close together the one with most slots in use."""
    size = math.ceil(len(rows) / _POOL_POINTS) or 1
    return [max(rows[at : at + size], key=lambda row: row.get("used", 0)) for at in range(0, len(rows), size)]


# The tables


def _row(run: Run) -> dict[str, Any]:
    """One row about a run."""
    row: dict[str, Any] = {"name": run.name, "failed": sum(failures_of(run).values())}
    steps = [each for each in run.metrics if REWARD in each]
    if steps:
        rewards = [each[REWARD] for each in steps]
        row |= {
            "steps": len(steps),
            "episodes": sum(each.get("environment/episodes", 0) for each in steps),
            "first_reward": fmean(rewards[:2]),
            "last_reward": fmean(rewards[-LAST:]),
            "seconds": sum(each.get("timing/step", 0.0) for each in steps),
            "line": final_line(steps),
        }
    if found := batch(run):
        report = report_of(run)
        row |= {
            "policy": ", ".join(sorted({each.trajectory.policy for each in found})),
            "episodes": row.get("episodes", 0) + len(found),
            "tasks": report["total_instances"],
            "resolved": report["resolved_instances"],
            "pass_at_k": report.get("pass_at_k", {}),
            "running": run.report is None,
        }
    versions = next((each.trajectory.versions for each in run.episodes), {})
    return row | {"versions": ", ".join(f"{name} {version}" for name, version in versions.items())}


def _repositories(runs: list[Run]) -> list[dict[str, Any]]:
    """By run and repository; `reward` is the mean of a training run's last steps, or of the episodes."""
    rows = []
    for run in runs:
        rewards: dict[str, list[float]] = defaultdict(list)
        for each in run.metrics:
            for key, value in each.items():
                if key.startswith(OF_REPOSITORY) and _is_number(value):
                    rewards[key.removeprefix(OF_REPOSITORY)].append(value)
        for name, values in rewards.items():
            rows.append({"run": run.name, "repository": name, "reward": fmean(values[-LAST:])})
        by_name: dict[str, list[Episode]] = defaultdict(list)
        for episode in batch(run):
            by_name[episode.trajectory.repo].append(episode)
        for name, episodes in sorted(by_name.items()):
            graded = [each.trajectory for each in episodes if each.trajectory.failure_owner in (None, "agent")]
            rows.append(
                {
                    "run": run.name,
                    "repository": name or "(unknown)",
                    "tasks": len({each.trajectory.instance_id for each in episodes}),
                    "episodes": len(episodes),
                    "failed": len(episodes) - len(graded),
                    "resolved": fmean(each.resolved for each in graded) if graded else None,
                    "reward": fmean(each.reward for each in graded) if graded else None,
                    "turns": fmean(len(each.turns) for each in graded) if graded else None,
                    "seconds": fmean(each.seconds.get("total", 0.0) for each in graded) if graded else None,
                }
            )
    return rows

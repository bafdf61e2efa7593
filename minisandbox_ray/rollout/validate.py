"""Whether tasks are what they say: the gold fix solves them, doing nothing does not, and the same way each time."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from minisandbox_ray.errors import MiniSandboxError, first_line
from minisandbox_ray.rollout.config import EpisodeConfig
from minisandbox_ray.rollout.env import SandboxEnv
from minisandbox_ray.rollout.pool import EpisodePool
from minisandbox_ray.tasks import Task
from minisandbox_ray.tasks.validation import Validation, save_validation, speaks_of_network

SUBMIT = "```bash\nsubmit\n```"
REPEATS = 3

logger = logging.getLogger(__name__)


@dataclass
class _Runs:
    """What has come of a task's episodes so far, by repeat."""

    task: Task
    gold: dict[int, "_Outcome"] = field(default_factory=dict)
    empty: dict[int, "_Outcome"] = field(default_factory=dict)


@dataclass(frozen=True)
class _Outcome:
    """What came of one episode."""

    resolved: bool | None
    """None if it failed."""
    reason: str
    grade: dict[str, Any]
    """Grade's fields; empty if it failed."""


def validate_tasks(
    tasks: list[Task],
    pool: EpisodePool,
    config: EpisodeConfig | None = None,
    on_row: Callable[[Validation], None] = lambda row: None,
    repeats: int = REPEATS,
) -> list[Validation]:
    """Run every task with its gold fix and without, `repeats` times each, as many at a time as the pool has slots.

    Rows come in the order of the tasks, and are kept for `train` (`save_validation`); `on_row` is called with each as
    it is found. Task failures become rows; failures of the cluster are raised.
    """
    config = config or EpisodeConfig()
    grading = config.grading.model_copy(update={"cache": False, "reward": "resolved"})
    config = config.model_copy(update={"max_turns": 2, "grading": grading})
    rows: dict[str, Validation] = {}
    runs = {task.instance_id: _Runs(task) for task in tasks}
    with ThreadPoolExecutor(max_workers=max(1, pool.capacity)) as threads:
        pending: dict[Future[_Outcome], tuple[str, str, int]] = {}
        for task in tasks:  # a task's episodes one after the other: its environment is unpacked by then
            for number in range(repeats):
                for kind in ("gold", "empty"):
                    done = threads.submit(_outcome, task, kind, pool, config)
                    pending[done] = task.instance_id, kind, number
        try:
            for done in as_completed(pending):
                name, kind, number = pending[done]
                getattr(runs[name], kind)[number] = done.result()
                if len(runs[name].gold) == len(runs[name].empty) == repeats:
                    rows[name] = row = _row(runs.pop(name))
                    on_row(row)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return [rows[task.instance_id] for task in tasks]


def _row(runs: _Runs) -> Validation:
    gold, empty = ([found[number] for number in sorted(found)] for found in (runs.gold, runs.empty))
    grades = [each.grade for each in gold if each.grade]
    row = Validation(
        instance_id=runs.task.instance_id,
        gold=[each.resolved for each in gold],
        empty=[each.resolved for each in empty],
        flaky=sorted({*_differing(gold), *_differing(empty)}),
        missing=sorted({test for each in grades for test, status in each["tests"].items() if status == "missing"}),
        seconds=max((each["seconds"] for each in grades), default=0.0),
        witnessed=all(each["witnessed"] for each in grades),
    )
    row = row.model_copy(update={"reason": _reason(row, gold, empty)})
    try:
        save_validation(runs.task, row)
    except OSError as error:
        logger.warning("the validation of task %s is not kept: %s", row.instance_id, error.strerror)
    return row


def _differing(outcomes: list[_Outcome]) -> set[str]:
    """Tests whose status is not the same in all episodes that have one."""
    seen: dict[str, set[str]] = {}
    for each in outcomes:
        # A run that did not come to its end tells nothing of any test: its own failure is what is reported.
        tests = each.grade.get("tests", {})
        if set(tests.values()) != {"missing"}:
            for test, status in tests.items():
                seen.setdefault(test, set()).add(status)
    return {test for test, statuses in seen.items() if len(statuses) > 1}


def _reason(row: Validation, gold: list[_Outcome], empty: list[_Outcome]) -> str:
    for each in empty:
        if each.resolved is not False:
            return f"empty: {each.reason or 'the tests pass without a fix'}"
    for each in gold:
        if not each.resolved:
            network = speaks_of_network(each.grade.get("log", ""))
            parts = [f"gold: {each.reason}"]
            if row.missing:
                parts.append(f"{len(row.missing)} listed tests are not reported, {row.missing[0]} first")
            if row.flaky:
                parts.append(f"flaky: {', '.join(row.flaky[:3])}")
            if network:
                parts.append(f'perhaps for want of a network ("{network}")')
            return "; ".join(parts)
    if row.flaky:
        return f"flaky: {', '.join(row.flaky[:3])}"
    return ""


def _outcome(task: Task, kind: str, pool: EpisodePool, config: EpisodeConfig) -> _Outcome:
    try:
        actions = [task.gold_action(), SUBMIT] if kind == "gold" else [SUBMIT]
    except MiniSandboxError as error:
        return _Outcome(None, first_line(error), {})
    with SandboxEnv(pool, config) as env:
        try:
            env.reset(task)
        except MiniSandboxError as error:
            if error.owner != "task":
                raise
            return _Outcome(None, first_line(error), {})
        for action in actions:
            _, _, _, _, info = env.step(action)
            if info.get("failure_owner"):
                return _Outcome(None, next(iter(info["failure"].splitlines()), "failed"), {})
            if info.get("exit_code"):
                return _Outcome(None, f"the gold command ended with status {info['exit_code']}", {})
    graded = info["graded"]
    return _Outcome(graded["resolved"], graded["reason"], graded)

"""Run every task with its gold fix (solved) and with no change (not solved), several times."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from minisandbox_ray.cli.inputs import add_isolation, check_writable, read_tasks
from minisandbox_ray.cli.terminal import add_row
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task, require_environments, save_tasks
from minisandbox_ray.tasks.validation import Validation, load_validation, stamped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``TASKS`` is a JSON lines file of tasks, or a training configuration whose tasks are made where they are not."""
    parser.add_argument("tasks", metavar="TASKS", help="tasks.jsonl, or a training configuration (YAML)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each kind per task (default: 3)")
    parser.add_argument("--only-valid", type=Path, metavar="FILE", help="write the valid tasks there, for training")
    parser.add_argument("--again", action="store_true", help="also tasks that were validated on this machine before")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds for a task's tests (default: 300)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    add_isolation(parser)
    parser.add_argument("--address", help="Ray cluster to run on; default: RAY_ADDRESS, else a local one")


def run(arguments: argparse.Namespace) -> int:
    """Print a table, or with ``--json`` a list of objects: the fields of `Validation`, and ``valid``; 1 if any task is
    off. What is found is kept in the cache, for ``train`` and for the next call: an interrupted one goes on."""
    if arguments.repeats < 1:
        raise ConfigError(f"--repeats must be at least 1, not {arguments.repeats}")
    if arguments.timeout is not None and not 0 < arguments.timeout <= 1e6:
        raise ConfigError(f"--timeout must be above 0 and at most 1e6 seconds, not {arguments.timeout:g}")
    if arguments.only_valid:
        check_writable(arguments.only_valid, "--only-valid")
    tasks = read_tasks(arguments.tasks, arguments.isolation)
    if not tasks:
        raise ConfigError(f"{arguments.tasks} holds no tasks")
    require_environments(tasks)
    rows = {task.instance_id: known for task in tasks if (known := _known(task, arguments))}
    waiting = [task for task in tasks if task.instance_id not in rows]
    if waiting:
        rows |= {row.instance_id: row for row in _validate(waiting, arguments)}
    ordered = [rows[task.instance_id] for task in tasks]
    if arguments.json:
        print(json.dumps([row.model_dump() | {"valid": row.valid} for row in ordered], indent=1))
    else:
        _print(ordered, len(tasks) - len(waiting))
    if arguments.only_valid:
        valid = [stamped(task) for task in tasks if rows[task.instance_id].valid]
        try:
            save_tasks(valid, arguments.only_valid)
        except OSError as error:
            raise ConfigError(f"cannot write {arguments.only_valid}: {error.strerror}") from error
    return 0 if all(row.valid for row in ordered) else 1


def _known(task: Task, arguments: argparse.Namespace) -> Validation | None:
    """What was found before; an invalid task is tried again, as its environment's node may have been the reason."""
    known = None if arguments.again else load_validation(task)
    return known if known and known.valid and len(known.gold) >= arguments.repeats else None


def _validate(tasks: list[Task], arguments: argparse.Namespace) -> list[Validation]:
    from minisandbox_ray.cluster import ClusterConfig, connect
    from minisandbox_ray.rollout import EpisodeConfig, EpisodePool, validate_tasks
    from minisandbox_ray.rollout.config import grading_seconds

    config = EpisodeConfig()
    if arguments.timeout:
        config = config.model_copy(update={"grading": config.grading.model_copy(update={"timeout": arguments.timeout})})
    cluster = ClusterConfig(address=arguments.address, isolation=arguments.isolation)
    needed = config.episode_timeout + grading_seconds(config.grading)
    cluster = cluster.model_copy(update={"lease_seconds": max(cluster.lease_seconds, needed)})
    console = Console(stderr=True)
    columns = [*Progress.get_default_columns(), MofNCompleteColumn()]
    with (
        connect(cluster),
        EpisodePool(cluster) as pool,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        bar = progress.add_task("validating", total=len(tasks))
        return validate_tasks(tasks, pool, config, lambda _: progress.advance(bar), arguments.repeats)


def _print(rows: list[Validation], known: int) -> None:
    table = Table("task", "gold", "empty", "s", "")
    for row in rows:
        verdict = "valid" if row.valid else row.reason
        mark = "" if row.witnessed else " (as printed)"
        add_row(table, row.instance_id, _words(row.gold), _words(row.empty), f"{row.seconds:.1f}", verdict + mark)
    Console().print(table)
    before = f", {known} found so before" if known else ""
    print(f"{sum(row.valid for row in rows)} of {len(rows)} tasks are valid{before}")


def _words(outcomes: list[bool | None]) -> str:
    if None in outcomes:
        return "failed"
    return f"{sum(map(bool, outcomes))}/{len(outcomes)} solved"

"""Run every task with its gold fix (reward 1) and with no change (reward 0)."""

import argparse

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from minisandbox_ray.cli.inputs import add_isolation, read_tasks
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import require_environments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``TASKS`` is a JSON lines file of tasks, or a training configuration whose tasks are made where they are not."""
    parser.add_argument("tasks", metavar="TASKS", help="tasks.jsonl, or a training configuration (YAML)")
    add_isolation(parser)
    parser.add_argument("--address", help="Ray cluster to run on; default: RAY_ADDRESS, else a local one")


def run(arguments: argparse.Namespace) -> int:
    """Print a table; 1 if any task is off."""
    from minisandbox_ray.cluster import ClusterConfig, connect
    from minisandbox_ray.rollout import EpisodePool, validate_tasks

    tasks = read_tasks(arguments.tasks, arguments.isolation)
    if not tasks:
        raise ConfigError(f"{arguments.tasks} holds no tasks")
    require_environments(tasks)
    cluster = ClusterConfig(address=arguments.address, isolation=arguments.isolation)
    console = Console(stderr=True)
    with connect(cluster), EpisodePool(cluster) as pool, Progress(console=console, transient=True) as progress:
        bar = progress.add_task("validating", total=len(tasks))
        rows = validate_tasks(tasks, pool, on_row=lambda _: progress.advance(bar))
    table = Table("task", "gold", "empty", "")
    for row in rows:
        verdict = "[green]valid" if row.valid else f"[red]{row.reason}"
        table.add_row(row.instance_id, _words(row.gold), _words(row.empty), verdict)
    Console().print(table)
    invalid = sum(not row.valid for row in rows)
    print(f"{len(rows) - invalid} of {len(rows)} tasks are valid")
    return 1 if invalid else 0


def _words(reward: float | None) -> str:
    return "failed" if reward is None else f"{reward:g}"

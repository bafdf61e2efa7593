"""Make tasks from packages: one function broken in each, a suite that notices, every task validated."""

import argparse
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from minisandbox_ray.cli.inputs import add_isolation, archives_and_store, check_writable
from minisandbox_ray.cli.terminal import add_row
from minisandbox_ray.errors import ConfigError, first_line
from minisandbox_ray.tasks import FactoryConfig, PackageSpec, make_tasks, save_tasks
from minisandbox_ray.telemetry.progress import task_progress
from minisandbox_ray.yaml_file import read_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``CONFIG`` is a YAML file with the fields of FactoryConfig."""
    parser.add_argument("config", metavar="CONFIG", type=Path, help="YAML file with the fields of FactoryConfig")
    parser.add_argument("--out", required=True, type=Path, help="JSON lines file to write the tasks to")
    parser.add_argument("--workers", type=int, metavar="N", help="packages worked on at a time; default: CONFIG's")
    add_isolation(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the tasks and print a table of the packages; 1 if a package gave none."""
    config = read_model(arguments.config, FactoryConfig)
    if arguments.workers is not None:
        if arguments.workers < 1:
            raise ConfigError("--workers must be at least 1")
        config = config.model_copy(update={"workers": arguments.workers})
    check_writable(arguments.out, "--out")
    archives, store = archives_and_store(arguments.isolation)
    failures: dict[str, str] = {}

    def note(package: PackageSpec, error: Exception) -> None:
        failures[package.name] = first_line(error)

    with task_progress() as report:
        tasks = make_tasks(config, archives, store, report, note)
    try:
        save_tasks(tasks, arguments.out)
    except OSError as error:
        raise ConfigError(f"cannot write {arguments.out}: {error.strerror}") from error
    counts = Counter(task.repo for task in tasks)
    table = Table("package", "version", "tasks", "")
    for package in config.packages:
        add_row(table, package.name, package.version, str(counts[package.name]), failures.get(package.name, ""))
    Console().print(table)
    print(f"{len(tasks)} tasks of {len(counts)} packages in {arguments.out}")
    return 1 if failures else 0

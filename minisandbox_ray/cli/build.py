"""Build the environments of a data set's tasks, or of an EnvSpec file; what exists already is found.

Exit status: 0 if every task has its environment, 1 if some lack one (with the reason), 2 for bad input.
"""

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table

from minisandbox_ray.cli.building import BuildProgress, planning
from minisandbox_ray.cli.inputs import (
    add_isolation,
    archives_and_store,
    build_spec,
    check_writable,
    choose_tasks,
    read_spec,
)
from minisandbox_ray.cli.terminal import add_row
from minisandbox_ray.environments.cache import write_atomically
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import save_tasks
from minisandbox_ray.tasks.building import Builder, BuildReport, make_report, plan_jobs
from minisandbox_ray.tasks.building.report import built_tasks
from minisandbox_ray.tasks.datasets import Format, read_dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``WHAT`` is a data set, or a YAML file with the fields of EnvSpec."""
    add_isolation(parser)
    parser.add_argument(
        "what",
        metavar="DATASET|SPEC",
        help="a data set: parquet, JSON or JSON lines file, folder, or owner/name on the hub; or a YAML file with the "
        "fields of EnvSpec",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=int, default=cores, metavar="N", help="builds at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--repo-mirror", type=Path, metavar="DIR", help="where clones of repositories are looked for first"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tasks that are ready, as JSON lines")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what became of every row, as JSON")
    parser.add_argument("--only", metavar="IDS", help="instance ids with commas between, or a file with one a line")
    parser.add_argument("--split", help="of a data set that has several")
    parser.add_argument("--format", choices=get_args(Format), help="of the rows (default: told by the columns)")
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument(
        "--auto", dest="tables", action="store_const", const="auto", help="look for recipes that no table has by trying"
    )
    tables.add_argument(
        "--no-tables", dest="tables", action="store_const", const="no-tables", help="look for all recipes by trying"
    )
    parser.set_defaults(tables="tables")


def run(arguments: argparse.Namespace) -> int:
    """Print what became of it."""
    if Path(arguments.what).suffix in {".yaml", ".yml"}:
        return _run_spec(arguments)
    if arguments.workers < 1:
        raise ConfigError(f"--workers must be at least 1, not {arguments.workers}")
    if arguments.repo_mirror is not None and not arguments.repo_mirror.is_dir():
        raise ConfigError(f"--repo-mirror {arguments.repo_mirror} is no directory")
    for path, option in ((arguments.out, "--out"), (arguments.report, "--report")):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"cannot write {path}: its directory does not exist")
        if path is not None:
            check_writable(path, option)
    loaded = read_dataset(arguments.what, arguments.format, arguments.split)
    tasks, refused = choose_tasks(loaded, arguments.only)
    archives, store = archives_and_store(arguments.isolation)
    console = Console(stderr=True)
    with planning(console, len(tasks)) as on_task:
        plan = plan_jobs(tasks, store, arguments.repo_mirror, arguments.tables, on_task)
    with BuildProgress(console, len(plan.jobs)) as progress:
        outcomes = Builder(archives, store, arguments.repo_mirror).run(plan.jobs, arguments.workers, progress)
    report = make_report(arguments.what, loaded.format, refused, plan, outcomes)
    if arguments.report:
        write_atomically(arguments.report, f"{report.model_dump_json(indent=1)}\n".encode())
    if arguments.out:
        save_tasks(built_tasks(tasks, outcomes), arguments.out)
    _print(report)
    return 0 if report.complete else 1


def _run_spec(arguments: argparse.Namespace) -> int:
    """Print the environment's digest and sizes. Raises BuildError with the end of the build's log."""
    given = [name for name in ("out", "report", "only", "split", "format") if getattr(arguments, name) is not None]
    if given:
        raise ConfigError(f"--{given[0]} is for data sets, and {arguments.what} is an EnvSpec file")
    manifest = build_spec(read_spec(Path(arguments.what)), arguments.isolation, arguments.repo_mirror)
    print(
        f"{manifest.digest}  {manifest.packed_bytes / 2**20:.1f} MiB packed, "
        f"{manifest.unpacked_bytes / 2**20:.1f} MiB unpacked, {manifest.files} files"
    )
    return 0


def _print(report: BuildReport) -> None:
    console = Console()
    failed = [row for row in report.environments if row.status == "failed"]
    if failed:
        table = Table("environment", "tasks", "cause", "what it said last", title="failed", title_justify="left")
        for row in failed:
            last = row.message.strip().splitlines()
            said = last[0] if len(last) == 1 else last[-1].strip()
            add_row(table, row.source, _ids(row.tasks), row.cause, f"{said[:200]}\n{row.log}")
        console.print(table)
    lost = [*report.refused, *report.unplanned]
    if lost:
        table = Table("row", "field", "reason", title="left out", title_justify="left")
        for each in lost[:50]:
            add_row(table, each.instance_id, each.field, each.reason)
        console.print(table)
        if len(lost) > 50:
            print(f"… and {len(lost) - 50} more (--report has all)")
    counts = Counter(row.status for row in report.environments)
    size = sum(row.archive_bytes for row in report.environments) / 2**20
    print(
        f"{report.ready} of {report.tasks} tasks are ready; environments: {counts['built']} built, {counts['found']} "
        f"found, {counts['failed']} failed; {size:.1f} MiB packed"
    )


def _ids(tasks: list[str]) -> str:
    return ", ".join(tasks[:3]) + (f" and {len(tasks) - 3} more" if len(tasks) > 3 else "")

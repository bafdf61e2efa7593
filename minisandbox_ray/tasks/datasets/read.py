"""A data set by its path or name → tasks, and why each of the others is refused."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks.datasets.harbor import find_folders, harbor_task
from minisandbox_ray.tasks.datasets.r2e_gym import r2e_gym_task
from minisandbox_ray.tasks.datasets.row import BadRowError, Refusal, Row
from minisandbox_ray.tasks.datasets.rows import BadLine, Table, read_hub, read_table
from minisandbox_ray.tasks.datasets.swe_bench import swe_bench_task, swe_gym_task
from minisandbox_ray.tasks.datasets.swe_smith import swe_smith_task
from minisandbox_ray.tasks.task import Task

Format = Literal["swe-bench", "swe-smith", "swe-gym", "r2e-gym", "harbor", "minisandbox"]
"""`minisandbox` is this package's own: what `save_tasks` writes, the task factory's."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a data set gave."""

    format: Format
    tasks: list[Task]
    """In the data set's order; each instance id once."""
    refused: list[Refusal]


def _own_task(row: Row) -> Task:
    return Task.model_validate({name: value for name, value in row.columns.items() if value is not None})


_ADAPTERS: dict[Format, Callable[[Row], Task]] = {
    "swe-bench": swe_bench_task,
    "swe-smith": swe_smith_task,
    "swe-gym": swe_gym_task,
    "r2e-gym": r2e_gym_task,
    "minisandbox": _own_task,
}
_COLUMNS: list[tuple[Format, set[str]]] = [
    ("r2e-gym", {"repo_name", "commit_hash", "expected_output_json"}),
    ("minisandbox", {"instance_id", "repo", "environment", "test_command"}),
    ("swe-bench", {"instance_id", "repo", "base_commit", "test_patch", "FAIL_TO_PASS", "environment_setup_commit"}),
    ("swe-gym", {"instance_id", "repo", "base_commit", "test_patch", "FAIL_TO_PASS"}),
    ("swe-smith", {"instance_id", "patch", "FAIL_TO_PASS", "image_name"}),
]
"""What tells a format; the first that fits."""


def read_dataset(path: str | Path, format: Format | None = None, split: str | None = None) -> Loaded:
    """Tasks from a parquet, JSON or JSON lines file, a folder of those, one that `datasets` saved, Harbor's task
    folders, or (where there is no such path) the hub's data set of that name.

    `format` is told by the columns if not given. `split` names one of several. What is wrong with a row or folder is in
    `refused`; the rest loads. Raises ConfigError if there is no such data set or split, it cannot be read at all, or
    its format cannot be told.
    """
    if format is not None and format not in get_args(Format):
        raise ConfigError(f"no data set format {format!r}: expected {', '.join(get_args(Format))}")
    place = Path(path)
    if place.is_dir() and format in {None, "harbor"} and (folders := _task_folders(place, format)):
        return _collect("harbor", ((folder.name, _adapt_folder(folder)) for folder in folders))
    if format == "harbor":
        raise ConfigError(f"data set {path}: no folder with a task.toml at or below it")
    if place.exists():
        table = read_table(place, split)
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        table = read_hub(str(path), split)
    else:
        raise ConfigError(f"data set {path}: no such file or folder")
    known = format or _recognise(table, path)
    return _collect(known, _adapt_rows(table, _ADAPTERS[known]))


def _task_folders(place: Path, format: Format | None) -> list[Path]:
    try:
        return find_folders(place)
    except OSError as error:
        if format is None:
            return []
        raise ConfigError(f"data set {place} cannot be read: {error.strerror}") from error


def _recognise(table: Table, path: str | Path) -> Format:
    for name, columns in _COLUMNS:
        if columns <= table.columns:
            return name
    found = ", ".join(sorted(table.columns)) or "none"
    raise ConfigError(
        f"data set {path}: its columns ({found}) tell no format: name one of {', '.join(get_args(Format))}"
    )


def _adapt_rows(table: Table, adapter: Callable[[Row], Task]) -> Iterator[tuple[str, Task | Refusal]]:
    for number, columns in enumerate(table.rows, 1):
        name = f"row {number}"
        if isinstance(columns, BadLine):
            yield name, Refusal(name, "", columns.reason)
            continue
        given = columns.get("instance_id")
        name = given if isinstance(given, str) and given else name
        yield name, _adapt(name, lambda columns=columns, name=name: adapter(Row(columns, name)))  # type: ignore[misc]


def _adapt_folder(folder: Path) -> Task | Refusal:
    return _adapt(folder.name, lambda: harbor_task(folder))


def _adapt(name: str, make: Callable[[], Task]) -> Task | Refusal:
    try:
        return make()
    except BadRowError as error:
        return Refusal(name, error.field, " ".join(error.reason.split()))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return Refusal(name, ".".join(str(part) for part in first["loc"]), " ".join(first["msg"].split()))


def _collect(format: Format, found: Iterator[tuple[str, Task | Refusal]]) -> Loaded:
    tasks: dict[str, Task] = {}
    refused: list[Refusal] = []
    for name, each in found:
        if isinstance(each, Refusal):
            refused.append(each)
        elif each.instance_id in tasks:
            refused.append(Refusal(name, "instance_id", f"{each.instance_id} occurs twice"))
        else:
            tasks[each.instance_id] = each
    return Loaded(format, list(tasks.values()), refused)

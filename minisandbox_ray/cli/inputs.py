"""What the verbs take: task files, EnvSpec files, training configurations."""

import argparse
import difflib
import os
import tempfile
from pathlib import Path
from typing import get_args

from rich.console import Console

from minisandbox_ray.environments import EnvSpec, Manifest, NodeStore, build_environment, cache_root
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.sandbox import Isolation
from minisandbox_ray.tasks import Task, load_tasks, require_environments
from minisandbox_ray.tasks.datasets import Loaded, Refusal
from minisandbox_ray.tasks.quickstart import make_quickstart
from minisandbox_ray.yaml_file import read_model


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """For verbs that start sandboxes."""
    parser.add_argument(
        "--isolation",
        choices=get_args(Isolation),
        default="strict",
        help="strict (default): fail where this machine cannot isolate sandboxes; best-effort: do what it can",
    )


def add_address(parser: argparse.ArgumentParser) -> None:
    """For verbs that look at a cluster."""
    parser.add_argument("--address", help="Ray cluster, HOST:PORT; default: RAY_ADDRESS, else the one on this machine")


def archives_and_store(isolation: Isolation = "strict") -> tuple[Path, NodeStore]:
    """This machine's archives and node store, in the cache directory."""
    return cache_root() / "archives", NodeStore(cache_root() / "store", isolation=isolation)


def read_spec(path: Path) -> EnvSpec:
    """An EnvSpec from a YAML file. Raises ConfigError, one line."""
    return read_model(path, EnvSpec)


def build_spec(spec: EnvSpec, isolation: Isolation, repo_mirror: Path | None = None) -> Manifest:
    """Build the environment unless its archive exists, with a spinner on stderr."""
    archives, store = archives_and_store(isolation)
    with Console(stderr=True).status("building the environment"):
        return build_environment(spec, archives, store, repo_mirror=repo_mirror)


def check_writable(path: Path, option: str) -> None:
    """Raise ConfigError, before any work, for what is no file or in a place that takes none. Nothing is left there."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option} {path} is {'a directory' if path.is_dir() else 'a device'}, expected a file")
    folder = next(each for each in path.absolute().parents if each.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):  # modes say nothing about root, nor about /proc
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def choose_tasks(loaded: Loaded, only: str | None) -> tuple[list[Task], list[Refusal]]:
    """A data set's tasks and refused rows, or of those the ones that `only` names: ids with commas between, or a file
    with one a line. Raises ConfigError for ids that the data set lacks."""
    if only is None:
        return loaded.tasks, loaded.refused
    path = Path(only)
    try:
        is_file = os.path.isfile(only)  # noqa: PTH113 (False also for what is too long to be a file's name)
        text = path.read_text(encoding="utf-8") if is_file else only.replace(",", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    wanted = {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")}
    known = [task.instance_id for task in loaded.tasks] + [row.instance_id for row in loaded.refused]
    if lacking := sorted(wanted - set(known)):
        near = difflib.get_close_matches(lacking[0], known, n=3, cutoff=0.3)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise ConfigError(f"--only: the data set has no row {lacking[0]}{hint}")
    if not wanted:
        raise ConfigError(f"--only {only} names no row")
    tasks = [task for task in loaded.tasks if task.instance_id in wanted]
    return tasks, [row for row in loaded.refused if row.instance_id in wanted]


def read_tasks(name: str, isolation: Isolation = "strict") -> list[Task]:
    """Tasks from a JSON lines file, or those of a training configuration (YAML), which are made where they are not."""
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"}:
        return load_tasks(path)
    from minisandbox_ray.config import load_config
    from minisandbox_ray.telemetry.progress import task_progress

    source = load_config([f"config={path}"]).tasks
    if isinstance(source, Path):
        return load_tasks(source)
    archives, store = archives_and_store(isolation)
    with task_progress() as report:
        return make_quickstart(source, archives, store, report).tasks


def find_task(name: str) -> Task:
    """A task by ``FILE.jsonl:INSTANCE_ID``, or by its instance id among those that were made on this machine.

    Raises ConfigError that tells which tasks there are.
    """
    if (file := name.removesuffix(":")).endswith(".jsonl"):
        ids = [task.instance_id for task in load_tasks(file)]
        raise ConfigError(f"say which task: {file}:{ids[0]}{_listed(ids)}" if ids else f"{file} holds no tasks")
    file, colon, instance_id = name.rpartition(":")
    files = [Path(file)] if colon else sorted((cache_root() / "tasks").glob("*.jsonl"))
    known: list[str] = []
    for path in files:
        for task in load_tasks(path):
            if task.instance_id == instance_id:
                require_environments([task])
                return task
            known.append(task.instance_id)
    near = difflib.get_close_matches(instance_id, known, n=3, cutoff=0.3)
    if near:
        hint = f"; near it: {', '.join(near)}"
    elif known or colon:
        hint = _listed(known) or "; it holds none"
    else:
        hint = "; make the quickstart's with `make train`"
    raise ConfigError(f"no task {instance_id} in {file if colon else cache_root() / 'tasks'}{hint}")


def _listed(ids: list[str]) -> str:
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return f"; there are {', '.join(ids[:5])}{more}" if ids else ""

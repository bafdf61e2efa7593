"""List, verify, collect, export or import the environments in this machine's cache."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from minisandbox_ray.cli.inputs import archives_and_store
from minisandbox_ray.cli.terminal import add_row, literal
from minisandbox_ray.environments import BaseSystem, NodeStore, cache_root, describe, machine_directories
from minisandbox_ray.environments.exchange import export_environments, import_environments
from minisandbox_ray.environments.gc import collect_garbage
from minisandbox_ray.environments.package_layers import GRACE_SECONDS, unneeded
from minisandbox_ray.environments.verify import verify
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import load_tasks, require_environments

DAY = 86400.0
_SHORTEST = 6
"""Digits of a digest that may stand for all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``cache`` alone lists; digests may be cut short."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="one line per environment (the default)")
    check = actions.add_parser("verify", help="read archives and unpacked copies, and tell what is not as it was built")
    check.add_argument("digests", metavar="DIGEST", nargs="*", help="as `cache list` shows them")
    check.add_argument("--all", action="store_true", help="all that are here")
    collect = actions.add_parser("gc", help="remove environments that nobody needs, here and in the stores of nodes")
    collect.add_argument("--keep-tasks", metavar="FILE", type=Path, nargs="+", help="keep what these files' tasks need")
    collect.add_argument("--older-than", metavar="DAYS", type=_days, help="only what was not built or used since")
    collect.add_argument("--dry-run", action="store_true", help="remove nothing, tell what would go")
    send = actions.add_parser("export", help="write environments to one file, for a machine without a network")
    send.add_argument("digests", metavar="DIGEST", nargs="*", help="as `cache list` shows them")
    send.add_argument("file", metavar="FILE", type=Path, help="what is written")
    send.add_argument("--tasks", metavar="FILE", type=Path, nargs="+", default=[], help="these, and what they need")
    receive = actions.add_parser("import", help="take over what `cache export` wrote")
    receive.add_argument("file", metavar="FILE", type=Path, help="what `cache export` wrote")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 1 if `verify` found something damaged."""
    actions = {"verify": _verify, "gc": _collect, "export": _export, "import": _import}
    return actions.get(arguments.action, _list)(arguments)


def _list(_: argparse.Namespace) -> int:
    archives, store = archives_and_store()
    rows = describe(store, archives)
    table = Table(*(rows[0] if rows else ["empty"]), title=literal(str(cache_root())))
    for row in rows:
        add_row(table, *row.values())
    Console().print(table)
    packed, layers = ([path.stat().st_size for path in archives.glob(f"{place}*.tar.zst")] for place in ("", "layers/"))
    usage = store.usage()
    print(
        f"{len(packed)} archives of {_size(sum(packed))} with {len(layers)} layers of {_size(sum(layers))} that they "
        f"share, {usage.environments} environments unpacked to "
        f"{_size(usage.bytes)} of {_size(usage.budget_bytes)}; {_size(usage.free_bytes)} free"
    )
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    directories, stores = _everything()
    if arguments.all == bool(arguments.digests):
        raise ConfigError("name the environments to verify, or --all")
    known = _known(directories, stores)
    digests = sorted(known) if arguments.all else _whole(arguments.digests, known)
    problems = checked = size = 0
    layers: set[Path] = set()
    for digest in digests:
        for found in verify(digest, directories, stores, layers):
            checked += 1
            size += found.bytes
            problems += bool(found.problem)
            print(found.problem or f"{digest[:12]}  {_size(found.bytes):>10}  sound  {found.place}", flush=True)
    print(f"{checked} archives and unpacked copies, {_size(size)} sound, {problems} with problems")
    return int(problems > 0)


def _collect(arguments: argparse.Namespace) -> int:
    if arguments.keep_tasks is None and arguments.older_than is None:
        raise ConfigError("say what is garbage: all but what --keep-tasks FILE needs, --older-than DAYS, or both")
    keep = {digest for path in arguments.keep_tasks or [] for digest in _needed_by(path)}
    directories, stores = _everything()
    age = (arguments.older_than or 0.0) * DAY
    freed, gone = 0, set()
    for each in collect_garbage(directories, stores, keep, age, dry_run=arguments.dry_run):
        name = each.name[:12] if each.kind == "environment" else each.name
        if each.in_use:
            print(f"{name}  kept: in use")
            continue
        size = each.archive_bytes + each.unpacked_bytes
        freed += size
        gone.add(each.name)
        print(f"{name}  {_size(size):>10}  {each.kind} {'would go' if arguments.dry_run else 'removed'}", flush=True)
    print(f"{_size(freed)} {'would be' if arguments.dry_run else ''} freed".replace("  ", " "))
    for directory in directories:
        with unneeded(directory, gone, grace=0.0) as layers:
            young = [path.stat().st_size for path in layers if path.name not in gone]
        if young:
            age = f"{GRACE_SECONDS / 60:.0f} minutes after last use"
            print(f"{directory}: {len(young)} layers, {_size(sum(young))}, go {age}")
    return 0


def _needed_by(path: Path) -> set[str]:
    """Raises ConfigError for a file by which nothing would be kept: it is not the one that was meant."""
    tasks = load_tasks(path)
    if not any(task.environment for task in tasks):
        what = "names an environment" if tasks else "is there"
        raise ConfigError(f"--keep-tasks {path}: no task {what}, so nothing would be kept; is it the right file?")
    return {task.environment for task in tasks}


def _export(arguments: argparse.Namespace) -> int:
    archives, store = archives_and_store()
    digests = _whole(arguments.digests, _known([archives], []))
    for path in arguments.tasks:
        tasks = load_tasks(path)
        require_environments(tasks)
        digests += [task.environment for task in tasks]
    if not digests:
        raise ConfigError("name the environments to export, or files of tasks that need them with --tasks")
    done = export_environments(digests, arguments.file, archives, store, arguments.tasks)
    print(
        f"{arguments.file}: {_size(done.bytes)}, {len(done.environments)} environments, "
        f"{len(done.interpreters)} interpreters, {len(done.tasks)} files of tasks"
    )
    return 0


def _import(arguments: argparse.Namespace) -> int:
    archives, store = archives_and_store()
    done = import_environments(arguments.file, archives, store, cache_root() / "tasks")
    for manifest in done.environments:
        fits = "" if manifest.base == BaseSystem.here() else f"  for {manifest.base.os}, {manifest.base.arch} only"
        print(f"{manifest.digest}  {_size(manifest.packed_bytes):>10}  {manifest.spec.describe()}{fits}")
    for name in done.tasks:
        print(cache_root() / "tasks" / name)
    print(
        f"{len(done.environments)} environments, {len(done.interpreters)} interpreters, {len(done.tasks)} files of "
        f"tasks; {done.known} were here before"
    )
    return 0


def _everything() -> tuple[list[Path], list[NodeStore]]:
    directories, stores = machine_directories()
    return directories, [NodeStore(root) for root in stores]


def _known(directories: Iterable[Path], stores: Iterable[NodeStore]) -> set[str]:
    names = {path.name.partition(".")[0] for each in directories for path in each.glob("[0-9a-f]*.json")}
    return {name for name in names if len(name) == 64}.union(*(store.held() for store in stores))


def _whole(beginnings: Iterable[str], known: set[str]) -> list[str]:
    """Raises ConfigError for what is the beginning of no digest, or of several."""
    found = []
    for beginning in beginnings:
        matching = [digest for digest in known if digest.startswith(beginning) and len(beginning) >= _SHORTEST]
        if len(matching) != 1:
            why = f"{len(matching)} begin so" if matching else f"`cache list` shows them, {_SHORTEST} digits will do"
            raise ConfigError(f"no environment {beginning} in {cache_root()}: {why}")
        found += matching
    return found


def _days(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"not a number of days: {text}")
    return value


def _size(number: int) -> str:
    return f"{number / 1e6:.1f} MB"

"""Choose from trajectories, look at them, and write them in other forms."""

import argparse
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table

from minisandbox_ray.cli.inputs import check_writable
from minisandbox_ray.cli.rollout import check_positive
from minisandbox_ray.cli.terminal import add_row, literal, plain
from minisandbox_ray.errors import ConfigError

if TYPE_CHECKING:
    from minisandbox_ray.rollout.trajectory import Trajectory

_SHOWN = 2000  # characters of an observation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``filter``, ``show``, ``export-sft`` and ``export-traj``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="filter|show|export-sft|export-traj")
    for name, text in (
        ("filter", "write those that fit to another file of trajectories"),
        ("export-sft", "write those that fit as chat messages, JSON lines, for supervised fine-tuning"),
        ("export-traj", "write those that fit in the shape of SWE-agent's .traj files, one each, into a directory"),
    ):
        sub = actions.add_parser(name, help=text, description=text)
        _add_files(sub)
        _add_filters(sub)
        sub.add_argument("--out", type=Path, required=True, help="file or directory to write")
        if name == "export-sft":
            sub.add_argument("--system", default="", help="text of a system message before each prompt")
    text = "list them, or print one turn by turn"
    show = actions.add_parser("show", help=text, description=text)
    _add_files(show)
    _add_filters(show)
    show.add_argument("--task", help="instance_id of the one to print")
    show.add_argument("--sample", type=int, help="which of the task's samples (default: the first)")
    show.add_argument("--full", action="store_true", help="print observations whole")


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="trajectories.jsonl, or its directory")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--resolved", action="store_true", default=None, help="only resolved ones")
    which.add_argument("--unresolved", dest="resolved", action="store_false", default=None, help="only the others")
    parser.add_argument("--per-task", type=int, metavar="N", help="of each task the first N")
    parser.add_argument("--per-repository", type=int, metavar="N", help="of each repository the first N")
    parser.add_argument("--max-chars", type=int, metavar="N", help="none longer, prompt and observations included")
    parser.add_argument("--max-turns", type=int, metavar="N", help="none with more turns")


def run(arguments: argparse.Namespace) -> int:
    """Run the action; 1 if no trajectory fits."""
    from minisandbox_ray.rollout.export import choose, read_trajectories

    filters = ("per_task", "per_repository", "max_chars", "max_turns")
    check_positive(arguments, *filters)
    if arguments.action in ("filter", "export-sft"):
        check_writable(arguments.out, "--out")
    has_filter = arguments.resolved is not None or any(getattr(arguments, name) for name in filters)
    found = read_trajectories(arguments.files)
    if is_chosen := arguments.action != "show" or has_filter:
        options = {name: getattr(arguments, name) for name in filters}
        found = choose(found, resolved=arguments.resolved, **options)
    if arguments.action == "show" and arguments.task:
        return _show_one(found, arguments)
    first = next(found, None)
    if first is None:
        print("no trajectory fits" if is_chosen else f"no trajectory in {', '.join(map(str, arguments.files))}")
        return 1
    found = itertools.chain([first], found)
    if arguments.action == "show":
        _list(found)
        return 0
    count = _write(found, arguments)
    print(f"{count} trajectories in {arguments.out}")
    return 0


def _write(found: "Iterable[Trajectory]", arguments: argparse.Namespace) -> int:
    from minisandbox_ray.environments.cache import write_atomically
    from minisandbox_ray.rollout.export import chat, swe_agent

    out: Path = arguments.out
    count = 0
    try:
        if arguments.action == "export-traj":
            out.mkdir(parents=True, exist_ok=True)
            for each in found:
                count += 1
                name = re.sub(r"[^\w.+-]", "_", each.instance_id)
                write_atomically(out / f"{name}.{each.sample}.traj", json.dumps(swe_agent(each), indent=2).encode())
            return count
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}.partial")
        try:
            with partial.open("wb") as file:
                for each in found:
                    count += 1
                    line = each.line()
                    if arguments.action == "export-sft":
                        line = json.dumps(chat(each, arguments.system)).encode() + b"\n"
                    file.write(line)
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from error
    return count


def _list(found: "Iterable[Trajectory]") -> None:
    table = Table("task", "sample", "outcome", "reward", "turns", "seconds", "")
    for each in found:
        outcome = f"failed ({each.failure_owner})" if each.failure_owner else _verdict(each)
        why = each.failure or (each.graded or {}).get("reason", "")
        row = (each.instance_id, str(each.sample), outcome, f"{each.reward:g}", str(len(each.turns)))
        add_row(table, *row, f"{each.seconds.get('total', 0):.1f}", why)
    Console().print(table)


def _verdict(trajectory: "Trajectory") -> str:
    return "resolved" if trajectory.resolved else "unresolved"


def _show_one(found: "Iterable[Trajectory]", arguments: argparse.Namespace) -> int:
    samples = [each for each in found if each.instance_id == arguments.task]
    chosen = [each for each in samples if arguments.sample in (None, each.sample)]
    if not chosen:
        what = f"sample {arguments.sample} of task" if samples else "task"
        raise ConfigError(f"no {what} {arguments.task} among these trajectories")
    each, console = chosen[0], Console()
    console.rule(literal(f"{each.instance_id}, sample {each.sample}: {each.failure_owner or _verdict(each)}"))
    if each.prompt:
        console.print(Panel(literal(each.prompt), title="prompt"))
    for number, turn in enumerate(each.turns, 1):
        status = "" if turn.exit_code is None else f", status {turn.exit_code}"
        console.print(Panel(literal(turn.action), title=f"{number}: action"))
        text = turn.observation
        if len(text) > _SHOWN and not arguments.full:
            text = f"{text[:_SHOWN]}\n[{len(text) - _SHOWN} characters more: --full]"
        console.print(Panel(literal(text), title=f"{number}: {turn.seconds:.2f} s{status}", border_style="dim"))
    if each.diff:
        console.print(Panel(Syntax(plain(each.diff), "diff"), title="diff"))
    why = each.failure or (each.graded or {}).get("reason", "")
    console.print(literal(f"reward {each.reward:g}{f': {why}' if why else ''}"))
    return 0

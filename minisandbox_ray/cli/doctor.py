"""Say whether sandboxes work on this machine, how, and what is missing."""

import argparse
import dataclasses
import json
import platform

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from minisandbox_ray.environments import cache_root
from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox.mechanisms import Mechanism, probe, strict_failure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--json` for machines."""
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Try each mechanism for real and print a table; 0 only if strict sandboxes work here."""
    if platform.system() != "Linux":
        raise SandboxError(f"sandboxes need Linux, this is {platform.system()}")
    found = probe(cache_root())
    failure = strict_failure(found)
    if arguments.json:
        rows = [dataclasses.asdict(each) for each in found]
        print(json.dumps({"strict": failure is None, "verdict": _verdict(found), "mechanisms": rows}, indent=2))
    else:
        console = Console()
        console.print(_table(found))
        console.print(_verdict(found), markup=False, highlight=False, soft_wrap=True)
    return 0 if failure is None else 1


def _table(found: list[Mechanism]) -> Table:
    table = Table("mechanism", "here", "used")
    table.add_column("which; or why not, what is lost, how to get it", overflow="fold")
    last = ""
    for each in found:
        lines = [each.detail]
        if not each.available:
            lines += [f"lost: {each.lost}"] if each.lost else []
            lines += [f"get it: {'as above' if each.remedy == last else each.remedy}"]
            last = each.remedy
        here = "[green]yes" if each.available else "[red]no" if each.strict else "[yellow]no"
        used = "yes" if each.available and each.chosen else "no"
        table.add_row(each.name, here, used, escape("\n".join(filter(None, lines))))
    return table


def _verdict(found: list[Mechanism]) -> str:
    """One line."""
    if failure := strict_failure(found):
        less = any(each.name == "a best-effort sandbox" and each.available for each in found)
        rest = "; `isolation: best-effort` works" if less else ""
        return f"strict sandboxes do not work here: no {failure.name}: {failure.detail}; {failure.remedy}{rest}"
    degraded = [each.name for each in found if not each.available and not each.strict and each.lost]
    return "strict sandboxes work here" + (f"; without {', '.join(degraded)}" if degraded else "")

"""List the environments in this machine's cache, and what they take."""

import argparse

from rich.console import Console
from rich.table import Table

from minisandbox_ray.cli.inputs import archives_and_store
from minisandbox_ray.environments import cache_root, describe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb takes no argument."""


def run(arguments: argparse.Namespace) -> int:
    """Print one line per environment."""
    archives, store = archives_and_store()
    rows = describe(store, archives)
    table = Table(*(rows[0] if rows else ["empty"]), title=str(cache_root()))
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)
    return 0

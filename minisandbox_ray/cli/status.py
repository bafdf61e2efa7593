"""Show the pools of a Ray cluster: slots, leases, stores, unpacks and failures, node by node."""

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from minisandbox_ray.cli.inputs import add_address
from minisandbox_ray.cli.terminal import add_row, literal

WIDTH = 110
"""Of the tables at least, in characters: names of nodes are not cut."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything has a default."""
    parser.add_argument("--json", action="store_true", help="the same as JSON: {pool: figures}")
    add_address(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a table per pool."""
    from minisandbox_ray.cluster import join
    from minisandbox_ray.cluster.directory import pool_names, pool_stats

    with join(arguments.address):
        pools = {name: pool_stats(name) for name in pool_names()}
    if arguments.json:
        print(json.dumps(pools, indent=2))
    elif not pools:
        print("no pool runs on this Ray cluster")
    else:
        for name, stats in pools.items():
            console = Console()
            console.width = max(console.width, WIDTH)
            _show(console, name, stats)
    return 0


def _show(console: Console, name: str, stats: dict[str, Any]) -> None:
    headings = "node", "sandboxes", "store, GiB", "environments", "hit rate", "unpacking", "at most"
    table = Table(*headings, title=literal(f"pool {name}"))
    for node in stats["nodes"].values():
        asked = node["hits"] + node["misses"]
        add_row(
            table,
            node["name"] + (" (draining)" if node["draining"] else ""),
            f"{node['used']} of {node['slots']}",
            f"{node['store']['bytes'] / 2**30:.1f} of {node['store']['budget_bytes'] / 2**30:.0f}",
            str(node["environments"]),
            f"{node['hits'] / asked:.0%}" if asked else "",
            str(node["unpacking"]),
            f"{node['unpack_slots_peak']} of {node['unpack_slots']} slots",
        )
    console.print(table)
    waits = stats["wait_seconds"]
    median = f", median wait {waits[len(waits) // 2] * 1e3:.0f} ms" if waits else ""
    print(
        f"{stats['granted']} leases so far{median}; {stats['waiting']} requests wait; {len(stats['clients'])} clients"
    )
    parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in sorted(stats["unpack_seconds"].items()))
    print(f"{stats['unpacks']} unpacks, {stats['unpacked_bytes'] / 2**30:.2f} GiB{f' ({parts})' if parts else ''}")
    failures = ", ".join(f"{count} {owner}" for owner, count in sorted(stats["failures"].items()))
    print(f"failures by owner: {failures or 'none'}; workers lost: {stats['lost_workers']}")
    for reason in stats["troubles"].values():
        print(f"trouble: {reason}")

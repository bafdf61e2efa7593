"""List the pools of a Ray cluster, or end one that is shared."""

import argparse

from minisandbox_ray.cli.inputs import add_address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``pool list`` and ``pool stop NAME``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_address(actions.add_parser("list", help="names of the pools, one per line"))
    stop = actions.add_parser("stop", help="end a pool, with all the sandboxes that its clients hold")
    stop.add_argument("name", metavar="NAME", help="as in cluster.pool")
    add_address(stop)


def run(arguments: argparse.Namespace) -> int:
    """Print names, or that the pool has ended."""
    from minisandbox_ray.cluster import join
    from minisandbox_ray.cluster.directory import pool_names, stop_pool

    with join(arguments.address):
        if arguments.action == "list":
            for name in pool_names():
                print(name)
        else:
            stop_pool(arguments.name)
            print(f"pool {arguments.name} has ended")
    return 0

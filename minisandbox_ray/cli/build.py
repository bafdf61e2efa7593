"""Build the environment of an EnvSpec file; nothing is done when its archive exists."""

import argparse
from pathlib import Path

from minisandbox_ray.cli.inputs import add_isolation, build_spec, read_spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``SPEC`` is a YAML file with the fields of EnvSpec."""
    add_isolation(parser)
    parser.add_argument("spec", metavar="SPEC", type=Path, help="YAML file with the fields of EnvSpec")


def run(arguments: argparse.Namespace) -> int:
    """Print the environment's digest and sizes. Raises BuildError with the end of the build's log."""
    manifest = build_spec(read_spec(arguments.spec), arguments.isolation)
    print(
        f"{manifest.digest}  {manifest.archive_bytes / 2**20:.1f} MiB packed, "
        f"{manifest.unpacked_bytes / 2**20:.1f} MiB unpacked, {manifest.files} files"
    )
    return 0

"""Write a page about runs: curves, where time went, failures, and trajectories to click through."""

import argparse
from pathlib import Path

from minisandbox_ray.environments.cache import write_atomically
from minisandbox_ray.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Directories of training runs and of rollouts; those that still run, too."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN_DIR",
        help="directory of a training run or of rollouts; several are shown together, as seeds of one thing",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="HTML file to write (default: report.html in the first RUN_DIR)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print where it is."""
    from minisandbox_ray.report import page, read_run
    from minisandbox_ray.report.read import names_of

    names = names_of(arguments.runs)
    runs = [read_run(directory, name) for directory, name in zip(arguments.runs, names, strict=True)]
    output: Path = arguments.output or arguments.runs[0] / "report.html"
    if output.is_dir():
        raise ConfigError(f"--output {output} is a directory, expected a file")
    content = page(runs).encode()
    try:
        write_atomically(output, content)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from error
    episodes = sum(len(each.episodes) for each in runs)
    print(f"{len(runs)} runs, {episodes} trajectories, {len(content) / 2**20:.1f} MiB | {output}")
    return 0

"""Share of packages for which the automatic builder finds an environment in which the package's own tests run.

    python benchmarks/auto_build.py [--json FILE] [--workers N] [--packages LIST …] [--only NAME …] [--fresh]

The lists beside this file are those that `auto_build_select.py` drew; by default the sixth and the seventh are built:
30 packages of the most used ones. Nothing is known of a package but its source distribution. An environment is found
if it builds and, in a sandbox without a network, the package's tests are collected and run twice, at most a fifth of
them failing (`minisandbox_ray/tasks/automatic/trial.py`), apart from those, up to a half, that fail for what no
environment has: a network, a service, what the distribution lacks. Where that fails, half of the files will do
(`parts.py` beside it). How many these are is printed beside. None is left out or replaced; each failure is printed
with its cause. What was found before comes from the cache unless --fresh. The exit status is 0 if the share is at
least 0.8.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from minisandbox_ray.environments import NodeStore, Source, cache_root
from minisandbox_ray.errors import MiniSandboxError, first_line
from minisandbox_ray.tasks.automatic import AutomaticConfig, find_environment

BAR = 0.8
LISTS = [Path(__file__).with_name(f"auto_build_packages_{number}.txt") for number in (6, 7)]


@dataclass
class Outcome:
    """What became of a package."""

    name: str
    version: str
    found: bool = False
    python: str = ""
    passing: int = 0
    failing: int = 0
    uncollected: int = 0
    excused: int = 0
    excuses: list[str] = field(default_factory=list)
    attempts: int = 0
    repairs: list[str] = field(default_factory=list)
    cause: str = ""
    seconds: float = 0.0


def build(line: str, config: AutomaticConfig) -> Outcome:
    """One package of the list."""
    name, version, sha256, *_ = line.split()
    outcome, started = Outcome(name, version), time.monotonic()
    store = NodeStore(cache_root() / "store")
    try:
        found = find_environment(
            Source(kind="sdist", name=name, version=version, sha256=sha256),
            archives=cache_root() / "archives",
            store=store,
            config=config,
            log=lambda text: print(text, file=sys.stderr, flush=True),
        )
        outcome.found, outcome.python, outcome.repairs = True, found.spec.python, found.learned
        outcome.passing, outcome.failing = len(found.passing), len(found.failing)
        outcome.uncollected, outcome.attempts = len(found.uncollected), found.attempts
        outcome.excused, outcome.excuses = len(found.excused), sorted(set(found.excused.values()))
    except MiniSandboxError as error:
        outcome.cause = first_line(error)
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome


def show(outcomes: list[Outcome]) -> None:
    """For people."""
    table = Table(
        "package", "python", "pass", "fail", "excused", "attempts", "what it took, or why not", title="automatic builds"
    )
    for each in outcomes:
        words = "; ".join(each.repairs) if each.found else each.cause
        failing = str(each.failing + each.uncollected) if each.found else ""
        passing = str(each.passing) if each.found else "none"
        row = (passing, failing, str(each.excused or ""), str(each.attempts or ""), words)
        table.add_row(f"{each.name} {each.version}", each.python, *row)
    Console(width=160).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--packages", type=Path, nargs="+", default=LISTS)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--fresh", action="store_true", help="search again, whatever was found before")
    arguments = parser.parse_args()
    lines = [line for path in arguments.packages for line in path.read_text().splitlines()]
    if arguments.only:
        lines = [line for line in lines if line.split()[0] in arguments.only]
    if arguments.fresh:
        for path in (cache_root() / "automatic").glob("*.json"):
            path.unlink()
    config = AutomaticConfig()
    with ThreadPoolExecutor(arguments.workers) as pool:
        outcomes = list(pool.map(lambda line: build(line, config), lines))
    show(outcomes)
    share = sum(each.found for each in outcomes) / len(outcomes)
    print(f"{sum(each.found for each in outcomes)} of {len(outcomes)}: {share:.2f} (bar {BAR})")
    if arguments.json:
        figures = {"auto_build_share": share, "packages": [asdict(each) for each in outcomes]}
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0 if share >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())

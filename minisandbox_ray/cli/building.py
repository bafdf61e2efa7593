"""What a person sees while a data set's environments are built: bars on a terminal, lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from minisandbox_ray.cli.terminal import literal, plain
from minisandbox_ray.tasks import Task
from minisandbox_ray.tasks.building import Job, Outcome


@contextmanager
def planning(console: Console, total: int) -> Iterator[Callable[[Task], None]]:
    """A bar while recipes and commits are looked up."""
    if not console.is_terminal:
        yield lambda task: None
        return
    with _bars(console) as bars:
        bar = bars.add_task("looking up recipes and commits", total=total)
        yield lambda task: bars.advance(bar)


class BuildProgress:
    """A bar for all, and a line with the step for each build under way."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._count = console, total, 0
        self._bars = _bars(console) if console.is_terminal else None
        self._all: TaskID | None = None
        self._lines: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
            self._all = self._bars.add_task("environments", total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def step(self, job: Job, line: str) -> None:
        """A build under way comes to a step."""
        if self._bars:
            text = escape(f"{_name(job)}: {line}"[: max(20, self._console.width - 40)])
            if job.key not in self._lines:
                self._lines[job.key] = self._bars.add_task(text, total=None)
            self._bars.update(self._lines[job.key], description=text)

    def done(self, outcome: Outcome) -> None:
        """A build is over."""
        self._count += 1
        if self._bars and self._all is not None:
            self._bars.advance(self._all)
            if outcome.job.key in self._lines:
                self._bars.remove_task(self._lines.pop(outcome.job.key))
        result = outcome.result
        what = "failed: " + result.cause if not result.digest else "built" if outcome.attempts else "found"
        took = f" in {outcome.seconds:.0f} s" if outcome.attempts else ""
        line = f"[{self._count}/{self._total}] {_name(outcome.job)}: {what}{took}"
        if self._bars:
            self._bars.console.print(literal(line))
        else:
            print(plain(line), file=sys.stderr, flush=True)


def _bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def _name(job: Job) -> str:
    more = f" (+{len(job.tasks) - 1})" if len(job.tasks) > 1 else ""
    return f"{job.tasks[0].instance_id}{more}"

"""A progress bar on stderr that is gone when the work is done; lines where stderr is no terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress


@contextmanager
def task_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields what ``make_quickstart`` reports to: what was just done, how many so far, how many in all."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, done, total: print(f"making tasks: {done}/{total} | {what}", file=sys.stderr, flush=True)
        return
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("making tasks", total=None)
        yield lambda what, done, total: progress.update(bar, description=escape(what), completed=done, total=total)

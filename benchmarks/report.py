"""Figures by name, and the same for people."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measure import Timings, quantile
from rich.console import Console
from rich.table import Table

Figure = float | int | str | None


def print_bars(figures: Mapping[str, Any], bars: Mapping[str, tuple[str, float]]) -> bool:
    """A row for each figure that has a bar ("<=" or ">=") and was measured; -> whether any is missed."""
    table = Table("", "measured", "bar", "")
    missed = False
    for name, (sign, bar) in bars.items():
        value = figures[name]
        if value is not None:
            is_met = value <= bar if sign == "<=" else value >= bar
            missed = missed or not is_met
            table.add_row(name, f"{value:.3g}", f"{sign} {bar}", "ok" if is_met else "missed")
    Console().print(table)
    return missed


def ms(values: list[float], share: float = 0.5) -> float:
    """Of seconds, their median or another quantile in milliseconds."""
    return quantile(values, share) * 1e3


def shown(value: float, unit: str = "ms") -> str:
    """Three digits; milliseconds become seconds where they are many."""
    if unit == "ms" and value >= 1e4:
        value, unit = value / 1e3, "s"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}{unit if unit == '×' else ' ' + unit}"


def both(values: list[float]) -> str:
    """Of seconds, median and 90th percentile."""
    return f"{shown(ms(values))} ({shown(ms(values, 0.9))})"


class Report:
    """What was measured; a figure that was not is a null."""

    def __init__(self, names: list[str]) -> None:
        self.figures: dict[str, Figure] = dict.fromkeys(names)
        self._table = Table()
        for heading in ("", "ours", "theirs", "ratio", "against"):
            self._table.add_column(heading, justify="right" if heading in ("ours", "theirs", "ratio") else "left")

    def row(self, what: str, ours: str, theirs: str = "", ratio: float | None = None, against: str = "") -> None:
        """A line of the table."""
        self._table.add_row(what, ours, theirs, "" if ratio is None else shown(ratio, "×"), against)

    def compare(
        self,
        what: str,
        ours: list[float],
        theirs: list[float] | None,
        against: str,
        figure: str,
        text: Callable[[list[float]], str] | None = None,
    ) -> None:
        """A line that compares medians; `figure` names their ratio, theirs over ours. None: not installed."""
        text = text or (lambda values: shown(ms(values)))
        if theirs is None:
            self.row(what, text(ours), "not installed", None, against)
        else:
            self.figures[figure] = quantile(theirs) / quantile(ours)
            self.row(what, text(ours), text(theirs), quantile(theirs) / quantile(ours), against)

    def record(self, name: str, timings: Timings) -> None:
        """Starts under `start…` names, closes under `close…`; name is what follows, such as "32_bwrap"."""
        self.figures |= {f"start{name}_ms": ms(timings.start), f"start{name}_p90_ms": ms(timings.start, 0.9)}
        if timings.close:
            self.figures[f"close{name}_ms"] = ms(timings.close)
        if timings.ready:
            self.figures[f"ready{name}_ms"] = ms(timings.ready)

    def section(self) -> None:
        """A rule under the last line."""
        self._table.add_section()

    def show(self, title: str) -> None:
        """Print the table."""
        self._table.title = title
        console = Console()
        console.width = console.width if console.is_terminal else 150
        console.print(self._table)

    def save(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(self.figures, indent=2) + "\n")

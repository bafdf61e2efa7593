"""A pytest plugin that notes which lines of /testbed each test runs. It is copied into a sandbox and imports nothing
of this package; it needs Python 3.12 (sys.monitoring, PEP 669)."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

ROOT = "/testbed/"
_monitoring = sys.monitoring
_covered: dict[str, list[tuple[str, int]]] = {}
_current: set[tuple[str, int]] = set()


def _on_line(code: CodeType, line: int) -> object:
    if code.co_filename.startswith(ROOT):
        _current.add((code.co_filename[len(ROOT) :], line))
    # Once per place is enough, until the next test.
    return _monitoring.DISABLE


def pytest_configure() -> None:
    _monitoring.use_tool_id(_monitoring.COVERAGE_ID, "spectrum")
    _monitoring.register_callback(_monitoring.COVERAGE_ID, _monitoring.events.LINE, _on_line)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _current.clear()
    _monitoring.restart_events()
    _monitoring.set_events(_monitoring.COVERAGE_ID, _monitoring.events.LINE)
    yield
    _monitoring.set_events(_monitoring.COVERAGE_ID, 0)
    _covered[item.nodeid] = sorted(_current)


def pytest_sessionfinish() -> None:
    Path(os.environ["SPECTRUM_FILE"]).write_text(json.dumps(_covered), encoding="utf-8")

"""One run of pytest in a sandbox. What became of the tests is told by a plugin of ours, see `witness`."""

import hmac
import json
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from minisandbox_ray.sandbox import Sandbox

Status = Literal["passed", "failed", "error", "skipped", "xfailed", "missing"]
PASSING = frozenset({"passed", "xfailed"})
"""What counts as passing, as SWE-bench's harness counts (an expected failure that happened is as expected)."""

_SEVERITY: list[Status] = ["passed", "xfailed", "skipped", "failed", "error"]
VARIABLES = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PY_COLORS": "0",
    "NO_COLOR": "1",
    "TZ": "UTC",
    "COLUMNS": "120",
}
_OPTIONS = "-p minisandbox_witness -p no:cacheprovider --rootdir=. --continue-on-collection-errors"
_WITNESS = Path(__file__).with_name("witness.py")
PLACE = "/opt/witness"
_LARGEST_REPORT = 64 << 20
"""Bytes; tens of thousands of tests that all fail at length."""


@dataclass(frozen=True)
class Case:
    """What became of one test."""

    status: Status
    message: str = ""
    """The exception, as pytest sums it up."""
    traceback: str = ""
    """pytest's short traceback."""
    seconds: float = 0.0
    """How long the test itself took."""
    printed: str = ""
    """What its runner calls it, where that is not pytest."""


@dataclass(frozen=True)
class TestRun:
    """What one run of pytest told."""

    __test__ = False  # not a test class, whatever its name

    cases: dict[str, Case] = field(default_factory=dict)
    """By id, file::class::name[parameters]. Empty for a run that did not come to its end."""
    tests_of: dict[str, list[str]] = field(default_factory=dict)
    """The tests that share an id, where the ids of `cases` are not pytest's own."""
    collection_errors: list[str] = field(default_factory=list)
    """Modules that could not be collected."""
    exit_code: int = 0
    timed_out: bool = False
    stalled: bool = False
    """Whether it was ended because no test told anything for so long, see `run_tests`."""
    unfinished: dict[str, Case] = field(default_factory=dict)
    """What a run that timed out or hit a limit had told until then: these are no results."""
    limit: str | None = None
    """The sandbox's limit that the run hit, if any."""
    log: str = ""
    """The end of what was printed."""
    seconds: float = 0.0
    tampered: list[str] = field(default_factory=list)
    """What the code under test did to the test runner or its report, a line each."""

    def status(self, test: str) -> Status:
        """A test's status; what did not report is missing."""
        return self.cases[test].status if test in self.cases else "missing"

    def tests_behind(self, test: str) -> list[str]:
        """What pytest calls it: often the same, sometimes several."""
        return self.tests_of.get(test, [test])

    @property
    def passed(self) -> set[str]:
        """Ids of the tests that passed."""
        return {test for test, case in self.cases.items() if case.status in PASSING}


def run_tests(
    sandbox: Sandbox,
    test_command: list[str],
    targets: list[str],
    *,
    timeout: float = 300,
    silence: float = 0,
    max_failures: int = 0,
    options: list[str] | None = None,
    variables: dict[str, str] | None = None,
    log_chars: int = 20_000,
    listed: Collection[str] = (),
    touched: Collection[str] = (),
    control: bool = False,
) -> TestRun:
    """Runs pytest on `targets` (files or directories) at /testbed.

    `timeout` is in seconds; a run in which no test ends for `silence` seconds (0: any time) is ended as by it, once one
    has. `max_failures` ends the run early (0: never). The functions of the `listed` tests are
    watched; `control` runs these alone, each with a failure at its end. `touched` are the files whose code is the
    agent's. Raises SandboxError if the sandbox fails.
    """
    sandbox.write_file(f"{PLACE}/minisandbox_witness.py", _WITNESS.read_bytes())
    argv = [
        *[*test_command, *_OPTIONS.split(), f"--maxfail={max_failures}"],
        "--tb=native" if control else "--tb=short",  # where all fail, what takes least time
        *[*(options or []), "--", *targets],
    ]
    settings = {
        "files": functions_of(listed),
        "only": sorted(listed) if control else [],
        "control": control,
        "touched": sorted(touched),
    }
    return run_witnessed(
        sandbox, argv, settings, timeout=timeout, variables=variables, log_chars=log_chars, silence=silence
    )


def run_witnessed(
    sandbox: Sandbox,
    argv: list[str],
    settings: dict[str, Any],
    *,
    timeout: float,
    variables: dict[str, str] | None = None,
    log_chars: int,
    silence: float = 0,
) -> TestRun:
    """Runs a program at /testbed that loads the witness, which gets the settings and a key. As `run_tests`."""
    variables = variables or {}
    path = variables.get("PYTHONPATH", sandbox.spec.env.get("PYTHONPATH", ""))
    report, log = _Report(secrets.token_bytes(32)), Tail(log_chars)
    settings = {**settings, "key": report.key.hex(), "path": path}
    with _watched(report, silence) as watch:
        result = sandbox.execute(
            argv,
            stdin=json.dumps(settings).encode() + b"\n",
            cwd="/testbed",
            env=VARIABLES | variables | {"PYTHONPATH": f"{PLACE}:{path}" if path else PLACE},
            timeout=timeout,
            max_output=1 << 16,
            on_output=lambda stream, data: (report if stream == 1 else log).add(data),
            stop=watch.stop,
        )
    cases: dict[str, Case] = {}
    errors: list[str] = []
    if report.has_ended and not result.timed_out:
        cases, errors = report.cases, report.uncollected
    limit = None if result.limit == "output" else result.limit  # printing a lot is no failure
    return TestRun(
        cases=cases,
        collection_errors=errors,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        stalled=result.timed_out and watch.is_over,
        unfinished=report.cases if result.timed_out or limit else {},
        limit=limit,
        log=report.preface + log.text(),
        seconds=result.seconds,
        tampered=report.tampered,
    )


@dataclass
class _Watch:
    """Of a run that may not be silent for long."""

    stop: int | None = None
    """A descriptor that is readable once it is to be ended."""
    is_over: bool = False


@contextmanager
def _watched(report: "_Report", silence: float) -> Iterator[_Watch]:
    """A watch over a run. No silence is too long if it is 0."""
    watch, done = _Watch(), threading.Event()
    if not silence:
        yield watch
        return
    watch.stop, end = os.pipe()

    def look() -> None:
        while not done.wait(min(1, silence / 4)):
            if report.cases and time.monotonic() - report.heard > silence:
                watch.is_over = True
                os.write(end, b"x")
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        done.set()
        thread.join()
        os.close(watch.stop)
        os.close(end)


def functions_of(tests: Collection[str]) -> dict[str, list[str]]:
    """The functions (Class::name) of tests by file."""
    files: dict[str, set[str]] = {}
    for test in tests:
        file, _, rest = test.partition("::")
        files.setdefault(file, set()).add(rest.partition("[")[0])
    return {file: sorted(names) for file, names in sorted(files.items())}


class _Report:
    """What the witness tells, as it comes in."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.cases: dict[str, Case] = {}
        self.uncollected: list[str] = []
        self.tampered: list[str] = []
        self.has_ended = False
        self.heard = time.monotonic()
        """When it last told of a test."""
        self.preface = ""
        """What was printed before the witness was there: complaints of the interpreter or of pytest."""
        self._mac = hmac.new(key, digestmod="sha256")
        self._rest = b""
        self._size = 0
        self._number = 0

    def add(self, data: bytes) -> None:
        """More of it. Whoever else writes here is told of, and ends it."""
        self._size += len(data)
        if self._size > _LARGEST_REPORT:
            self._refuse("the report is too large")
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._read(line)
        if len(self._rest) > _LARGEST_REPORT // 2:
            self._refuse("the report is too large")

    def _read(self, line: bytes) -> None:
        code, _, text = line.partition(b" ")
        mac = self._mac.copy()
        mac.update(text)
        number, _, content = text.partition(b" ")
        if not hmac.compare_digest(code, mac.hexdigest().encode()) or number != b"%d" % self._number:
            if self._number == 0:
                self.preface = (self.preface + line.decode("utf-8", "replace") + "\n")[:2000]
            else:
                self._refuse("something else wrote to the report")
            return
        self._number += 1
        try:
            self._take(json.loads(content))
        except (KeyError, TypeError, ValueError):  # who has the witness can have it tell anything
            self._refuse("the report is not what the witness tells")

    def _take(self, told: Mapping[str, Any]) -> None:
        if "tampered" in told:
            self.tampered.append(str(told["tampered"]))
        elif "uncollected" in told:
            self.uncollected.append(str(told["uncollected"]))
        elif "end" in told:
            self.has_ended = True
        elif "test" in told:
            message, text, printed = (str(told.get(key, "")) for key in ("message", "text", "printed"))
            self.heard = time.monotonic()
            test, case = str(told["test"]), Case(told["status"], message, text, float(told["seconds"]), printed)
            severity = _SEVERITY.index(case.status)
            # A test whose teardown failed too reports twice: the worst counts.
            if test not in self.cases or severity > _SEVERITY.index(self.cases[test].status):
                self.cases[test] = case

    def _refuse(self, why: str) -> None:
        if why not in self.tampered:
            self.tampered.append(why)


class Tail:
    """The end of what is printed."""

    def __init__(self, chars: int) -> None:
        self._chars = chars
        self._data: deque[bytes] = deque()
        self._kept = self._size = 0

    def add(self, data: bytes) -> None:
        """More of it."""
        self._size += len(data)
        self._data.append(data)
        self._kept += len(data)
        while self._kept - len(self._data[0]) >= 4 * self._chars:
            self._kept -= len(self._data.popleft())

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self._size

    def text(self) -> str:
        """At most so many characters, after a line that tells how much is missing."""
        text = b"".join(self._data)[-4 * self._chars :].decode("utf-8", "replace")
        if len(text) <= self._chars and self._size <= min(self._kept, 4 * self._chars):
            return text
        kept = text[-self._chars :]
        return f"[… {self._size - len(kept.encode())} bytes cut …]\n{re.sub(chr(0xFFFD) + '+', '', kept, count=1)}"

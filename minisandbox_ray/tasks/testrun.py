"""One run of pytest in a sandbox, its results read from a JUnit XML file and given back under pytest's own ids."""

import re
import secrets
import xml.etree.ElementTree as ET
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from minisandbox_ray.sandbox import Sandbox

Status = Literal["passed", "failed", "error", "skipped", "xfailed", "missing"]
PASSING = frozenset({"passed", "xfailed"})
"""What counts as passing, as SWE-bench's harness counts (an expected failure that happened is as expected)."""

_SEVERITY: list[Status] = ["passed", "xfailed", "skipped", "failed", "error"]
_VARIABLES = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PY_COLORS": "0",
    "NO_COLOR": "1",
    "TZ": "UTC",
    "COLUMNS": "120",
}
_OPTIONS = "-p no:cacheprovider -o junit_family=xunit1 --rootdir=/testbed --continue-on-collection-errors --tb=short"


@dataclass(frozen=True)
class Case:
    """What became of one test."""

    status: Status
    message: str = ""
    """The exception, as pytest sums it up."""
    traceback: str = ""
    """pytest's short traceback."""


@dataclass(frozen=True)
class TestRun:
    """What one run of pytest told."""

    __test__ = False  # not a test class, whatever its name

    cases: dict[str, Case] = field(default_factory=dict)
    """By id, file::class::name[parameters]."""
    collection_errors: list[str] = field(default_factory=list)
    """Modules that could not be collected."""
    exit_code: int = 0
    timed_out: bool = False
    limit: str | None = None
    """The sandbox's limit that the run hit, if any."""
    log: str = ""
    """The end of what pytest printed."""
    seconds: float = 0.0

    def status(self, test: str) -> Status:
        """A test's status; what did not report is missing."""
        return self.cases[test].status if test in self.cases else "missing"

    @property
    def passed(self) -> set[str]:
        """Ids of the tests that passed."""
        return {test for test, case in self.cases.items() if case.status in PASSING}


def run_tests(
    sandbox: Sandbox,
    test_command: list[str],
    targets: list[str],
    *,
    files: Collection[str] | None = None,
    timeout: float = 300,
    max_failures: int = 0,
    options: list[str] | None = None,
    variables: dict[str, str] | None = None,
    log_chars: int = 20_000,
) -> TestRun:
    """Runs pytest on `targets` (files or directories) at /testbed.

    `files` are the repository's files that may hold tests (default: `targets`); ids are put together with them.
    `timeout` is in seconds; `max_failures` ends the run early (0: never). Raises SandboxError if the sandbox fails.
    """
    # The name cannot be guessed by tests that would like to write the report themselves.
    report = f"/tmp/{secrets.token_hex(16)}/report.xml"
    argv = [*test_command, *_OPTIONS.split(), f"--junitxml={report}", f"--maxfail={max_failures}"]
    result = sandbox.execute(
        [*argv, *(options or []), "--", *targets],
        cwd="/testbed",
        env=_VARIABLES | (variables or {}),
        timeout=timeout,
        max_output=max(4 * log_chars, 1 << 16),
    )
    cases: dict[str, Case] = {}
    errors: list[str] = []
    if not result.timed_out:
        try:
            cases, errors = parse_junit(sandbox.read_file(report), targets if files is None else files)
        except OSError:
            # No report, or one too large to read: pytest did not come to its end.
            pass
    log = (result.stdout + result.stderr).decode("utf-8", "replace")
    if len(log) > log_chars:
        log = f"[… {len(log) - log_chars} characters cut …]\n{log[-log_chars:]}"
    limit = None if result.limit == "output" else result.limit  # printing a lot is no failure
    return TestRun(cases, errors, result.exit_code, result.timed_out, limit, log, result.seconds)


def parse_junit(xml: bytes, files: Collection[str]) -> tuple[dict[str, Case], list[str]]:
    """(cases by id, modules that failed to collect) of a report in pytest's xunit1 format; both empty if it is broken.

    A report names a test by dotted class name, and by the file where its function is defined, which for an inherited
    test is another one: so the file is the one of `files` whose dotted name starts the class name.
    """
    try:
        root = ET.fromstring(xml)
    except ET.ParseError:
        return {}, []
    modules = {re.sub(r"\.py$", "", file).replace("/", "."): file for file in files}
    cases: dict[str, Case] = {}
    errors: list[str] = []
    for element in root.iter("testcase"):
        name, class_name = element.get("name", ""), element.get("classname", "")
        case = _case(element)
        if not class_name or (case.status == "error" and case.message == "collection failure"):
            errors.append(name)
            continue
        test = f"{_address(class_name, element.get('file', ''), modules)}::{name}"
        # A test whose teardown failed too reports twice: the worst counts.
        if test not in cases or _SEVERITY.index(case.status) > _SEVERITY.index(cases[test].status):
            cases[test] = case
    return cases, errors


def _case(element: ET.Element) -> Case:
    for tag, status in (("error", "error"), ("failure", "failed"), ("skipped", "skipped")):
        child = element.find(tag)
        if child is not None:
            expected = tag == "skipped" and child.get("type") == "pytest.xfail"
            return Case("xfailed" if expected else status, child.get("message", ""), child.text or "")  # type: ignore[arg-type]
    return Case("passed")


def _address(class_name: str, defined_in: str, modules: dict[str, str]) -> str:
    """file::class of a dotted class name, "tests.test_x.TestY" """
    parts = class_name.split(".")
    for length in range(len(parts), 0, -1):
        dotted = ".".join(parts[:length])
        if dotted in modules:
            return "::".join([modules[dotted], *parts[length:]])
    dotted = re.sub(r"\.py$", "", defined_in).replace("/", ".")
    if defined_in and f"{class_name}.".startswith(f"{dotted}."):
        return "::".join([defined_in, *filter(None, class_name[len(dotted) + 1 :].split("."))])
    return class_name

"""One attempt: build the environment, collect its tests, run them twice; and what counts as good."""

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from minisandbox_ray.environments import Environment, NodeStore, Source, build_environment
from minisandbox_ray.errors import BuildError, SandboxError
from minisandbox_ray.sandbox import Limits, Sandbox
from minisandbox_ray.tasks.automatic.facts import Facts
from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.testrun import PASSING, TestRun, run_tests

Stage = Literal["build", "collect", "tests", "done"]

MOST_FAILING = 0.2
"""Of the tests that were to run, those that fail, or pass only sometimes; and of the test files, those that can't be
collected. Some of almost any suite want a network, a service, or another machine; above a fifth it is the environment
that is in doubt. Tests that skip themselves count as neither."""
LIMITS = Limits(memory_mib=4096, pids=1024)
_LOG = 120_000

_OUTSIDE = re.compile(
    r"Connection ?(refused|Error|reset)|ConnectError|NewConnectionError|Max retries exceeded|Network is unreachable"
    r"|Name or service not known|Temporary failure in name resolution|gaierror|nodename nor servname|ProxyError"
    r"|Cannot connect to host|No route to host|URLError|offline mode|couldn't connect to|Could not resolve host"
    r"|ServerSelectionTimeout|NoBrokersAvailable|OperationalError|LocalEntryNotFoundError|Address not available"
    r"|DefaultCredentialsError|NoCredentialsError|(API|access|secret)[_ ]?key|credentials?\b"
    r"|No such file or directory: '(docker|redis-server|java|node|npm|psql|mysql|mongod|dbus-daemon)'",
    re.IGNORECASE,
)
"""What failures say that want a network, a service or somebody's account."""


@dataclass
class Trial:
    """What came of a plan."""

    plan: Plan
    stage: Stage = "build"
    """Where it stopped."""
    cause: str = ""
    """In a line; empty if it is good."""
    log: str = ""
    """What the failed build or the tests printed."""
    digest: str = ""
    """Of the environment, if it was built."""
    passing: list[str] = field(default_factory=list)
    """Tests that passed both times, in the suite's order."""
    failing: list[str] = field(default_factory=list)
    """Tests that failed at least once."""
    uncollected: list[str] = field(default_factory=list)
    """Test files that could not be collected."""
    outside: list[str] = field(default_factory=list)
    """Test files of which most tests fail for want of a network, a service or an account."""
    files: int = 0
    """Test files, those that could not be collected too."""
    seconds: float = 0.0

    @property
    def failing_share(self) -> float:
        """Of all tests that were to run; 1 if none passes."""
        total = len(self.passing) + len(self.failing)
        return len(self.failing) / total if self.passing else 1.0

    @property
    def uncollected_share(self) -> float:
        """Of the test files."""
        files = {test.partition("::")[0] for test in [*self.passing, *self.failing]}
        return len(self.uncollected) / (len(files | set(self.uncollected)) or 1)

    @property
    def is_good(self) -> bool:
        """Whether the environment can be used: see `MOST_FAILING`."""
        return bool(self.passing) and max(self.failing_share, self.uncollected_share) <= MOST_FAILING

    @property
    def quality(self) -> tuple[bool, int, float]:
        """For comparing: the greater the better."""
        return self.is_good, len(self.passing), -self.failing_share


def attempt(
    plan: Plan,
    source: Source,
    facts: Facts,
    archives: Path,
    store: NodeStore,
    suite_timeout: float,
    repo_mirror: Path | None = None,
) -> Trial:
    """Build and test. Raises StoreFullError, ConfigError and ArchiveError, which are no fault of the plan's."""
    trial, started = Trial(plan), time.monotonic()
    printed = [""]

    def output(text: str) -> None:
        printed[0] = text[-_LOG:]  # only the failed step's matters

    try:
        manifest = build_environment(plan.spec(source, facts), archives, store, None, repo_mirror, output)
        trial.digest = manifest.digest
        with store.use(manifest.digest, archives) as environment:
            _test(trial, environment, suite_timeout)
    except BuildError as error:
        # What the builder itself finds wrong is in the error alone.
        trial.log = f"{printed[0]}\n{str(error).splitlines()[0]}" if "ended with status" in str(error) else str(error)
        trial.cause = _last_word(trial.log)
    except SandboxError as error:
        trial.cause = trial.log = str(error)
    trial.seconds = time.monotonic() - started
    return trial


def _test(trial: Trial, environment: Environment, suite_timeout: float) -> None:
    plan = trial.plan
    if not plan.targets:
        trial.stage, trial.cause = "collect", "no tests were found in the source tree"
        return

    def run(*options: str, seconds: float) -> TestRun:
        with Sandbox(environment.sandbox_spec(limits=LIMITS)) as sandbox:
            return run_tests(
                sandbox, plan.test_command, plan.targets, timeout=seconds, options=list(options), log_chars=_LOG
            )

    trial.stage = "collect"
    collected = run("--collect-only", "-q", seconds=suite_timeout / 2)
    trial.log, trial.uncollected = collected.log, _files(collected.collection_errors)
    trial.outside = _outside_at_import(collected.log)
    why = _cut_short(collected, suite_timeout / 2)
    # As pytest lists them when it is to be quiet, when it is to be very quiet, and when its configuration is verbose.
    files = set(re.findall(r"^(\S+?\.(?:py|rst|txt|md))(?:::|: \d+$)", collected.log, re.MULTILINE))
    files |= set(re.findall(r"^\s*<Module (\S+)>$", collected.log, re.MULTILINE))
    trial.files = len(files | set(trial.uncollected))
    if not trial.files and collected.exit_code != 0:
        why = why or f"no test is collected: {_last_word(collected.log)}"
    if why or len(trial.uncollected) > MOST_FAILING * trial.files:
        trial.cause = (
            why
            or f"{len(trial.uncollected)} of {trial.files} test files can't be collected: {_last_word(collected.log)}"
        )
        return
    trial.stage = "tests"
    first = run(seconds=suite_timeout)
    trial.log, trial.uncollected = first.log, _files(first.collection_errors)
    if why := _cut_short(first, suite_timeout):
        trial.cause = why
        return
    if not first.passed:
        trial.failing = [test for test, case in first.cases.items() if case.status in {"failed", "error"}]
        trial.outside = _outside(first)
        trial.cause = f"no test passes ({_counts(first)}): {_last_word(first.log)}"
        return
    second = run(seconds=suite_timeout)
    if why := _cut_short(second, suite_timeout):
        trial.cause = f"in the second run, {why}"
        return
    both = {test: {first.status(test), second.status(test)} for test in [*first.cases, *second.cases]}
    trial.passing = [test for test, statuses in both.items() if statuses <= PASSING]
    # Where parameters are random, a test has another name in each run: it cannot be listed, but it did not fail.
    harmless = PASSING | {"skipped", "missing"}
    trial.failing = [test for test, statuses in both.items() if not statuses <= harmless]
    trial.outside = _outside(first)
    if trial.is_good:
        trial.stage = "done"
        return
    if trial.failing_share > MOST_FAILING:
        trial.cause = (
            f"{len(trial.failing)} of {len(trial.failing) + len(trial.passing)} tests fail: {_commonest(first)}"
        )
    else:
        trial.cause = f"{len(trial.uncollected)} test files can't be collected: {_last_word(first.log)}"


def _files(nodes: list[str]) -> list[str]:
    return list(dict.fromkeys(node.partition("::")[0] or "." for node in nodes))


def _cut_short(run: TestRun, seconds: float) -> str:
    """Why a run has no results, empty if it has."""
    if run.timed_out:
        return f"the suite takes longer than {seconds:.0f} s"
    if run.limit:
        return f"the suite hit the sandbox's {run.limit} limit"
    if run.exit_code in {3, 4} or (not run.cases and run.exit_code not in {0, 1, 2, 5}):
        return f"pytest does not start (status {run.exit_code}): {_last_word(run.log)}"
    return ""


def _counts(run: TestRun) -> str:
    counts = Counter(case.status for case in run.cases.values())
    return ", ".join(f"{number} {status}" for status, number in counts.most_common()) or "none was run"


def _commonest(run: TestRun) -> str:
    """What most failures say."""
    said = Counter(
        " ".join(case.message.split())[:200] for case in run.cases.values() if case.status in {"failed", "error"}
    )
    return said.most_common(1)[0][0] if said else "flaky"


def _outside(run: TestRun) -> list[str]:
    """See `Trial.outside`."""
    total, outside = Counter[str](), Counter[str]()
    for test, case in run.cases.items():
        if case.status == "skipped":
            continue
        file = test.partition("::")[0]
        total[file] += 1
        outside[file] += case.status in {"failed", "error"} and bool(_OUTSIDE.search(case.message + case.traceback))
    return [file for file, count in outside.items() if count > total[file] / 2]


def _outside_at_import(log: str) -> list[str]:
    """The test files that can't be collected for the same reasons."""
    pieces = re.split(r"^_+ ERROR collecting (\S+) _+$", log, flags=re.MULTILINE)
    return [file for file, text in zip(pieces[1::2], pieces[2::2], strict=False) if _OUTSIDE.search(text)]


_NOISE = re.compile(
    r"^(note:|hint:|\[notice\]|=+|-+|_+|╰─>|│|× |!+|.*\[end of output\]|.*See above for output|.*This error originates"
    r"|WARNING:|error: subprocess-exited|(ERROR: )*Failed (to build|building)|(ERROR: )*Could not build|ERROR test"
    r"|.*warnings? summary|.*\d+ (error|failed|warning|passed).* in [\d.]+s)"
)
_ERROR = re.compile(
    r"\b\w*(Error|Exception|Failed|Exit|Impossible)\b|^ERROR|^error|fatal error|No module named|Could not"
)


def _last_word(log: str) -> str:
    """The line that says most about a failure."""
    raised = [line for line in re.findall(r"^E\s{2,}(\S.*)", log, re.MULTILINE) if _ERROR.search(line)]
    if raised:
        return str(Counter(raised).most_common(1)[0][0])[:300]
    lines = [line.strip().removeprefix("E ").strip() for line in log.splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    errors = [line for line in lines if _ERROR.search(line)]
    return next(reversed(errors or lines), "it printed nothing")[:300]

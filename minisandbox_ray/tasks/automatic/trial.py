"""One attempt: build the environment, collect its tests, run them twice; and what counts as good."""

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from minisandbox_ray.environments import Environment, NodeStore, Source, build_environment
from minisandbox_ray.environments.services import open_sandbox
from minisandbox_ray.errors import BuildError, SandboxError, TaskError
from minisandbox_ray.sandbox import Limits
from minisandbox_ray.tasks.automatic.excuses import NOT_SHIPPED, Excuses
from minisandbox_ray.tasks.automatic.facts import Facts
from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.servers import servers_missed
from minisandbox_ray.tasks.automatic.slow import files_in_time, files_listed
from minisandbox_ray.tasks.automatic.tree import SourceTree
from minisandbox_ray.tasks.automatic.words import commonest, counts, last_word
from minisandbox_ray.tasks.testrun import PASSING, TestRun, run_tests

Stage = Literal["build", "collect", "tests", "done"]

MOST_FAILING = 0.2
"""Of the tests that were to run, those that fail, or pass only sometimes; and of the test files, those that can't be
collected. Some of almost any suite want another machine; above a fifth it is the environment that is in doubt. Tests
that skip themselves count as neither, nor do those that are excused."""
MOST_EXCUSED = 0.5
"""Of all tests, and of all test files, those that fail for what no environment has (see `excuses`). They are recorded
as failing. Above a half, too little of the suite is left to be called the source's own."""
SLOWER = 1.5
"""Times as long as the first run may take is given to the second: whatever else the machine does then."""
SILENCE = 60.0
"""Seconds in which no test ends, after which a run is taken to wait for what never comes."""
LIMITS = Limits(memory_mib=4096, pids=1024)
_LOG = 120_000
_QUIET = "-qq"
"""At which pytest lists the files with tests, a line each."""


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
    excuses: dict[str, str] = field(default_factory=dict)
    """Of failing tests and uncollected files, those that no environment could mend, and why."""
    missed: list[str] = field(default_factory=list)
    """Names of servers that failing tests could not reach, and that could run beside them."""
    skips_coroutines: bool = False
    """Whether pytest skips tests that are coroutines, for want of a plugin that runs them."""
    stalled: bool = False
    """Whether the tests were ended because none of them ended any more."""
    outside: list[str] = field(default_factory=list)
    """Test files of which most tests fail for want of a network, a service or an account."""
    files: int = 0
    """Test files, those that could not be collected too."""
    seconds: float = 0.0

    @property
    def failing_share(self) -> float:
        """Of all tests that were to run, without the excused ones; 1 if none passes."""
        blamed = sum(test not in self.excuses for test in self.failing)
        return blamed / (len(self.passing) + blamed) if self.passing else 1.0

    @property
    def uncollected_share(self) -> float:
        """Of the test files, without the excused ones."""
        blamed = sum(file not in self.excuses for file in self.uncollected)
        return blamed / ((self.files or len(self._files())) - self._excused_files() or 1)

    @property
    def excused_share(self) -> float:
        """Of all tests or of all test files, whichever is more."""
        tests = sum(test in self.excuses for test in self.failing) / (len(self.passing) + len(self.failing) or 1)
        return max(tests, self._excused_files() / (self.files or len(self._files()) or 1))

    def _files(self) -> set[str]:
        return {test.partition("::")[0] for test in [*self.passing, *self.failing]} | set(self.uncollected)

    def _excused_files(self) -> int:
        return sum(file in self.excuses for file in self.uncollected)

    @property
    def is_good(self) -> bool:
        """Whether the environment can be used: see `MOST_FAILING` and `MOST_EXCUSED`."""
        share = max(self.failing_share, self.uncollected_share)
        return bool(self.passing) and share <= MOST_FAILING and self.excused_share <= MOST_EXCUSED

    @property
    def is_explained(self) -> bool:
        """Whether all that fails is excused: another interpreter would not change it."""
        failing = [*self.failing, *self.uncollected]
        return bool(failing) and all(each in self.excuses for each in failing)

    @property
    def quality(self) -> tuple[bool, int, float]:
        """For comparing: the greater the better."""
        return self.is_good, len(self.passing), -self.failing_share


def attempt(
    plan: Plan,
    source: Source,
    facts: Facts,
    tree: SourceTree,
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
        manifest = build_environment(plan.spec(source, facts), archives, store, None, repo_mirror, output, quick=True)
        trial.digest = manifest.digest
        with store.use(manifest.digest, archives) as environment:
            _test(trial, environment, facts, Excuses(tree, plan.unavailable), suite_timeout)
    except BuildError as error:
        # What the builder itself finds wrong is in the error alone.
        trial.log = f"{printed[0]}\n{str(error).splitlines()[0]}" if "ended with status" in str(error) else str(error)
        trial.cause = last_word(trial.log)
    except (SandboxError, TaskError) as error:
        trial.cause = trial.log = str(error)
    trial.seconds = time.monotonic() - started
    return trial


def _loudness(options: str) -> int:
    """How often pytest's options say that it is to tell more."""
    return sum(len(match[1] or "v") for match in re.finditer(r"(?:^|\s)-(?:(v+)|-verbose)(?=\s|$)", options))


def _test(trial: Trial, environment: Environment, facts: Facts, excuses: Excuses, suite_timeout: float) -> None:
    if not trial.plan.targets:
        trial.stage, trial.cause = "collect", "no tests were found in the source tree"
        return

    def run(*options: str, seconds: float, targets: list[str] | None = None) -> TestRun:
        with open_sandbox(environment, limits=LIMITS) as sandbox:
            plan = trial.plan
            return run_tests(
                sandbox,
                plan.test_command,
                targets or plan.targets,
                timeout=seconds,
                silence=SILENCE,
                options=list(options),
                log_chars=_LOG,
            )

    trial.stage = "collect"
    collected = run("--collect-only", _QUIET + "q" * _loudness(facts.pytest_options), "-rfEs", seconds=suite_timeout)
    trial.log, trial.uncollected = collected.log, _files(collected.collection_errors)
    trial.excuses |= _excused_files(excuses, collected.log)
    why = "" if not collected.timed_out else f"to collect the tests takes longer than {suite_timeout:.0f} s"
    why = why or _cut_short(collected, suite_timeout)
    files = files_listed(collected.log)
    trial.files = len({*files, *trial.uncollected})
    if not trial.files and collected.exit_code != 0:
        why = why or f"no test is collected: {last_word(collected.log)}"
    if why or trial.uncollected_share > MOST_FAILING or trial.excused_share > MOST_EXCUSED:
        trial.cause = (
            why
            or f"{len(trial.uncollected)} of {trial.files} test files can't be collected: {last_word(collected.log)}"
        )
        return
    trial.stage = "tests"
    first = run("-rfEs", seconds=suite_timeout)
    trial.log, trial.stalled = first.log, first.stalled
    trial.skips_coroutines = "async def function and no async plugin installed" in first.log
    if first.limit or (first.timed_out and not (first.stalled and trial.plan.may_limit_tests)):
        first = _in_time(trial, run, files, first, suite_timeout)
    elif not first.timed_out:
        trial.uncollected = _files(first.collection_errors)
    if why := _cut_short(first, suite_timeout):
        trial.cause = why
        return
    if not first.passed:
        trial.failing = [test for test, case in first.cases.items() if case.status in {"failed", "error"}]
        trial.outside = _excuse_tests(trial, excuses, first)
        trial.cause = f"no test passes ({counts(first)}): {last_word(first.log)}"
        return
    second = run(seconds=suite_timeout * SLOWER)
    if second.limit and (less := _without_suspects(trial, files, first, second)) is not None:
        first, second = less, run(seconds=suite_timeout * SLOWER)
    if why := _cut_short(second, suite_timeout * SLOWER):
        trial.cause = f"in the second run, {why}"
        return
    both = {test: {first.status(test), second.status(test)} for test in [*first.cases, *second.cases]}
    trial.passing = [test for test, statuses in both.items() if statuses <= PASSING]
    # Where parameters are random, a test has another name in each run: it cannot be listed, but it did not fail.
    harmless = PASSING | {"skipped", "missing"}
    trial.failing = [test for test, statuses in both.items() if not statuses <= harmless]
    trial.outside = _excuse_tests(trial, excuses, first)
    if trial.is_good:
        trial.stage = "done"
        return
    if trial.failing_share > MOST_FAILING or trial.excused_share > MOST_EXCUSED:
        trial.cause = (
            f"{len(trial.failing)} of {len(trial.failing) + len(trial.passing)} tests fail: {commonest(first)}"
        )
    else:
        trial.cause = f"{len(trial.uncollected)} test files can't be collected: {last_word(first.log)}"


def _in_time(
    trial: Trial, run: Callable[..., TestRun], files: list[str], cut: TestRun, suite_timeout: float
) -> TestRun:
    """The run of the files that fit into the time, which become the plan's targets; `cut` where none do."""
    cases = files_in_time(
        files, cut.unfinished, lambda file, seconds: run(seconds=seconds, targets=[file]), suite_timeout
    )
    if not any(case.status in PASSING for case in cases.values()):
        return cut
    kept = list(dict.fromkeys(test.partition("::")[0] for test in cases))
    why = f"hit the {cut.limit} limit" if cut.limit else f"take longer than {suite_timeout:.0f} s"
    if len(kept) < len(files):
        trial.plan = trial.plan.of_files(f"{len(kept)} of {len(files)} test files: all {why}", kept, files)
    trial.stalled = False
    return TestRun(cases=cases, log=cut.log)


def _without_suspects(trial: Trial, files: list[str], first: TestRun, cut: TestRun) -> TestRun | None:
    """The first run without the file in which another one hit a limit of the sandbox, and the file after it, which may
    have been begun; the plan likewise. None if that leaves less than half of the files."""
    ran = {test.partition("::")[0] for test in first.cases}
    files = [file for file in files if file in ran]
    begun = [test.partition("::")[0] for test in cut.unfinished]
    at = files.index(begun[-1]) if begun and begun[-1] in files else 0
    kept = [*files[:at], *files[at + 2 :]]
    if len(kept) < len(files) / 2:
        return None
    why = f"{len(kept)} of {len(files)} test files: all hit the {cut.limit} limit"
    trial.plan = trial.plan.of_files(why, kept, files)
    return TestRun(
        cases={test: case for test, case in first.cases.items() if test.partition("::")[0] in kept}, log=first.log
    )


def _files(nodes: list[str]) -> list[str]:
    return list(dict.fromkeys(node.partition("::")[0] or "." for node in nodes))


def _cut_short(run: TestRun, seconds: float) -> str:
    """Why a run has no results, empty if it has."""
    if run.timed_out:
        return f"no test ends for {SILENCE:.0f} s" if run.stalled else f"the suite takes longer than {seconds:.0f} s"
    if run.limit:
        return f"the suite hit the sandbox's {run.limit} limit"
    if run.exit_code in {3, 4} or (not run.cases and run.exit_code not in {0, 1, 2, 5}):
        return f"pytest does not start (status {run.exit_code}): {last_word(run.log)}"
    return ""


def _excuse_tests(trial: Trial, excuses: Excuses, run: TestRun) -> list[str]:
    """Note the excused tests; returns the files of which most tests want what is outside of a sandbox."""
    total, outside, missed = Counter[str](), Counter[str](), Counter[str]()
    for test, case in run.cases.items():
        if case.status == "skipped":
            continue
        file = test.partition("::")[0]
        total[file] += 1
        missed.update(servers_missed(f"{case.message}\n{case.traceback}") if case.status in {"failed", "error"} else [])
        if case.status in {"failed", "error"} and (reason := excuses.reason(f"E   {case.message}\n{case.traceback}")):
            trial.excuses[test] = reason
            outside[file] += not reason.startswith(NOT_SHIPPED)
    trial.missed = sorted(missed)
    return [file for file, count in outside.items() if count > total[file] / 2]


def _excused_files(excuses: Excuses, log: str) -> dict[str, str]:
    """The files that can't be collected for the same reasons."""
    pieces = re.split(r"^_+ ERROR collecting (\S+) _+$", log, flags=re.MULTILINE)
    reasons = {file: excuses.reason(text) for file, text in zip(pieces[1::2], pieces[2::2], strict=False)}
    return {file: reason for file, reason in reasons.items() if reason}

"""The grader: an agent's diff becomes a reward in a sandbox that the agent never touched.

What holds whatever the code under test does, since nothing in the sandbox reaches it: the diff is cut down to the
agent's files; tests that are not reported, by their very ids, do not pass, nor does anything in a run that does not
come to its end; the kernel tells which files were written meanwhile, and tests, their configuration and the
environment's code must not be.

What is made hard within the tests' process, which runs the agent's code: the report carries a code that needs a key;
pytest, unittest, the builtins and modules of others must be what they were; passing tests must have run to their end; a
diff that earns something is run again with tests that must fail. Each of these shows forging that does not know of it,
and the last one all that forges without telling the two runs apart. Code written against this very file could evade
them. Where one tells of help, the grade is `tampered`: not resolved, reward 0.

The same holds for runners that the witness listens to in place of pytest (`runners.py`: SymPy's, unittest's). Where it
cannot, statuses come from what a runner printed (`printed.py`), and there is no second run: `Grade.witnessed` is False,
and what runs in the tests' process can print anything. An id that no test has, but a data set lists (a line that its
parser took for one), is looked for in what was printed as well; by such ids alone no task is solved.

What is not seen: a program that gives the answers which it knows the tests ask for, or asks who calls it.
"""

import hashlib
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from minisandbox_ray.environments import Environment
from minisandbox_ray.environments.services import open_sandbox
from minisandbox_ray.errors import Owner, SandboxError, TaskError
from minisandbox_ray.sandbox import Limits, Sandbox
from minisandbox_ray.tasks import control, rewards
from minisandbox_ray.tasks.cutdown import REFUSED, CutDown, Outcome, Protection, cut_down
from minisandbox_ray.tasks.sections import keep_test_sections
from minisandbox_ray.tasks.suite import Suite, unexpected
from minisandbox_ray.tasks.task import Task
from minisandbox_ray.tasks.testrun import PASSING, Status, TestRun
from minisandbox_ray.tasks.written import changed, is_runner_s, written

_KILLED = (-9, 137)  # exit statuses
# A sandbox that is killed loses its programs a little before its first process is gone.
_DEATH_SECONDS = 2.0


def _reward_name(name: str) -> str:
    rewards.load_reward(name)
    return name


class GradingConfig(BaseModel):
    """How diffs are graded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float = Field(300, gt=0, le=1e6)
    """Seconds that the listed tests may take, in each of the two runs; longer is the agent's failure."""
    limits: Limits = Limits()
    """What the grading sandbox may use."""
    log_chars: int = Field(8000, ge=100)
    """Characters kept of the end of the test run's output."""
    cache: bool = True
    """Whether equal diffs of one task are graded once per run."""
    reward: Annotated[str, AfterValidator(_reward_name)] = "resolved"
    """`resolved`: 1 or 0. `f2p_fraction`: the share of FAIL_TO_PASS tests that pass, if no PASS_TO_PASS test broke.
    `fractions`: that share times the share of PASS_TO_PASS tests that pass. Or `module:function` of your own that every
    node can import: called with the task and a dictionary of the listed tests' statuses, it returns a finite number.
    What was tampered with, or did not come to its end, earns 0 and is not asked for."""
    control: bool = True
    """Whether a diff that earns something is run again with tests that must fail: up to 40 of FAIL_TO_PASS and 20 of
    PASS_TO_PASS. It shows who forges results, and costs as much as these tests and the start of pytest take."""

    @property
    def longest_seconds(self) -> float:
        """What the runs of the tests may take together."""
        return self.timeout * (2 if self.control else 1)


class Grade(BaseModel):
    """What the grader found."""

    model_config = ConfigDict(frozen=True)

    resolved: bool
    """Whether all listed tests pass, honestly."""
    reward: float
    """What `GradingConfig.reward` makes of it: by default 1 if resolved, else 0."""
    tests: dict[str, Status]
    """Status of every listed test."""
    witnessed: bool = True
    """Whether our own report told it; else a repository's runner printed it, which whoever runs in the tests' process
    can forge (`tasks/printed.py`)."""
    owner: Owner | None = None
    """Whose failure it is if it is not resolved."""
    reason: str = ""
    """One line on why it is not resolved."""
    outcome: Outcome = "applied"
    """What became of the diff."""
    dropped: list[str] = []
    """Files of the diff that are not the agent's to change."""
    tampered: list[str] = []
    """What was done to the tests' result besides passing them, a line each."""
    seconds: float = 0.0
    """Time from the start of the sandbox to its end."""
    durations: dict[str, float] = {}
    """Seconds of the parts: `apply`, `tests`, and `control` where there was a control run."""
    log: str = ""
    """The end of the tests' output, or what git said."""


@dataclass
class _Run:
    """One sandbox with the diff, and the tests in it."""

    tests: TestRun = field(default_factory=TestRun)
    complaint: str = ""
    """Why the diff does not apply, or the tests ended the sandbox."""
    outcome: Outcome | None = None
    tampered: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    """The tests that the grader brought."""
    apply_seconds: float = 0.0


def grade(task: Task, diff: str, env: Environment, layer: Path | None, config: GradingConfig | None = None) -> Grade:
    """Applies the cut-down `diff` to a fresh sandbox of the task and runs its tests, which the sandbox gets first.

    `layer` is the task's own layer over the environment (`NodeStore.derive` of its patch). Tests that fail, error,
    crash, are skipped or do not report count as failed. What the diff does to the run (a timeout, a limit, a sandbox
    that dies at a limit) is the agent's failure. Raises SandboxError if the sandbox does not start, or is killed;
    TaskError if the task's own tests cannot be brought, or a reward function of the user's fails; ConfigError where the
    package that names its tests is missing.
    """
    config = config or GradingConfig()
    started = time.monotonic()
    suite = Suite(task)
    cut = cut_down(task, diff, installed_modules(env.venv))
    if cut.outcome in REFUSED:
        run = _Run(complaint=f"the diff does not apply: {_REFUSALS[cut.outcome]}")
    else:
        run = _run(task, suite, cut, env, layer, config)
    tests = {test: run.tests.status(test) for test in task.judged}
    durations = {"apply": run.apply_seconds, "tests": run.tests.seconds}
    tampered = run.tampered
    reward = 0.0
    is_honest = bool(run.tests.cases) and not tampered and not run.complaint
    resolved = is_honest and _as_listed(task, tests, run.tests)
    if is_honest:
        reward = rewards.reward_of(config.reward, task, tests) if task.graded_by == "tests" else float(resolved)
    if (resolved or reward > 0) and config.control and suite.has_witness:
        roots = [layer, env.testbed]
        chosen = control.choose(task, cut.diff, _passing(task, run.tests), control.reader(run.texts, roots))
        if chosen:
            second = _run(task, suite, cut, env, layer, config, chosen)
            tampered = second.tampered or control.verdict(chosen, second.tests)
            run.complaint = second.complaint or control.complaint(second.tests, config.timeout)
            durations["control"] = second.tests.seconds
    if tampered or run.complaint:
        resolved, reward = False, 0.0
    reason = f"tampered: {tampered[0]}" if tampered else run.complaint or _reason(task, run.tests, config)
    return Grade(
        resolved=resolved,
        reward=reward,
        tests=tests,
        witnessed=suite.has_witness,
        owner=None if resolved else "agent",
        reason="" if resolved else reason,
        outcome=run.outcome or cut.outcome,
        dropped=cut.dropped,
        tampered=tampered,
        seconds=time.monotonic() - started,
        durations=durations,
        log=(run.tests.log or run.complaint)[-config.log_chars :],
    )


def _as_listed(task: Task, tests: Mapping[str, Status], run: TestRun) -> bool:
    if task.graded_by == "statuses":
        return not unexpected(task, run)
    return all(status in PASSING for status in tests.values())


def _passing(task: Task, run: TestRun) -> list[list[str]]:
    """FAIL_TO_PASS and PASS_TO_PASS as pytest calls them, as far as all behind an id pass."""
    failing = set(task.FAIL_TO_PASS) if task.graded_by == "tests" else set()
    groups: list[list[str]] = [[], []]
    for test in task.judged:
        if run.status(test) in PASSING:
            groups[test not in failing] += run.tests_behind(test)
    return groups


_REFUSALS: dict[Outcome, str] = {
    "no_patch": "it is no git patch, or a broken one",
    "too_large": "it is too large",
    "refused_symlink": "it makes a symbolic link out of the repository, or to what is not the agent's",
}


def _run(
    task: Task,
    suite: Suite,
    cut: CutDown,
    env: Environment,
    layer: Path | None,
    config: GradingConfig,
    chosen: list[str] | None = None,
) -> _Run:
    """The tests, or those `chosen` for a control run, in a fresh sandbox with the diff."""
    run = _Run()
    with open_sandbox(env, limits=config.limits, layer=layer, shell=False) as sandbox:
        try:
            protection = Protection(task, installed_modules(env.venv))
            run.texts = suite.place(sandbox)
            before = written(sandbox)
            started = time.monotonic()
            refusal = _apply(sandbox, cut) if cut.diff else ""
            run.apply_seconds = time.monotonic() - started
            if refusal:
                run.tests, run.outcome = TestRun(log=refusal), "conflict"
                run.complaint = f"the diff does not apply: {refusal.splitlines()[0]}"
                return run
            applied = written(sandbox)
            mixed = {f"/testbed/{path}" for path in cut.mixed}
            run.tampered = _protected(set(changed(before, applied)) - mixed, protection)
            run.tests = suite.run(
                sandbox,
                timeout=config.timeout,
                log_chars=config.log_chars,
                touched=cut.touched,
                only=chosen,
                read=control.reader(run.texts, [layer, env.testbed]),
            )
            run.tampered += _protected(changed(applied, written(sandbox)), protection) + run.tests.tampered
        except SandboxError as error:
            if not cut.diff or _was_killed(sandbox, run.tests, is_dying=True):
                raise
            run.complaint = f"the sandbox died of the tests: {error}"
        if _was_killed(sandbox, run.tests, is_dying=run.tests.exit_code in _KILLED):
            raise SandboxError("the grading sandbox was killed from outside")
    return run


def _was_killed(sandbox: Sandbox, tests: TestRun, *, is_dying: bool) -> bool:
    """Whether it is gone although no limit was hit: nobody inside can end its first process, so the diff did not."""
    deadline = time.monotonic() + (_DEATH_SECONDS if is_dying else 0)
    while sandbox.is_alive and time.monotonic() < deadline:
        time.sleep(0.02)
    return not sandbox.is_alive and tests.limit is None and sandbox.limit_hit() is None


def _protected(paths: Collection[str], protection: Protection) -> list[str]:
    """What was written although nobody may."""
    found = [path for path in sorted(paths) if is_runner_s(path)]
    below = [path for path in sorted(paths) if path.startswith("/testbed/")]
    found += [path for path in below if protection.freezes(path.removeprefix("/testbed/"))]
    return [f"{path} was written while it was graded" for path in found[:5]]


@lru_cache(maxsize=64)
def installed_modules(venv: Path) -> frozenset[str]:
    """Names of the modules in a virtual environment."""
    names = set()
    for place in venv.glob("lib*/python3*/site-packages"):
        for entry in place.iterdir():
            if entry.suffix in {"", ".py", ".so"} and entry.name != "__pycache__":
                names.add(entry.name.split(".")[0])
    return frozenset(names)


def _apply(sandbox: Sandbox, cut: CutDown) -> str:
    """Applies a patch; returns git's complaint, empty if there is none."""
    pristine = {path: _text(sandbox, path) for path in cut.mixed}
    result = sandbox.execute(
        ["git", "apply", "--whitespace=nowarn", "-"], stdin=cut.diff.encode("utf-8", "surrogateescape"), cwd="/testbed"
    )
    if result.exit_code:
        complaint = result.stderr.decode("utf-8", "replace").strip()
        return complaint or f"git apply ended with status {result.exit_code}"
    for path, text in pristine.items():
        merged = keep_test_sections(PurePosixPath(path).name, text, _text(sandbox, path))
        sandbox.write_file(f"/testbed/{path}", merged.encode("utf-8", "surrogateescape"))
    return ""


def _text(sandbox: Sandbox, path: str) -> str:
    try:
        return sandbox.read_file(f"/testbed/{path}").decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _reason(task: Task, run: TestRun, config: GradingConfig) -> str:
    if run.timed_out:
        return f"the tests took more than {config.timeout:g} s"
    if run.limit:
        return f"the tests hit the sandbox's {run.limit} limit"
    if not run.cases:
        return f"the tests ended with status {run.exit_code} and reported none"
    if task.graded_by == "statuses":
        wrong = unexpected(task, run)
        return f"{len(wrong)} tests have another status than expected, {wrong[0]} first" if wrong else ""
    failing = sum(run.status(test) not in PASSING for test in task.FAIL_TO_PASS)
    broken = sum(run.status(test) not in PASSING for test in task.PASS_TO_PASS)
    parts = [
        f"{failing} of {len(task.FAIL_TO_PASS)} FAIL_TO_PASS tests still fail" if failing else "",
        f"{broken} of {len(task.PASS_TO_PASS)} PASS_TO_PASS tests broke" if broken else "",
    ]
    return ", ".join(filter(None, parts))


def gold_diff(task: Task, env: Environment, layer: Path | None) -> str:
    """The diff of an agent that solves the task.

    Raises TaskError if the gold patch does not apply, ConfigError if it is hidden.
    """
    command = task.gold_command()
    with Sandbox(env.sandbox_spec(layer=layer), shell=False) as sandbox:
        result = sandbox.execute(["/bin/sh", "-s"], stdin=command.encode("utf-8", "surrogateescape"), cwd="/testbed")
        if result.exit_code:
            complaint = " ".join(result.stderr.decode("utf-8", "replace").split())
            raise TaskError(f"task {task.instance_id}: its gold fix does not apply: {complaint}")
        return sandbox.diff()


def validate(
    task: Task, env: Environment, layer: Path | None, config: GradingConfig | None = None
) -> tuple[Grade, Grade]:
    """(grade of the gold fix, grade of no change): a usable task is resolved by the first and not by the second.

    Raises TaskError if the task's gold patch does not apply, ConfigError if it is hidden.
    """
    return grade(task, gold_diff(task, env, layer), env, layer, config), grade(task, "", env, layer, config)


_JUDGE = {"instance_id", "patch", "test_patch", "hidden_tests", "test_command", "test_targets", "test_files"}
_JUDGE |= {"log_parser", "graded_by", "expected_statuses"}


def grade_key(task: Task, diff: str, digest: str, config: GradingConfig) -> str:
    """Equal keys are equal grades: sha256 over environment, task, cut-down diff, tests and grading configuration."""
    cut = cut_down(task, diff)
    parts = [
        digest,
        task.model_dump_json(include=_JUDGE),
        cut.diff,
        cut.outcome,
        cut.dropped,
        task.judged,
        config.model_dump(mode="json", exclude={"cache"}),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

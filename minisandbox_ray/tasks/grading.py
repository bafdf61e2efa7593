"""The grader: an agent's diff becomes a reward in a sandbox that the agent never touched."""

import hashlib
import json
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.environments import Environment
from minisandbox_ray.errors import ConfigError, Owner, SandboxError, TaskError
from minisandbox_ray.sandbox import Limits, Sandbox
from minisandbox_ray.tasks.cutdown import cut_down
from minisandbox_ray.tasks.task import Task
from minisandbox_ray.tasks.testrun import PASSING, Status, TestRun, run_tests


class GradingConfig(BaseModel):
    """How diffs are graded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float = Field(300, gt=0, le=1e6)
    """Seconds that the listed tests may take; longer is the agent's failure."""
    limits: Limits = Limits()
    """What the grading sandbox may use."""
    log_chars: int = Field(8000, ge=100)
    """Characters kept of the end of the test run's output."""
    cache: bool = True
    """Whether equal diffs of one task are graded once per run."""


class Grade(BaseModel):
    """What the grader found."""

    model_config = ConfigDict(frozen=True)

    resolved: bool
    """Whether all listed tests pass."""
    reward: float
    """1 if resolved, else 0."""
    tests: dict[str, Status]
    """Status of every listed test."""
    owner: Owner | None = None
    """Whose failure it is if it is not resolved."""
    reason: str = ""
    """One line on why it is not resolved."""
    seconds: float = 0.0
    """Time from the start of the sandbox to its end."""
    log: str = ""
    """The end of the tests' output, or what git said."""


def grade(task: Task, diff: str, env: Environment, layer: Path | None, config: GradingConfig | None = None) -> Grade:
    """Applies the cut-down `diff` to a fresh sandbox of the task and runs the files of the listed tests.

    `layer` is the task's own layer over the environment (`NodeStore.derive` of its patch). Tests that fail, error,
    crash, are skipped or do not report count as failed. What the diff does to the run (a timeout, a limit, a dead
    sandbox) is the agent's failure. Raises SandboxError if the sandbox does not start, or dies without a diff in it.
    """
    config = config or GradingConfig()
    started = time.monotonic()
    kept = cut_down(task, diff)
    with Sandbox(env.sandbox_spec(limits=config.limits, layer=layer)) as sandbox:
        try:
            if kept:
                refusal = _apply(sandbox, kept)
            else:
                refusal = "it is no git patch" if diff.strip() and not diff.startswith("diff --git ") else ""
            if refusal:
                run, reason = TestRun(log=refusal), f"the diff does not apply: {refusal.splitlines()[0]}"
            else:
                run = run_tests(
                    sandbox, task.test_command, test_files(task), timeout=config.timeout, log_chars=config.log_chars
                )
                reason = _reason(task, run, config)
        except SandboxError as error:
            if not kept:
                raise
            run, reason = TestRun(log=str(error)), f"the sandbox died of the tests: {error}"
    tests = {test: run.status(test) for test in task.tests}
    resolved = all(status in PASSING for status in tests.values())
    return Grade(
        resolved=resolved,
        reward=float(resolved),
        tests=tests,
        owner=None if resolved else "agent",
        reason="" if resolved else reason,
        seconds=time.monotonic() - started,
        log=run.log[-config.log_chars :],
    )


def test_files(task: Task) -> list[str]:
    """The files that hold the listed tests, relative to /testbed."""
    return list(dict.fromkeys(test.split("::")[0] for test in task.tests))


def _apply(sandbox: Sandbox, diff: str) -> str:
    """Applies a patch; returns git's complaint, empty if there is none."""
    result = sandbox.execute(
        ["git", "apply", "--whitespace=nowarn", "-"], stdin=diff.encode("utf-8", "surrogateescape"), cwd="/testbed"
    )
    if result.exit_code == 0:
        return ""
    return result.stderr.decode("utf-8", "replace").strip() or f"git apply ended with status {result.exit_code}"


def _reason(task: Task, run: TestRun, config: GradingConfig) -> str:
    if run.timed_out:
        return f"the tests took more than {config.timeout:g} s"
    if run.limit:
        return f"the tests hit the sandbox's {run.limit} limit"
    if not run.cases:
        return f"pytest ended with status {run.exit_code} and reported no test"
    failing = sum(run.status(test) not in PASSING for test in task.FAIL_TO_PASS)
    broken = sum(run.status(test) not in PASSING for test in task.PASS_TO_PASS)
    parts = [
        f"{failing} of {len(task.FAIL_TO_PASS)} FAIL_TO_PASS tests still fail" if failing else "",
        f"{broken} of {len(task.PASS_TO_PASS)} PASS_TO_PASS tests broke" if broken else "",
    ]
    return ", ".join(filter(None, parts))


def gold_diff(task: Task, env: Environment, layer: Path | None) -> str:
    """The diff of an agent that undoes the task's patch.

    Raises TaskError if the patch cannot be undone, ConfigError if it is hidden.
    """
    if not task.patch:
        raise ConfigError(f"task {task.instance_id} has no patch: its gold fix is hidden")
    with Sandbox(env.sandbox_spec(layer=layer)) as sandbox:
        result = sandbox.execute(
            ["git", "apply", "-R", "--whitespace=nowarn", "-"],
            stdin=task.patch.encode("utf-8", "surrogateescape"),
            cwd="/testbed",
        )
        if result.exit_code:
            complaint = result.stderr.decode("utf-8", "replace").strip()
            raise TaskError(f"task {task.instance_id}: its patch cannot be undone: {complaint}")
        return sandbox.diff()


def validate(
    task: Task, env: Environment, layer: Path | None, config: GradingConfig | None = None
) -> tuple[Grade, Grade]:
    """(grade of the gold fix, grade of no change): a usable task is resolved by the first and not by the second.

    Raises TaskError if the task's patch cannot be undone, ConfigError if it is hidden.
    """
    return grade(task, gold_diff(task, env, layer), env, layer, config), grade(task, "", env, layer, config)


def grade_key(task: Task, diff: str, digest: str, config: GradingConfig) -> str:
    """Equal keys are equal grades: sha256 over environment, task, cut-down diff, tests and grading configuration."""
    parts = [
        digest,
        task.model_dump_json(include={"instance_id", "patch", "test_command", "test_files"}),
        cut_down(task, diff),
        task.tests,
        config.model_dump(mode="json", exclude={"cache"}),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

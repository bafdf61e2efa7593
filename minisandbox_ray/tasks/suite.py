"""A task's own tests: what the grader brings, what it runs, and by which names the task lists what it finds."""

import re
from collections.abc import Callable, Collection
from dataclasses import replace

from minisandbox_ray.errors import TaskError
from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.tasks.commandline import is_pytest
from minisandbox_ray.tasks.cutdown import file_patches
from minisandbox_ray.tasks.parsers import load_parser, parse_untrusted, public_names, worst
from minisandbox_ray.tasks.printed import run_printed
from minisandbox_ray.tasks.runners import run_runner, runner_of
from minisandbox_ray.tasks.task import Task
from minisandbox_ray.tasks.testrun import Case, Status, TestRun, run_tests

LARGEST_LOG = 16 << 20
"""Bytes of what a run prints that are looked at where a test can only be found there."""
_EXPECTED: dict[Status, str] = {"passed": "PASSED", "failed": "FAILED", "error": "ERROR"}
"""What R2E-Gym's parser makes of a status; others it does not know."""


class Suite:
    """How one task is judged. Raises ConfigError and TaskError if its tests' names cannot be told."""

    def __init__(self, task: Task) -> None:
        if task.graded_by == "script":
            raise TaskError(f"task {task.instance_id} is graded by a script of its own, which is not supported yet")
        self._task = task
        self._parser = load_parser(task.log_parser) if task.log_parser else None
        self._runner = None if self._parser is None else runner_of(task.test_command)
        self._placed = {path for part in file_patches(task.test_patch) for path in part.paths} | set(task.hidden_tests)

    @property
    def has_witness(self) -> bool:
        """Whether a witness of ours tells what became of the tests; else it is what their runner printed."""
        return self._parser is None or is_pytest(self._task.test_command) or self._runner is not None

    @property
    def targets(self) -> list[str]:
        """What the test command is given."""
        if self._task.test_targets:
            return self._task.test_targets
        if self._task.graded_by == "statuses":
            return sorted(path for path in self._task.hidden_tests if path.endswith(".py"))
        return self._task.listed_files

    def place(self, sandbox: Sandbox) -> dict[str, str]:
        """Bring the tests that the agent's tree lacks; their texts by path. Raises TaskError if the patch does not
        apply."""
        task = self._task
        if task.test_patch:
            result = sandbox.execute(
                ["git", "apply", "--whitespace=nowarn", "-"],
                stdin=task.test_patch.encode("utf-8", "surrogateescape"),
                cwd="/testbed",
            )
            if result.exit_code:
                complaint = " ".join(result.stderr.decode("utf-8", "replace").split())
                raise TaskError(f"task {task.instance_id}: its test_patch does not apply: {complaint[:500]}")
        for path, text in task.hidden_tests.items():
            sandbox.write_file(f"/testbed/{path}", text.encode("utf-8", "surrogateescape"))
        texts = {}
        for path in sorted(self._placed):
            try:
                texts[path] = sandbox.read_file(f"/testbed/{path}").decode("utf-8", "replace")
            except OSError:  # the patch removes it
                texts[path] = ""
        return texts

    def run(
        self,
        sandbox: Sandbox,
        *,
        timeout: float,
        log_chars: int,
        touched: Collection[str],
        only: Collection[str] | None = None,
        read: Callable[[str], str],
    ) -> TestRun:
        """Run the tests, or make those of `only` (as the runner calls them) fail; cases by the task's names.

        `read` gives a file's text as it was before the agent came, empty for none.
        """
        task = self._task
        if not self.has_witness:
            return run_printed(
                sandbox,
                task.test_command,
                self.targets,
                task.log_parser,
                timeout=timeout,
                log_chars=log_chars,
                longest=LARGEST_LOG,
            )
        strangers = [test for test in task.judged if self._parser and not self._is_test_s(test, read)]
        kept = LARGEST_LOG if strangers else log_chars
        if self._runner:
            run = run_runner(
                sandbox,
                self._runner,
                task.test_command,
                self.targets,
                timeout=timeout,
                log_chars=kept,
                files=[path for path in self._placed if path.endswith(".py")],
                touched=touched,
                only=only,
            )
        else:
            run = run_tests(
                sandbox,
                task.test_command,
                self.targets,
                timeout=timeout,
                log_chars=kept,
                options=["-rA"] if strangers else [],  # shows what passing tests print
                listed=task.tests if task.graded_by == "tests" and only is None else only or (),
                touched=touched,
                control=only is not None,
            )
        if only is not None:
            return run
        if task.graded_by == "statuses":
            return _named(run, {test: ".".join(test.split("::")[1:]) for test in run.cases})
        if self._parser is None:
            return run
        printed = {test: case.printed or test for test, case in run.cases.items()}
        names = public_names(self._parser, set(printed.values()))
        named = _named(run, {test: names[text] for test, text in printed.items() if text in names})
        lost = [test for test in strangers if test not in named.cases]
        if lost and any(test in named.cases for test in task.FAIL_TO_PASS):
            # What the parser took for a test where none is (a line of a test's own output), and a list has it.
            found = parse_untrusted(task.log_parser, run.log)
            named.cases.update({test: Case(found[test]) for test in lost if test in found})
        return replace(named, log=named.log[-log_chars:])

    def _is_test_s(self, test: str, read: Callable[[str], str]) -> bool:
        """Whether an id may be a test's: by its form, and the file that it names."""
        if self._runner == "sympy":
            return test.startswith("test_")
        if self._runner == "unittest":
            return re.fullmatch(r"\w+ \([\w.<>]+\)", test) is not None
        file, separator, _ = test.partition("::")
        return bool(separator and read(file))


def _named(run: TestRun, names: dict[str, str]) -> TestRun:
    """The run with cases by other names, the worst where tests share one."""
    tests: dict[str, list[str]] = {}
    for test in run.cases:
        if names.get(test):
            tests.setdefault(names[test], []).append(test)
    cases = {}
    for name, members in tests.items():
        status = worst(run.cases[test].status for test in members)
        first = next(test for test in members if run.cases[test].status == status)
        cases[name] = run.cases[first]
    return replace(run, cases=cases, tests_of=tests)


def unexpected(task: Task, run: TestRun) -> list[str]:
    """Tests whose status is not as expected, missing ones and those that nobody expected included."""
    found = {test: _EXPECTED[case.status] for test, case in run.cases.items() if case.status in _EXPECTED}
    expected = task.expected_statuses
    return sorted(test for test in expected.keys() | found.keys() if expected.get(test) != found.get(test))

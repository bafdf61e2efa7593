"""The control run: listed tests that are made to fail must be reported as failed, or somebody had a hand in that."""

import ast
import hashlib
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from minisandbox_ray.tasks.task import Task
from minisandbox_ray.tasks.testrun import TestRun, functions_of

SAMPLE = 40
"""FAIL_TO_PASS tests, and half as many PASS_TO_PASS tests, at most."""


def choose(task: Task, diff: str, passing: list[list[str]], read: Callable[[str], str]) -> list[str]:
    """The tests of a control run: of both lists (each as pytest calls its tests) some that nobody can guess.

    Only those whose function stands in their own file, so that it can be made to fail; `read` gives a file's text. The
    same diff, the same tests.
    """
    files = functions_of([test for group in passing for test in group])
    known = {f"{file}::{name}" for file, names in files.items() for name in functions_in(read(file)) & set(names)}
    groups = [[test for test in group if test.partition("[")[0] in known] for group in passing]
    choice = random.Random(hashlib.sha256(f"{task.instance_id} {diff}".encode("utf-8", "surrogateescape")).digest())
    sample = {
        test
        for group, most in zip(groups, (SAMPLE, SAMPLE // 2), strict=True)
        for test in choice.sample(group, min(most, len(group)))
    }
    return [test for group in groups for test in group if test in sample]


def verdict(chosen: list[str], run: TestRun) -> list[str]:
    """Which of the tests of a control run did not fail, a line; empty if it is as it should be."""
    if run.tampered:
        return run.tampered
    passed = [test for test in chosen if run.status(test) in {"passed", "missing"}]
    if not passed or not run.cases:
        return []
    more = f" (and {len(passed) - 1} more)" if len(passed) > 1 else ""
    return [f"{passed[0]}{more} did not fail where it had to"]


def complaint(run: TestRun, timeout: float) -> str:
    """Why a control run told nothing; empty if it told something. No sign of forging, but nothing against it either:
    what its diff makes of the tests' time and ends is the agent's."""
    if run.cases or run.tampered:
        return ""
    if run.timed_out:
        return f"the tests took more than {timeout:g} s in the control run"
    if run.limit:
        return f"the tests hit the sandbox's {run.limit} limit in the control run"
    return f"the control run ended with status {run.exit_code} before it told of all tests"


@lru_cache(maxsize=256)
def functions_in(text: str) -> frozenset[str]:
    """Class::name of the functions of a module; none if it does not parse. Kept, as a task is graded many times."""
    return frozenset(_functions(text))


def _functions(text: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            waiting: list[tuple[str, ast.stmt]] = [("", node) for node in ast.parse(text).body]
        except (SyntaxError, ValueError):
            return
    while waiting:
        prefix, node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            waiting += [(f"{prefix}{node.name}::", each) for each in node.body]
        else:
            for part in ("body", "orelse", "finalbody"):
                waiting += [(prefix, each) for each in getattr(node, part, None) or []]


def reader(texts: Mapping[str, str], roots: Iterable[Path | None]) -> Callable[[str], str]:
    """Reads files of the repository: those that the grader brings, else from the archive and not from a sandbox."""

    def read(file: str) -> str:
        if file in texts:
            return texts[file]
        for root in filter(None, roots):
            path = root / file
            if path.is_file() and path.resolve().is_relative_to(root.resolve()):
                return path.read_bytes().decode("utf-8", "replace")
        return ""

    return read

"""Runners of their own that our witness listens to: unittest's, and SymPy's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox_ray.sandbox import Bind, Sandbox
from minisandbox_ray.tasks import Task, grade
from minisandbox_ray.tasks.runners import run_runner, runner_of
from minisandbox_ray.tasks.source import unified_patch

from .conftest import BROKEN, Bench
from .test_suite import GOLD, hidden, new_file

RUNTESTS = """\
#!/usr/bin/env python
import sys, unittest
suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:])
result = unittest.TextTestRunner(verbosity=2).run(suite)
sys.exit(bool(result.failures or result.errors))
"""
TEST_UNITS = """\
import unittest
from calc import clamp


class Base(unittest.TestCase):
    def test_shared(self):
        self.assertEqual(clamp(-5, 0, 10), 0)


class UnitTests(Base):
    def test_high(self):
        self.assertEqual(clamp(11, 0, 10), 10)

    def test_low(self):
        \"\"\"The lowest value.\"\"\"
        self.assertEqual(clamp(-1, 0, 10), 0)

    def test_parts(self):
        for value in (4, 12):
            with self.subTest(value=value):
                self.assertLessEqual(clamp(value, 0, 10), 10)

    @unittest.skip("no")
    def test_skipped(self):
        pass

    @unittest.expectedFailure
    def test_expected(self):
        self.assertEqual(clamp(1, 0, 10), 2)
"""
UNITS = "units.UnitTests"


@pytest.fixture
def units(bench: Bench) -> Task:
    """Django's shape: the repository's own script, ids as unittest prints them."""
    pytest.importorskip("swebench", reason="the parsers are those of the package swebench")
    return hidden(
        bench,
        test_patch=new_file("tests/runtests.py", RUNTESTS) + new_file("tests/units.py", TEST_UNITS),
        FAIL_TO_PASS=[f"test_high ({UNITS}.test_high)", f"test_parts ({UNITS}.test_parts)"],
        PASS_TO_PASS=["The lowest value.", f"test_shared ({UNITS}.test_shared)"],
        log_parser="swebench:django/django",
        test_command=["env", "PYTHONPATH=/testbed", "./tests/runtests.py", "--verbosity"],
        test_targets=["units"],
    )


def test_of_unittest(bench: Bench, units: Task) -> None:
    good = grade(units, GOLD, bench.env, bench.layer)
    assert (good.resolved, good.witnessed, good.reason) == (True, True, ""), good.log
    assert "control" in good.durations
    empty = grade(units, "", bench.env, bench.layer)
    assert empty.reason == "2 of 2 FAIL_TO_PASS tests still fail"
    assert empty.tests["The lowest value."] == "passed"


@pytest.mark.parametrize(
    "attack",
    [
        "print('test_high (units.UnitTests.test_high) ... ok')",
        "import os; os._exit(0)",
        "import unittest; unittest.TestCase.assertEqual = unittest.TestCase.assertLessEqual = lambda *a, **k: None",
        "import unittest; unittest.TestCase.run = lambda self, result=None: (result.startTest(self), "
        "result.addSuccess(self), result.stopTest(self))",
        "class Any(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n    __le__ = __eq__\n"
        "clamp = lambda *a: Any()",
    ],
)
def test_a_forged_result_earns_nothing(bench: Bench, units: Task, attack: str) -> None:
    diff = unified_patch("calc.py", BROKEN, BROKEN + "\n" + attack + "\n")
    result = grade(units, diff, bench.env, bench.layer)
    assert (result.resolved, result.reward) == (False, 0.0), result


BIN_TEST = """\
import os, sys
from sympy.testing.runtests import PyTestReporter, SymPyTests
tests = SymPyTests(PyTestReporter(verbose=True))
tests._testfiles = [os.path.abspath(path) for path in sys.argv[1:] if path.endswith(".py")]
sys.exit(0 if tests.test(sort=True) else 1)
"""
TEST_SYMPY = """\
from calc import clamp
from sympy.testing.pytest import XFAIL


def test_high():
    assert clamp(11, 0, 10) == 10


def test_early():
    if clamp(20, 0, 10) == 20:
        return
    assert False


@XFAIL
def test_expected():
    assert clamp(1, 0, 10) == 2
"""


@pytest.fixture
def sympy_box(bench: Bench) -> Iterator[Sandbox]:
    """A sandbox of the broken package with the SymPy of this test's own interpreter, and its runner."""
    import sys

    sympy = pytest.importorskip("sympy", reason="its runner is what is tested")
    mpmath = pytest.importorskip("mpmath", reason="SymPy needs it")
    if sys.version_info[:2] != tuple(map(int, bench.env.manifest.interpreter.version.split(".")[:2])):
        pytest.skip("the environment has another version of Python than this test")
    spec = bench.env.sandbox_spec(layer=bench.layer)
    packages = [Path(module.__file__ or "").parent for module in (sympy, mpmath)]
    binds = [Bind(source=path, target=f"/opt/packages/{path.name}") for path in packages]
    update = {"binds": [*spec.binds, *binds], "env": {**spec.env, "PYTHONPATH": "/opt/packages"}}
    with Sandbox(spec.model_copy(update=update)) as sandbox:
        sandbox.write_file("/testbed/bin/test", BIN_TEST.encode())
        sandbox.write_file("/testbed/tests/test_s.py", TEST_SYMPY.encode())
        yield sandbox


@pytest.mark.parametrize("control", [False, True])
def test_of_sympy(sympy_box: Sandbox, control: bool) -> None:
    names = {name: f"tests/test_s.py::test_{name}" for name in ("high", "early", "expected")}
    run = run_runner(
        sympy_box,
        "sympy",
        ["bin/test"],
        ["tests/test_s.py"],
        timeout=120,
        log_chars=5000,
        files=["tests/test_s.py"],
        touched=[],
        only=list(names.values()) if control else None,
    )
    early = "failed" if control else "passed"
    assert {name: run.status(test) for name, test in names.items()} == {
        "high": "failed",
        "early": early,
        "expected": "xfailed",
    }, run.log
    assert (run.tampered, run.exit_code) == ([], 1)
    assert {case.printed for case in run.cases.values()} == {"test_high", "test_early", "test_expected"}


@pytest.mark.parametrize(
    ("command", "runner"),
    [
        ("env PYTHONWARNINGS=ignore bin/test -C --verbose", "sympy"),
        ("./tests/runtests.py --verbosity 2", "unittest"),
        ("/venv/bin/pytest", None),
        ("env A=b", None),
    ],
)
def test_which_runner_a_command_starts(command: str, runner: str | None) -> None:
    assert runner_of(command.split()) == runner

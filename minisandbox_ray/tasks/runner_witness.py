"""The witness of runners other than pytest: SymPy's bin/test, and programs that run unittest (Django's runtests.py).

A program that is copied into a sandbox beside the witness and gets the runner's script and arguments. It runs the
script in its own process, where it tells the grader, as the witness does, what the runner's own report is told.
"""

# ruff: noqa: PTH100, PTH109, PTH118, PTH120

import builtins
import importlib
import importlib.util
import os
import runpy
import sys
import time
import unittest
from typing import Any

_PLACE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.getcwd() + "/"


def _core() -> Any:
    spec: Any = importlib.util.spec_from_file_location(
        "minisandbox_core", os.path.join(_PLACE, "minisandbox_witness.py")
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["minisandbox_core"] = module
    spec.loader.exec_module(module)
    return module


def _relative(path: Any) -> str:
    path = os.path.realpath(str(path))
    return path[len(ROOT) :] if path.startswith(ROOT) else path


def _watch_compile(witness: Any) -> None:
    """SymPy's runner compiles test files itself."""
    import ast

    compile_ = builtins.compile

    def watched(source: Any, filename: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(source, (str, bytes)) and isinstance(filename, str) and witness._names(filename):
            source = ast.parse(source)
            witness._transform(source, filename)
        return compile_(source, filename, *arguments, **keywords)

    builtins.compile = watched  # type: ignore[assignment]


def watch_sympy(witness: Any, only: Any) -> None:
    """Listen to the reporter of sympy.testing.runtests (before 1.6: sympy.utilities.runtests)."""
    try:
        runtests: Any = importlib.import_module("sympy.testing.runtests")
    except ImportError:
        runtests = importlib.import_module("sympy.utilities.runtests")
    _watch_compile(witness)
    reporter = runtests.PyTestReporter
    state: Any = {"file": "", "test": "", "name": "", "started": 0.0}
    entering_filename, entering_test = reporter.entering_filename, reporter.entering_test

    def enter_file(self: Any, filename: Any, count: Any) -> Any:
        state.update(file=_relative(filename), test="")
        return entering_filename(self, filename, count)

    def enter_test(self: Any, function: Any) -> Any:
        name = function.__name__
        state.update(test=state["file"] + "::" + name, name=name, started=time.perf_counter())
        witness.begin(state["test"])
        return entering_test(self, function)

    def listen(method: str, status: str) -> None:
        told = getattr(reporter, method)

        def tell(self: Any, *arguments: Any) -> Any:
            test = state["test"]
            if test:
                seconds = time.perf_counter() - state["started"]
                witness.settle(test, test, status, seconds=seconds, printed=state["name"])
            else:
                witness.fail_to_collect(state["file"] or "a file")
            state["test"] = ""
            return told(self, *arguments)

        setattr(reporter, method, tell)

    reporter.entering_filename, reporter.entering_test = enter_file, enter_test
    listen("test_pass", "passed")
    listen("test_fail", "failed")
    listen("test_exception", "error")
    listen("test_skip", "skipped")
    listen("test_xfail", "xfailed")
    listen("test_xpass", "failed")
    if only:
        runtests.SymPyTests.matches = lambda self, function: function.__name__ in only
    witness.seal([runtests.__name__])


def watch_unittest(witness: Any, only: Any) -> None:
    """Listen to the result that unittest's text runner is told."""
    result: Any = unittest.runner.TextTestResult
    state: Any = {"test": "", "told": True, "started": 0.0}
    run: Any = unittest.TestCase.run

    def names(test: Any) -> Any:
        """(file::Class::name of the test, the same of the function that it runs)"""
        function: Any = getattr(type(test), test._testMethodName, None)
        function = getattr(function, "__wrapped__", function)
        code = getattr(function, "__code__", None)
        module = sys.modules.get(type(test).__module__)
        own = _relative(getattr(module, "__file__", None) or type(test).__module__)
        test_id = "::".join([own, *type(test).__qualname__.split("."), test._testMethodName])
        if code is None:
            return test_id, ""
        return test_id, "::".join([_relative(code.co_filename), *function.__qualname__.split(".")])

    def settle(self: Any, test: Any, status: str) -> None:
        if not isinstance(test, unittest.TestCase):
            witness.fail_to_collect(test)
            return
        test_id, function = names(test)
        state["told"] = True
        seconds = time.perf_counter() - state["started"]
        witness.settle(test_id, function, status, seconds=seconds, printed=self.getDescription(test))

    def listen(method: str, status: str) -> None:
        told = getattr(result, method)

        def tell(self: Any, test: Any, *arguments: Any) -> Any:
            settle(self, test, status)
            return told(self, test, *arguments)

        setattr(result, method, tell)

    start_test, stop_test = result.startTest, result.stopTest

    def start(self: Any, test: Any) -> Any:
        if isinstance(test, unittest.TestCase):
            state.update(told=False, started=time.perf_counter())
            witness.begin(names(test)[0])
        return start_test(self, test)

    def stop(self: Any, test: Any) -> Any:
        if not state["told"]:  # one of its parts failed
            settle(self, test, "failed")
        return stop_test(self, test)

    def run_chosen(self: Any, result: Any = None) -> Any:
        return run(self, result) if names(self)[0] in only else result

    result.startTest, result.stopTest = start, stop
    listen("addSuccess", "passed")
    listen("addFailure", "failed")
    listen("addError", "error")
    listen("addSkip", "skipped")
    listen("addExpectedFailure", "xfailed")
    listen("addUnexpectedSuccess", "failed")
    if only:
        unittest.TestCase.run = run_chosen  # type: ignore[method-assign]
    witness.seal(["django.test.runner"])


def main(arguments: Any) -> None:
    """Arguments: what runs the tests (sympy, unittest), its script, and the script's own arguments."""
    kind, script, *rest = arguments
    core = _core()
    opened = core.open_report()
    if opened is None:
        sys.exit(2)
    settings, channel = opened
    only = frozenset(settings["only"])
    if "-C" in rest and kind == "sympy":  # the script says so before it imports sympy, which is imported here first
        os.environ["SYMPY_USE_CACHE"] = "no"
    script = os.path.abspath(script)
    sys.path[:] = [os.path.dirname(script), *(path for path in sys.path if os.path.abspath(path) != _PLACE)]
    if kind == "sympy":
        sys.path.insert(1, ROOT)
        only = frozenset(test.split("::")[-1] for test in only)
    witness = core.Witness(settings, channel)
    (watch_sympy if kind == "sympy" else watch_unittest)(witness, only)
    sys.argv[:] = [script, *rest]
    status: Any = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code
    status = status if isinstance(status, int) else int(status is not None)
    witness.finish(status)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])

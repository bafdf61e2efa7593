from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.tasks.testrun import run_tests

from .conftest import IDS, Bench


def test_ids_are_pytest_s_own(bench: Bench) -> None:
    with Sandbox(bench.env.sandbox_spec()) as sandbox:
        run = run_tests(sandbox, bench.task.test_command, ["tests"])
        listed = sandbox.execute(["/venv/bin/pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"])
    assert run.exit_code == 0
    assert set(run.cases) == {line for line in listed.stdout.decode().splitlines() if "::" in line}
    assert run.passed == set(IDS)
    assert run.status("tests/test_calc.py::test_skipped") == "skipped"
    assert run.status("tests/test_calc.py::test_expected_failure") == "xfailed"
    assert run.status("tests/test_calc.py::test_clamp") == "missing"


def test_a_module_that_does_not_import_is_told(bench: Bench) -> None:
    with Sandbox(bench.env.sandbox_spec()) as sandbox:
        sandbox.write_file("/testbed/tests/test_bad.py", b"import nothing_of_that_name\n")
        run = run_tests(sandbox, bench.task.test_command, ["tests"])
    assert run.collection_errors == ["tests/test_bad.py"]
    assert run.passed == set(IDS)


def test_a_control_run_fails_what_it_can(bench: Bench) -> None:
    with Sandbox(bench.env.sandbox_spec()) as sandbox:
        run = run_tests(sandbox, bench.task.test_command, ["tests"], listed=IDS, control=True)
    inherited = "tests/test_calc.py::TestEdges::test_inherited"  # its function is another class's
    assert {test for test in IDS if run.status(test) == "passed"} == {inherited}
    assert run.tampered == []


def test_the_end_of_what_is_printed_is_kept(bench: Bench) -> None:
    with Sandbox(bench.env.sandbox_spec()) as sandbox:
        sandbox.write_file("/testbed/tests/test_loud.py", "import sys\nsys.__stderr__.write('ä' * 1000000)\n".encode())
        run = run_tests(sandbox, bench.task.test_command, ["tests"], log_chars=500, options=["-s"])
    assert run.passed == set(IDS)
    assert "bytes cut" in run.log and "6 passed" in run.log and len(run.log) < 600


def test_a_run_without_an_end_tells_nothing(bench: Bench) -> None:
    with Sandbox(bench.env.sandbox_spec()) as sandbox:
        sandbox.write_file("/testbed/tests/test_zz.py", b"import os\n\ndef test_end():\n    os._exit(0)\n")
        run = run_tests(sandbox, bench.task.test_command, ["tests"])
    assert (run.cases, run.exit_code) == ({}, 0)


def test_a_run_in_which_no_test_ends_any_more_is_ended(bench: Bench) -> None:
    with Sandbox(bench.env.sandbox_spec()) as sandbox:
        sandbox.write_file("/testbed/tests/test_zz.py", b"import time\n\ndef test_end():\n    time.sleep(3000)\n")
        run = run_tests(sandbox, bench.task.test_command, ["tests"], silence=3, timeout=600)
    assert (run.cases, run.timed_out, run.stalled) == ({}, True, True)
    assert set(IDS) <= run.unfinished.keys()


def test_a_command_that_cannot_start_is_quoted(bench: Bench) -> None:
    with Sandbox(bench.env.sandbox_spec()) as sandbox:
        run = run_tests(sandbox, ["/venv/bin/pytest", "--no-such-option"], ["tests"])
    assert run.cases == {} and "no-such-option" in run.log

from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.tasks.testrun import parse_junit, run_tests

from .conftest import IDS, Bench


def test_ids_are_pytest_s_own(bench: Bench) -> None:
    with Sandbox(bench.env.sandbox_spec()) as sandbox:
        run = run_tests(sandbox, bench.task.test_command, ["tests"], files=["tests/test_calc.py"])
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
        run = run_tests(sandbox, bench.task.test_command, ["tests"], files=["tests/test_calc.py", "tests/test_bad.py"])
    assert run.collection_errors == ["tests.test_bad"]
    assert run.passed == set(IDS)


def test_an_inherited_test_belongs_to_the_class_that_runs_it() -> None:
    xml = (
        b'<testsuites><testsuite><testcase classname="tests.test_a.TestX" name="test_i" file="tests/base.py" line="3"/>'
        b'<testcase classname="tests.test_a.TestX" name="test_i" file="tests/base.py"><error message="teardown"/>'
        b'</testcase><testcase classname="other.deep.TestY" name="test_j[x.y::z]" file="other/deep.py"/>'
        b"</testsuite></testsuites>"
    )
    cases, errors = parse_junit(xml, ["tests/test_a.py", "tests/base.py", "tests/test.py"])
    assert {test: case.status for test, case in cases.items()} == {
        "tests/test_a.py::TestX::test_i": "error",
        "other/deep.py::TestY::test_j[x.y::z]": "passed",
    }
    assert errors == []


def test_a_broken_report_tells_nothing() -> None:
    assert parse_junit(b"<testsuites><testcase", []) == ({}, [])

from minisandbox_ray.tasks.statement import normalise, quotes, write_statement
from minisandbox_ray.tasks.testrun import Case, TestRun

TRACEBACK = """\
tests/test_a.py:10: in test_one
    assert f(3) == 4
pkg/core.py:7: in f
    return secret(x) - 1
pkg/core.py:9: in secret
    raise KeyError(x)
E   KeyError: 3 at 0x7f00deadbeef in /tmp/pytest-of-root/pytest-0/x
"""
RUN = TestRun({"tests/test_a.py::test_one": Case("failed", "KeyError: 3", TRACEBACK)})


def test_a_statement_shows_the_test_s_side_only() -> None:
    text = write_statement("pkg", "1.0", RUN, ["tests/test_a.py::test_one"], "return secret(x) - 1")
    assert text.startswith("In pkg 1.0 a test fails that passed before:\n\n    tests/test_a.py::test_one\n")
    assert "        assert f(3) == 4\n    E   KeyError: 3 at 0x... in /tmp/...\n" in text
    assert "secret" not in text


def test_output_that_quotes_the_bug_is_left_out() -> None:
    text = write_statement("pkg", "1.0", RUN, ["tests/test_a.py::test_one"], "assert f( 3 )==4")
    assert "f(3)" not in text
    assert "tests/test_a.py::test_one" in text
    assert quotes("x = a+ b", "x=a + b  ") is False  # too short to say anything
    assert quotes("xx = aaa+ bbb", "xx=aaa + bbb  ")


def test_many_failures_are_counted() -> None:
    tests = [f"t.py::test_{number}" for number in range(12)]
    text = write_statement("pkg", "1.0", TestRun({test: Case("failed", "E") for test in tests}), tests, "")
    assert "12 tests fail" in text
    assert "... and 4 more" in text


def test_what_differs_from_run_to_run_is_normalised() -> None:
    assert normalise("<X at 0x7fde10a2>, /tmp/a-b/c.txt, 0.31s, line 12, in 2.0 seconds") == (
        "<X at 0x...>, /tmp/..., some time, line N, in some time"
    )

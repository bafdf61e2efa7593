import pytest

from minisandbox_ray.errors import TaskError
from minisandbox_ray.tasks.parse_log import parse
from minisandbox_ray.tasks.parsers import load_parser, parse_untrusted, public_names, worst

pytest.importorskip("swebench", reason="the parsers are those of the package swebench")


def test_names_are_the_parser_s() -> None:
    flask, requests, sympy = (
        load_parser(f"swebench:{name}") for name in ("pallets/flask", "psf/requests", "sympy/sympy")
    )
    tests = ["t/a.py::test[one two]", "t/a.py::test[/x/y]"]
    assert list(public_names(flask, tests).values()) == ["t/a.py::test[one", "t/a.py::test[/x/y]"]
    assert public_names(requests, tests)[tests[1]] == "t/a.py::test[/y]"
    assert public_names(sympy, ["test_add"]) == {"test_add": "test_add"}
    django = load_parser("swebench:django/django")
    assert public_names(django, ["test_a (x.Tests)"]) == {"test_a (x.Tests)": "test_a (x.Tests)"}


def test_of_swesmith() -> None:
    pytest.importorskip("swesmith", reason="the profiles are those of the package swesmith")
    parser = load_parser("swesmith:mewwts/addict")
    assert public_names(parser, ["test_addict.py::Tests::test_set"]) == {
        "test_addict.py::Tests::test_set": "test_addict.py::Tests::test_set"
    }


@pytest.mark.parametrize("name", ["swebench:nobody/nothing", "swesmith:nobody/nothing"])
def test_unknown_repositories(name: str) -> None:
    pytest.importorskip(name.partition(":")[0], reason="it is not installed")
    with pytest.raises(TaskError, match="nobody/nothing"):
        load_parser(name)


def test_a_failure_is_not_hidden_by_what_is_printed_later() -> None:
    log = "FAILED t.py::a - x\nPASSED t.py::a\nXFAIL t.py::b\nSKIPPED [1] t.py:3: no\nPASSED t.py::c\n"
    found = parse(load_parser("swebench:pallets/flask"), log)
    assert (found["t.py::a"], found["t.py::b"], found["t.py::c"]) == ("failed", "xfailed", "passed")


def test_hostile_logs_take_no_time_of_ours() -> None:
    hostile = "_ " * 3_000_000 + "\n" + "x ... Testing against Django installed in y\n" * 200
    assert parse_untrusted("swebench:sympy/sympy", f"{hostile}\ntest_add ok\n")["test_add"] == "passed"


def test_the_worst_of_several() -> None:
    assert worst(["skipped", "passed"]) == "passed"
    assert worst(["passed", "error", "failed"]) == "error"
    assert worst([]) == "missing"

"""What a log tells about versions, and which one the next plan takes. The texts are what pytest prints."""

import pytest

from .conftest import PLAN, next_plan


@pytest.mark.parametrize(
    ("log", "repair", "changes"),
    [
        ("yield tests were removed in pytest 4.0", "old_pytest", {"requirements": ["mock==1.0", "pytest<4"]}),
        ("AttributeError: module 'numpy' has no attribute 'float'", "aged_dependency", {}),
        ("E   RuntimeError: Event loop is closed", "other_asyncio", {}),
    ],
)
def test_another_version_is_taken(log: str, repair: str, changes: dict[str, object]) -> None:
    name, plan = next_plan(log, "collect")
    assert name == repair
    assert {key: getattr(plan, key) for key in changes} == changes


def test_a_pytest_that_is_held_back_is_let_go_where_it_does_not_run() -> None:
    plan = PLAN.changed("", requirements=["pytest==3.0", "pytest-mock<2", "mock==1.0"], exclude_newer="")
    cause = "pytest does not start (status 1): ModuleNotFoundError"
    name, plan = next_plan("ModuleNotFoundError: No module named 'imp'", "collect", plan, cause)
    assert (name, plan.requirements) == ("pinned_pytest", ["pytest", "pytest-mock", "mock==1.0"])


def test_of_two_plugins_that_do_not_bear_each_other_the_unnamed_one_goes() -> None:
    plan = PLAN.changed("", requirements=["pytest", "mock==1.0", "pytest-recording"])
    log = "INTERNALERROR> RuntimeError: `pytest-recording` is incompatible with `mock`. Please, uninstall `mock` …"
    name, plan = next_plan(log, "collect", plan, "pytest does not start (status 3)")
    assert (name, plan.requirements) == ("rival_plugins", ["pytest", "mock==1.0"])

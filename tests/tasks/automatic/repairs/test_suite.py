"""What a log tells about the suite, and how the next plan runs it. The texts are what pytest prints."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox_ray.tasks.automatic import nose
from minisandbox_ray.tasks.automatic.django import configured
from minisandbox_ray.tasks.automatic.repairs.failure import Failure
from minisandbox_ray.tasks.automatic.repairs.known import repaired
from minisandbox_ray.tasks.automatic.tree import SourceTree
from minisandbox_ray.tasks.automatic.trial import Trial

from .conftest import FACTS, PLAN, next_plan


@pytest.mark.parametrize(
    ("log", "repair", "changes"),
    [
        (
            "async def functions are not natively supported.",
            "async_tests",
            {"requirements": ["mock==1.0", "pytest", "pytest-asyncio"]},
        ),
        (
            "import file mismatch:\nimported module 'test_a'",
            "conflicting_names",
            {"options": ["--import-mode=importlib"]},
        ),
        ("E   DeprecationWarning: pkg is deprecated", "warnings_as_errors", {"options": ["-W", "default"]}),
        (
            "INTERNALERROR> pytest.PytestDeprecationWarning: The configuration option is unset.",
            "warnings_as_errors",
            {"options": ["-W", "default"]},
        ),
    ],
)
def test_the_suite_is_run_otherwise(log: str, repair: str, changes: dict[str, object]) -> None:
    name, plan = next_plan(log, "collect")
    assert name == repair
    assert {key: getattr(plan, key) for key in changes} == changes


def test_tests_that_name_files_from_their_own_directory_run_there() -> None:
    log = "E   FileNotFoundError: [Errno 2] No such file or directory: 'data/a.json'"
    name, plan = next_plan(log, "tests", paths=("tests/data/a.json", "tests/test_a.py"))
    assert (name, plan.options) == ("other_directory", ["-p", "testbed_directory"])
    assert "'tests'" in plan.prepare[0].replace("'\"'\"'", "'")
    assert next_plan(log, "tests", plan, paths=("tests/data/a.json",))[0] == ""


def test_what_nose_calls_of_a_plain_class_is_called(tmp_path: Path) -> None:
    test = """from nose.tools import eq_


class TestIt(object):
    def setUp(self):
        self.value = 1

    def test_it(self):
        assert self.value == 1
"""
    log = "E   AttributeError: 'TestIt' object has no attribute 'value'"
    failure = Failure(Trial(PLAN, "tests", log=log), FACTS, SourceTree(frozenset(["test_a.py"]), {"test_a.py": test}))
    name, plan = next(repaired(failure))
    assert (name, plan.options) == ("nose_fixtures", ["-p", "testbed_nose"])
    assert list(repaired(replace(failure, trial=replace(failure.trial, plan=plan)))) == []
    inside = {"test_a.py": test.replace("(object)", "(unittest.TestCase)")}
    assert list(repaired(replace(failure, tree=SourceTree(frozenset(inside), inside)))) == []

    (tmp_path / "testbed_nose.py").write_text(nose.PLUGIN)
    (tmp_path / "test_a.py").write_text(test.partition("\n")[2])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "testbed_nose", "-p", "no:cacheprovider", "test_a.py"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": "."}, check=True, capture_output=True)
    assert nose.PLUGIN in shlex.split(plan.prepare[0])


def test_doctests_of_modules_that_cannot_be_imported_are_left_out() -> None:
    facts = replace(FACTS, pytest_options="-q --doctest-modules --strict")
    trial = Trial(PLAN, "collect", uncollected=["demo/gui.py", "demo/windows.py", "tests/test_a.py"])
    name, plan = next(repaired(Failure(trial, facts, SourceTree())))
    assert (name, plan.options) == ("doctests", ["-o", "addopts=-q --strict"])
    assert list(repaired(Failure(replace(trial, uncollected=["tests/test_a.py"]), facts, SourceTree()))) == []


def test_a_django_app_without_settings_gets_some() -> None:
    paths = ("waffle/__init__.py", "waffle/models.py", "waffle/tests/urls.py", "waffle/tests/test_a.py")
    name, plan = next_plan("E   ImproperlyConfigured: Requested settings", "tests", paths=paths)
    assert (name, plan.variables) == ("django_settings", {"DJANGO_SETTINGS_MODULE": "testbed_settings"})
    written = plan.prepare[0].partition("<<'END'\n")[2].removesuffix("END")
    settings: dict[str, object] = {}
    exec(written, settings)
    assert settings["INSTALLED_APPS"][-1] == "waffle" and settings["ROOT_URLCONF"] == "waffle.tests.urls"  # type: ignore[index]


def test_a_script_that_ends_pytest_is_left_out() -> None:
    log = 'INTERNALERROR>   File "/testbed/tests/test_b.py", line 9, in <module>\nINTERNALERROR>     sys.exit(0)\n'
    name, plan = next_plan(f"{log}INTERNALERROR> SystemExit: 0\n", "collect", PLAN.changed("", targets=["tests"]))
    assert (name, plan.options, plan.targets) == ("leaving_files", ["--ignore=tests/test_b.py"], ["tests"])
    assert next_plan(f"{log}INTERNALERROR> KeyError: 0\n", "collect")[0] != "leaving_files"


def test_tests_that_configure_django_are_not_told_its_settings() -> None:
    variables = {"DJANGO_SETTINGS_MODULE": "a.settings"}
    plan = PLAN.changed("", requirements=["pytest", "pytest-django"], variables=variables)
    name, plan = next_plan("E   RuntimeError: Settings already configured.", "collect", plan)
    assert (name, plan.requirements, plan.variables) == ("settled_twice", ["pytest"], {})
    assert next_plan("E   RuntimeError: Settings already configured.", "collect", plan)[0] == ""
    said = "ImportError: No module named 'a'\n\npytest-django could not find a Django project (no manage.py"
    assert next_plan(said, "collect", PLAN.changed("", variables=variables))[1].variables == {}


def test_what_a_script_configures_becomes_django_s_settings() -> None:
    script = """import os
import django
from django.conf import settings
APPS = ["waffle"]
BASE = os.path.dirname(__file__)
settings.configure(INSTALLED_APPS=["django.contrib.auth", *APPS], TEMPLATE_DIR=os.path.join(BASE, "templates"))
django.setup()
"""
    written: dict[str, object] = {}
    exec(configured(SourceTree(frozenset(["runtests.py"]), {"runtests.py": script})), written)
    assert written["INSTALLED_APPS"] == ["django.contrib.auth", "waffle"]
    assert written["TEMPLATE_DIR"] == "/testbed/templates" and "django" not in written


def test_a_suite_without_end_gets_a_limit_per_test_once() -> None:
    name, plan = next_plan("", "tests", cause="the suite takes longer than 120 s")
    assert (name, plan.options) == ("endless", ["--timeout=10"])
    assert next_plan("", "tests", plan, "the suite takes longer than 120 s")[0] == ""


def test_files_that_want_a_network_are_left_out_only_if_half_remains() -> None:
    trial = Trial(
        PLAN,
        "tests",
        passing=["tests/test_a.py::test_1", "tests/test_a.py::test_2"],
        failing=["tests/test_net.py::test_1"],
        outside=["tests/test_net.py"],
    )
    failure = Failure(trial, FACTS, SourceTree())
    name, plan = next(repaired(failure))
    assert (name, plan.options) == ("out_of_reach", ["--ignore=tests/test_net.py"])
    trial = replace(trial, failing=[f"tests/test_net.py::test_{number}" for number in range(3)])
    assert list(repaired(Failure(trial, FACTS, SourceTree()))) == []


def test_tests_of_whole_systems_are_left_out_only_if_it_is_they_that_fail_and_half_remains() -> None:
    passing = [f"tests/unit/test_a.py::test_{number}" for number in range(4)]
    failing = [f"tests/integration/test_b.py::test_{number}" for number in range(3)]
    trial = Trial(PLAN, "tests", passing=passing, failing=failing)
    name, plan = next(repaired(Failure(trial, FACTS, SourceTree())))
    assert (name, plan.options) == ("tests_apart", ["--ignore=tests/integration"])
    assert list(repaired(Failure(replace(trial, plan=plan), FACTS, SourceTree()))) == []
    for worse in (replace(trial, passing=passing[:2]), replace(trial, failing=[*failing, *passing])):
        assert list(repaired(Failure(worse, FACTS, SourceTree()))) == []


def test_variants_of_tests_that_were_never_meant_for_trio_are_left_out() -> None:
    passing = [f"tests/test_a.py::test_{number}[asyncio]" for number in range(4)]
    failing = [f"tests/test_a.py::test_{number}[trio-other]" for number in range(3)]
    trial = Trial(PLAN, "tests", passing=passing, failing=failing)
    name, plan = next(repaired(Failure(trial, FACTS, SourceTree())))
    assert (name, plan.options) == ("on_trio", ["-k", "not trio"])
    assert list(repaired(Failure(replace(trial, plan=plan), FACTS, SourceTree()))) == []
    works = replace(trial, passing=[*passing, "tests/test_a.py::test_9[trio]"])
    assert list(repaired(Failure(works, FACTS, SourceTree()))) == []

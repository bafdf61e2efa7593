"""What a log says, and what the next plan does about it. The texts are what pip and pytest print."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox_ray.environments import Source
from minisandbox_ray.tasks.automatic import nose
from minisandbox_ray.tasks.automatic.django import configured
from minisandbox_ray.tasks.automatic.facts import Facts
from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.repairs import Failure, missing_system_package, repaired
from minisandbox_ray.tasks.automatic.servers import servers_missed
from minisandbox_ray.tasks.automatic.tree import SourceTree
from minisandbox_ray.tasks.automatic.trial import Stage, Trial

PLAN = Plan(python="3.9.18", requirements=["mock==1.0", "pytest"], exclude_newer="2021-01-01", targets=["tests"])
FACTS = Facts(
    name="demo",
    version="1.2",
    dependencies=["six>=1"],
    test_requirements=["WebTest>=2", "mock==1.0"],
    essential_requirements=["mock"],
    build_requires=["setuptools"],
    targets=["tests"],
)


def next_plan(
    log: str, stage: Stage, plan: Plan = PLAN, cause: str = "", paths: tuple[str, ...] = ()
) -> tuple[str, Plan]:
    trial = Trial(plan, stage, cause, log)
    return next(repaired(Failure(trial, FACTS, SourceTree(frozenset(paths)))), ("", plan))


@pytest.mark.parametrize(
    ("log", "repair", "changes"),
    [
        (
            "ERROR: No matching distribution found for mock==1.0",
            "no_matching_version",
            {"requirements": ["pytest", "mock"]},
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement mock==1.0 (from versions: none)\n"
            "ERROR: No matching distribution found for mock==1.0",
            "no_matching_version",
            {"requirements": ["pytest"], "unavailable": ["mock"]},
        ),
        ("ERROR: No matching distribution found for six>=1", "no_matching_version", {"exclude_newer": ""}),
        (
            "ERROR: ResolutionImpossible: for help visit",
            "conflicting_requirements",
            {"requirements": ["mock", "pytest"]},
        ),
        (
            "ModuleNotFoundError: No module named 'Cython'",
            "missing_build_module",
            {"strategy": "no-isolation", "build_requirements": ["setuptools<66", "wheel", "Cython"]},
        ),
        (
            "error in demo setup command: use_2to3 is invalid.",
            "old_setuptools",
            {"strategy": "no-isolation", "build_requirements": ["setuptools<58", "wheel"]},
        ),
        (
            'A "pyproject.toml" file was found, but editable mode currently requires a setuptools-based build.',
            "no_editable_hook",
            {"strategy": "metadata"},
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'requirements/base.txt'",
            "missing_file",
            {"prepare": ["mkdir -p ./requirements && touch requirements/base.txt"]},
        ),
        (
            "LookupError: setuptools-scm was unable to detect version for /testbed.",
            "no_version",
            {"variables": {"SETUPTOOLS_SCM_PRETEND_VERSION": "1.2"}},
        ),
        (
            "/bin/sh: 1: swig: not found",
            "system_package",
            {"system_packages": ["swig"]},
        ),
        ("bash: line 3: meson: command not found", "missing_program", {"build_requirements": ["meson"]}),
        ("  ERROR: Failed building wheel for mock", "failing_requirement", {"requirements": ["pytest"]}),
    ],
)
def test_a_failed_build(log: str, repair: str, changes: dict[str, object]) -> None:
    name, plan = next_plan(log, "build")
    assert name == repair
    assert {key: getattr(plan, key) for key in changes} == changes
    assert plan.learned


@pytest.mark.parametrize(
    ("log", "repair", "changes"),
    [
        (
            "E   ModuleNotFoundError: No module named 'webtest'",
            "missing_module",
            {"requirements": ["mock==1.0", "pytest", "WebTest>=2"]},
        ),
        (
            "E   ModuleNotFoundError: No module named 'yaml'\nE   ModuleNotFoundError: No module named 'bs4.element'",
            "missing_module",
            {"requirements": ["mock==1.0", "pytest", "PyYAML", "beautifulsoup4"]},
        ),
        (
            "E       fixture 'mocker' not found",
            "missing_fixture",
            {"requirements": ["mock==1.0", "pytest", "pytest-mock"]},
        ),
        (
            "pytest: error: unrecognized arguments: --cov=demo --cov-report=xml -n4",
            "unknown_option",
            {"requirements": ["mock==1.0", "pytest", "pytest-cov", "pytest-xdist"]},
        ),
        ("pytest: error: unrecognized arguments: --flake8", "unknown_option", {"options": ["-o", "addopts="]}),
        (
            "async def functions are not natively supported.",
            "async_tests",
            {"requirements": ["mock==1.0", "pytest", "pytest-asyncio"]},
        ),
        ("yield tests were removed in pytest 4.0", "old_pytest", {"requirements": ["mock==1.0", "pytest<4"]}),
        ("ERROR: Missing required plugins: pytest-foo, pytest-bar", "missing_plugins", {}),
        (
            "import file mismatch:\nimported module 'test_a'",
            "conflicting_names",
            {"options": ["--import-mode=importlib"]},
        ),
        ("E   DeprecationWarning: pkg is deprecated", "warnings_as_errors", {"options": ["-W", "default"]}),
        ("AttributeError: module 'numpy' has no attribute 'float'", "aged_dependency", {}),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'uv'",
            "missing_program",
            {"requirements": ["mock==1.0", "pytest", "uv"]},
        ),
        ("sh: 1: dot: not found", "missing_program", {"system_packages": ["graphviz"]}),
        (
            "ImportError: libGL.so.1: cannot open shared object file: No such file",
            "missing_library",
            {"system_packages": ["libgl1"]},
        ),
        ("E   RuntimeError: Event loop is closed", "other_asyncio", {}),
    ],
)
def test_tests_that_do_not_run(log: str, repair: str, changes: dict[str, object]) -> None:
    name, plan = next_plan(log, "collect")
    assert name == repair
    assert {key: getattr(plan, key) for key in changes} == changes


def test_a_release_that_cannot_be_compiled_here_may_have_a_wheel() -> None:
    log = "error: can't find cargo\n  💥 maturin failed"
    assert next_plan(log, "build")[0] == "", "a working tree has no wheel"
    name, plan = next_plan(log, "build", paths=("PKG-INFO",))
    assert (name, plan.strategy) == ("own_wheel", "wheel")
    assert (
        "--only-binary demo demo==1.2" in plan.spec(Source(kind="sdist", name="demo", version="1.2"), FACTS).install[0]
    )


def test_compiled_parts_that_a_build_leaves_out_come_with_the_wheel() -> None:
    log = "E   ImportError: cannot import name 'Fast' from 'demo' (/testbed/demo/__init__.py)"
    paths = ("PKG-INFO", "demo/__init__.py", "src/lib.rs")
    failure = Failure(Trial(PLAN, "collect", log=log), replace(FACTS, has_compiled=True), SourceTree(frozenset(paths)))
    name, plan = next(repaired(failure))
    assert (name, plan.strategy) == ("lost_parts", "wheel")
    assert list(repaired(replace(failure, trial=replace(failure.trial, plan=plan)))) == []
    assert list(repaired(replace(failure, facts=FACTS))) == [], "there is nothing to compile"


def test_pages_and_scripts_of_a_release_come_with_its_wheel() -> None:
    log = "FileNotFoundError: [Errno 2] No such file or directory: 'npm'"
    assert next_plan(log, "build", paths=("PKG-INFO",))[0] == "own_wheel"


def test_a_requirement_of_the_tests_that_pip_cannot_prepare_is_left_out() -> None:
    log = """Obtaining file:///testbed
Collecting pytest
Collecting mock==1.0 (from demo)
  Preparing metadata (pyproject.toml): finished with status 'error'
  maturin failed
"""
    name, plan = next_plan(log, "build", paths=("PKG-INFO",))
    assert (name, plan.requirements) == ("failing_requirement", ["pytest"])
    own = log.replace("Collecting mock==1.0 (from demo)\n", "Obtaining file:///testbed\n")
    assert next_plan(own, "build", paths=("PKG-INFO",))[0] == "own_wheel"


def test_the_project_that_shares_a_module_s_name_takes_the_other_s_place() -> None:
    plan = PLAN.changed("", requirements=["python-dotenv", "pytest"])
    name, plan = next_plan("E  AttributeError: module 'dotenv' has no attribute 'read_dotenv'", "collect", plan)
    assert (name, plan.requirements) == ("look_alike", ["pytest", "django-dotenv"])


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


def test_a_package_of_tests_that_lost_its_init_gets_the_modules_that_are_imported_from_it() -> None:
    log = "E   ImportError: cannot import name 'unittest' from 'tests' (unknown location)"
    name, plan = next_plan(log, "collect", paths=("tests/test_a.py",))
    assert (name, plan.prepare) == ("missing_init", ["echo 'import unittest' >> tests/__init__.py"])
    assert next_plan(log.replace("unittest", "helpers"), "collect", paths=("tests/test_a.py",))[0] == ""


def test_a_folder_of_tests_that_another_package_hides_becomes_a_package() -> None:
    log = "E   ModuleNotFoundError: No module named 'test.helpers'"
    name, plan = next_plan(log, "collect", paths=("test/helpers.py", "test/test_a.py"))
    assert (name, plan.prepare) == ("missing_init", ["touch test/__init__.py"])
    assert next_plan(log, "collect", paths=("test/test_a.py",))[0] == "", "it is not there"


def test_a_folder_whose_tests_import_relatively_becomes_a_package() -> None:
    log = (
        "tests/test_a.py:3: in <module>\n    from .b import c\nE   ImportError: attempted relative import with no known"
    )
    name, plan = next_plan(f"{log} parent package", "collect", paths=("tests/b.py", "tests/test_a.py"))
    assert (name, plan.prepare) == ("missing_init", ["touch tests/__init__.py"])
    assert next_plan(f"{log} parent package", "collect", plan, paths=("tests/test_a.py",))[0] == "conflicting_names"


def test_the_part_of_a_shared_package_is_read_from_the_line_that_imports_it() -> None:
    log = "    from google.api_core import exceptions\nE   ModuleNotFoundError: No module named 'google'"
    assert next_plan(log, "collect")[1].requirements[-1] == "google-api-core"


def test_modules_for_want_of_which_all_is_skipped_are_installed() -> None:
    log = "SKIPPED [1] tests/test_a.py:3: could not import 'yaml': No module named 'yaml'"
    assert next_plan(log, "tests", cause="no test passes (9 skipped)")[1].requirements[-1] == "PyYAML"
    assert next_plan(log, "tests", cause="9 of 9 tests fail")[0] == "", "who skips some tests may"


def test_crates_are_not_to_be_had_but_a_release_s_wheel_is() -> None:
    log = "error: can't find Rust compiler"
    assert next_plan(log, "build", paths=("PKG-INFO",))[0] == "own_wheel"
    assert next_plan(log, "build", paths=("PKG-INFO", "vendor/libc/Cargo.toml"))[0] == "system_package"


def test_doctests_of_modules_that_cannot_be_imported_are_left_out() -> None:
    facts = replace(FACTS, pytest_options="-q --doctest-modules --strict")
    trial = Trial(PLAN, "collect", uncollected=["demo/gui.py", "demo/windows.py", "tests/test_a.py"])
    name, plan = next(repaired(Failure(trial, facts, SourceTree())))
    assert (name, plan.options) == ("doctests", ["-o", "addopts=-q --strict"])
    assert list(repaired(Failure(replace(trial, uncollected=["tests/test_a.py"]), facts, SourceTree()))) == []


def test_a_pytest_that_is_held_back_is_let_go_where_it_does_not_run() -> None:
    plan = PLAN.changed("", requirements=["pytest==3.0", "pytest-mock<2", "mock==1.0"], exclude_newer="")
    cause = "pytest does not start (status 1): ModuleNotFoundError"
    name, plan = next_plan("ModuleNotFoundError: No module named 'imp'", "collect", plan, cause)
    assert (name, plan.requirements) == ("pinned_pytest", ["pytest", "pytest-mock", "mock==1.0"])


def test_variables_that_tests_read_are_set() -> None:
    log = "    KEY = os.environ['SERVICE_TOKEN']\nE   KeyError: 'SERVICE_TOKEN'"
    name, plan = next_plan(log, "collect")
    assert (name, plan.variables) == ("unset_variable", {"SERVICE_TOKEN": "testbed"})
    assert next_plan(log, "collect", plan)[0] == ""
    assert next_plan("E   KeyError: 'SERVICE_TOKEN'", "collect")[0] == "", "a key of some other table"


def test_a_helper_beside_the_tests_is_found_before_the_index_is_asked() -> None:
    log = "E   ModuleNotFoundError: No module named 'helpers'"
    name, plan = next_plan(log, "collect", paths=("tests/lib/helpers/__init__.py", "tests/test_a.py"))
    assert (name, plan.paths, plan.requirements) == ("missing_module", ["tests/lib"], PLAN.requirements)
    _, plan = next_plan(log.replace("helpers", "example"), "collect", paths=("tests/lib/example/__init__.py",))
    assert plan.learned == ["tests/lib on the path"], "and no project of that name"


def test_a_module_of_the_package_does_not_hide_a_project() -> None:
    log = "E   ModuleNotFoundError: No module named 'yaml'"
    _, plan = next_plan(log, "collect", paths=("demo/yaml.py",))
    assert plan.requirements[-1] == "PyYAML"


def test_what_the_index_does_not_have_is_not_asked_for_again() -> None:
    log = "E   ModuleNotFoundError: No module named 'private_helpers'"
    _, plan = next_plan(log, "collect")
    assert plan.requirements[-1] == "private-helpers"
    _, plan = next_plan("ERROR: No matching distribution found for private-helpers", "build", plan)
    assert plan.requirements == PLAN.requirements
    assert next_plan(log, "collect", plan)[0] == ""
    name, plan = next_plan(f"ImportError while loading conftest '/testbed/conftest.py'.\n{log}", "collect", plan)
    assert (name, plan.options) == ("hopeless_conftest", ["--noconftest"])
    log = "ImportError: Error importing plugin \"tests.lost\": No module named 'tests.lost'"
    assert next_plan(log, "collect")[0] == "hopeless_conftest"


def test_a_django_app_without_settings_gets_some() -> None:
    paths = ("waffle/__init__.py", "waffle/models.py", "waffle/tests/urls.py", "waffle/tests/test_a.py")
    name, plan = next_plan("E   ImproperlyConfigured: Requested settings", "tests", paths=paths)
    assert (name, plan.variables) == ("django_settings", {"DJANGO_SETTINGS_MODULE": "testbed_settings"})
    written = plan.prepare[0].partition("<<'END'\n")[2].removesuffix("END")
    settings: dict[str, object] = {}
    exec(written, settings)
    assert settings["INSTALLED_APPS"][-1] == "waffle" and settings["ROOT_URLCONF"] == "waffle.tests.urls"  # type: ignore[index]


def test_tests_that_configure_django_are_not_told_its_settings() -> None:
    plan = PLAN.changed(
        "", requirements=["pytest", "pytest-django"], variables={"DJANGO_SETTINGS_MODULE": "a.settings"}
    )
    name, plan = next_plan("E   RuntimeError: Settings already configured.", "collect", plan)
    assert (name, plan.requirements, plan.variables) == ("settled_twice", ["pytest"], {})
    assert next_plan("E   RuntimeError: Settings already configured.", "collect", plan)[0] == ""


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


def test_a_server_that_tests_miss_runs_beside_them() -> None:
    missed = servers_missed("redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379.")
    assert missed == ["redis"] and servers_missed("ConnectionError: no route to example.org:80") == []
    trial = Trial(PLAN, "tests", failing=["tests/test_a.py::test_1"], missed=missed)
    name, plan = next(repaired(Failure(trial, FACTS, SourceTree())))
    assert (name, plan.servers) == ("missed_server", ["redis"])
    spec = plan.spec(Source(kind="sdist", name="demo", version="1.2"), FACTS)
    assert [each.ready for each in spec.services] == [6379] and spec.system_packages == ["redis-server"]
    assert list(repaired(Failure(replace(trial, plan=plan), FACTS, SourceTree()))) == []


def test_who_leaves_the_choice_of_qt_to_others_gets_one() -> None:
    name, plan = next_plan("E   qtpy.QtBindingsNotFoundError: No Qt bindings could be found", "collect")
    assert (name, plan.requirements[-1], plan.variables) == ("qt_binding", "PyQt5", {"QT_QPA_PLATFORM": "offscreen"})


def test_tests_that_draw_get_a_screen() -> None:
    name, plan = next_plan("E   _tkinter.TclError: no display name and no $DISPLAY environment variable", "tests")
    assert (name, plan.requirements[-1], plan.system_packages) == ("no_display", "pytest-xvfb", ["xvfb"])
    log = 'qt.qpa.plugin: Could not load the Qt platform plugin "xcb"'
    name, plan = next_plan(log, "tests")
    assert (name, plan.variables) == ("no_display", {"QT_QPA_PLATFORM": "offscreen"})
    assert next_plan(log, "tests", plan)[1].requirements[-1] == "pytest-xvfb", "where that is not enough"


def test_git_is_told_whose_commits_tests_make() -> None:
    name, plan = next_plan("E   stderr: Please tell me who you are.", "tests")
    assert name == "git_identity" and plan.variables["GIT_COMMITTER_EMAIL"] == "testbed@localhost"
    assert next_plan("E   stderr: Please tell me who you are.", "tests", plan)[0] == ""


def test_what_one_log_shows_to_be_missing_is_added_at_once() -> None:
    log = "E   ModuleNotFoundError: No module named 'yaml'\nE       fixture 'mocker' not found"
    name, plan = next_plan(f"{log}\nFileNotFoundError: No such file or directory: 'jq'", "tests")
    assert (name, plan.requirements[-2:]) == ("missing_program", ["PyYAML", "pytest-mock"])
    assert plan.system_packages == ["jq"] and plan.learned == ["jq", "PyYAML", "pytest-mock"]


def test_nothing_is_proposed_twice() -> None:
    log = "E       fixture 'mocker' not found"
    _, plan = next_plan(log, "collect")
    assert next_plan(log, "collect", plan)[0] == ""


@pytest.mark.parametrize(
    ("log", "name", "packages"),
    [
        ("src/a.c:3:10: fatal error: ldap.h: No such file or directory", "ldap.h", ["libldap2-dev"]),
        ("fatal error: nobody/knows.h: No such file or directory", "nobody/knows.h", []),
        ("Error: pg_config executable not found.", "pg_config", ["libpq-dev"]),
        ("error: can't find Rust compiler", "Rust compiler", ["rustc", "cargo"]),
        ("ImportError", "", []),
    ],
)
def test_what_the_system_lacks_is_told_and_taken_from_debian(log: str, name: str, packages: list[str]) -> None:
    assert missing_system_package(log) == (name, packages)
    _, plan = next_plan(log, "build")
    assert plan.system_packages == packages

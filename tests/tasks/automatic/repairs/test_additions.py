"""What a log shows to be missing, and what the next plan adds. The texts are what pytest prints."""

from dataclasses import replace

import pytest

from minisandbox_ray.environments import Source
from minisandbox_ray.tasks.automatic.repairs.failure import Failure
from minisandbox_ray.tasks.automatic.repairs.known import repaired
from minisandbox_ray.tasks.automatic.servers import servers_missed
from minisandbox_ray.tasks.automatic.tree import SourceTree
from minisandbox_ray.tasks.automatic.trial import Trial

from .conftest import FACTS, PLAN, next_plan


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
        ("ERROR: Missing required plugins: pytest-foo, pytest-bar", "missing_plugins", {}),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'uv'",
            "missing_program",
            {"requirements": ["mock==1.0", "pytest", "uv"]},
        ),
        ("sh: 1: dot: not found", "missing_program", {"system_packages": ["graphviz"]}),
        (
            "No such file or directory: '/usr/bin/Xvfb'\nE  OSError: command xterm not found\n"
            "E  RuntimeError: Executable `gs` could not be found\nNo such file or directory: '/opt/zsh'",
            "missing_program",
            {"system_packages": ["xvfb", "xterm", "ghostscript"]},
        ),
        (
            "PySparkRuntimeError: [JAVA_GATEWAY_EXITED] Java gateway process exited\n"
            "TesseractNotFoundError: tesseract is not installed or it's not in your PATH.",
            "missing_program",
            {"system_packages": ["tesseract-ocr", "default-jre-headless"]},
        ),
        (
            "ImportError: libGL.so.1: cannot open shared object file: No such file",
            "missing_library",
            {"system_packages": ["libgl1"]},
        ),
    ],
)
def test_what_is_missing_is_added(log: str, repair: str, changes: dict[str, object]) -> None:
    name, plan = next_plan(log, "collect")
    assert name == repair
    assert {key: getattr(plan, key) for key in changes} == changes


def test_the_project_that_shares_a_module_s_name_takes_the_other_s_place() -> None:
    plan = PLAN.changed("", requirements=["python-dotenv", "pytest"])
    name, plan = next_plan("E  AttributeError: module 'dotenv' has no attribute 'read_dotenv'", "collect", plan)
    assert (name, plan.requirements) == ("look_alike", ["pytest", "django-dotenv"])


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


def test_a_package_s_own_directory_goes_on_the_path_only_where_the_index_has_no_such_project() -> None:
    log, paths = "E   ModuleNotFoundError: No module named 'flax'", ("demo/__init__.py", "demo/flax.py")
    _, plan = next_plan(log, "collect", paths=paths)
    assert plan.learned == ["flax"] and not plan.paths
    _, plan = next_plan(log, "collect", PLAN.model_copy(update={"unavailable": ["flax"]}), paths=paths)
    assert plan.learned == ["demo on the path"]


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


@pytest.mark.parametrize(
    ("said", "missed"),
    [
        ("InterfaceError: Can't create a connection to host localhost and port 5432 (timeout is None).", ["postgres"]),
        ('connection to server at "localhost" (127.0.0.1), port 5432 failed: Connection refused', ["postgres"]),
        ("OSError: Multiple exceptions: [Errno 111] Connect call failed ('127.0.0.1', 5432)", ["postgres"]),
        ("ConnectionRefusedError: [Errno 111] connect to ('127.0.0.1', 11211)", ["memcached"]),
        ("AssertionError: assert 5432 == 11211", []),
    ],
)
def test_which_server_a_failure_misses(said: str, missed: list[str]) -> None:
    assert servers_missed(said) == missed


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

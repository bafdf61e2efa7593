"""What a build says, and what the next plan does about it. The texts are what pip and build tools print."""

from dataclasses import replace

import pytest

from minisandbox_ray.environments import Source
from minisandbox_ray.tasks.automatic.repairs.builds import missing_system_package
from minisandbox_ray.tasks.automatic.repairs.failure import Failure
from minisandbox_ray.tasks.automatic.repairs.known import repaired
from minisandbox_ray.tasks.automatic.tree import SourceTree
from minisandbox_ray.tasks.automatic.trial import Trial

from .conftest import FACTS, PLAN, next_plan


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


def test_crates_are_not_to_be_had_but_a_release_s_wheel_is() -> None:
    log = "error: can't find Rust compiler"
    assert next_plan(log, "build", paths=("PKG-INFO",))[0] == "own_wheel"
    assert next_plan(log, "build", paths=("PKG-INFO", "vendor/libc/Cargo.toml"))[0] == "system_package"


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

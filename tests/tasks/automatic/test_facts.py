"""What is read from source trees of several kinds."""

from pathlib import Path

from minisandbox_ray.environments import Interpreter
from minisandbox_ray.tasks.automatic.facts import detect
from minisandbox_ray.tasks.automatic.plans import first_plans
from minisandbox_ray.tasks.automatic.tree import SourceTree

TEST = "import pytest\n\ndef test_it():\n    pass\n"

TOX = """
[tox]
envlist = py{36,37},lint
[testenv]
extras = speed
setenv = MODE = {toxinidir}/x
deps =
    -r requirements/test.txt
    py36: dataclasses
    flake8
"""


def tree(texts: dict[str, str]) -> SourceTree:
    return SourceTree(frozenset(texts), texts)


def test_a_modern_project() -> None:
    facts = detect(
        tree(
            {
                "pyproject.toml": """
                    [build-system]
                    requires = ["hatchling", "hatch-vcs"]
                    build-backend = "hatchling.build"
                    [project]
                    name = "demo"
                    dynamic = ["version"]
                    requires-python = ">=3.9"
                    dependencies = ["attrs>=20"]
                    classifiers = ["Programming Language :: Python :: 3.11", "Programming Language :: Python :: 3"]
                    [project.optional-dependencies]
                    test = ["demo[extra]", "pytest>=7", "mypy"]
                    extra = ["msgpack; python_version < '3.12'"]
                    docs = ["sphinx"]
                    fast = ["orjson"]
                    [dependency-groups]
                    tests = [{include-group = "base"}, "freezegun", "demo[fast]"]
                    base = ["responses"]
                    [tool.pytest.ini_options]
                    testpaths = ["checks"]
                    addopts = "--cov=demo"
                """,
                "src/demo/__init__.py": "",
                "checks/test_demo.py": TEST,
                "other/test_other.py": TEST,
            }
        )
    )
    assert (facts.name, facts.requires_python, facts.backend) == ("demo", ">=3.9", "hatchling.build")
    assert facts.tested == ["3.11"]
    assert facts.import_path == "src"
    assert facts.targets == ["checks"]
    assert facts.version_variables == ["SETUPTOOLS_SCM_PRETEND_VERSION"]
    assert facts.dependencies == ["attrs>=20"]
    expected = ['msgpack; python_version < "3.12"', "pytest>=7", "responses", "freezegun", "orjson", "pytest-cov"]
    assert facts.test_requirements == expected


def test_setup_py_is_read_and_not_run() -> None:
    setup = """
        import os, sys
        raise SystemExit("it was run")
        NAME = "old" + "-project"
        tests = ["nose", "mock>=1"]
        extras = {"testing": tests + ["WebTest"]}
        extras["docs"] = ["sphinx"]
        tests += ["six"]
        setup(name=NAME, version="1.2", install_requires=["requests"], extras_require=extras, tests_require=tests,
              python_requires=">=2.7, !=3.0.*", use_scm_version=True,
              classifiers=["Programming Language :: Python :: 3.7"])
    """
    setup = "\n".join(line.removeprefix("        ") for line in setup.splitlines())
    facts = detect(tree({"setup.py": setup, "old/__init__.py": "", "old/tests/test_a.py": "import unittest\n"}))
    assert (facts.name, facts.version, facts.requires_python) == ("old-project", "1.2", ">=2.7, !=3.0.*")
    assert facts.test_requirements == ["nose", "mock>=1", "WebTest", "six"]
    assert facts.targets == ["old/tests"]
    assert facts.runner == "nose"
    assert facts.tested == ["3.7"]


def test_pytest_s_own_toml_goes_before_the_project_s() -> None:
    texts = {"pytest.toml": "[pytest]\ntestpaths = ['a']\naddopts = ['-v', '-n', 'auto']\n", "a/test_a.py": TEST}
    facts = detect(tree({**texts, "pyproject.toml": "[tool.pytest]\ntestpaths = ['b']\n", "b/test_b.py": TEST}))
    assert (facts.targets, facts.pytest_options) == (["a"], "-v -n auto")
    assert facts.test_requirements == ["pytest-xdist"]


def test_poetry() -> None:
    facts = detect(
        tree(
            {
                "pyproject.toml": """
                    [tool.poetry]
                    name = "verse"
                    version = "0.1"
                    [tool.poetry.dependencies]
                    python = "^3.8"
                    click = "^8.0.1"
                    rich = {version = "~12.1", extras = ["jupyter"]}
                    redis = {version = "*", optional = true}
                    private = {git = "https://example.org/x.git"}
                    [tool.poetry.group.test.dependencies]
                    pytest = "^0.5"
                    pytest-mock = "3.1.0"
                """,
                "test_verse.py": TEST,
            }
        )
    )
    assert facts.requires_python == ">=3.8,<4"
    assert facts.dependencies == ["click<9,>=8.0.1", "rich[jupyter]<12.2,>=12.1"]
    assert facts.test_requirements == ["pytest<0.6,>=0.5", "pytest-mock==3.1.0"]
    assert facts.targets == ["test_verse.py"]


def test_tox_requirement_files_and_ci() -> None:
    facts = detect(
        tree(
            {
                "setup.cfg": "[metadata]\nname = legacy\n",
                "setup.py": "from setuptools import setup\nsetup()\n",
                "tox.ini": TOX,
                "requirements/test.txt": "-r base.txt\npytest==3  # old\nparameterized --hash=sha256:0\n-e .[speed]\n",
                "requirements/base.txt": "simplejson\nhttps://example.org/a.zip\n",
                "requirements/docs.txt": "sphinx\n",
                ".github/workflows/ci.yml": "      python-version: ['3.8', 3.9, '3.10']\n",
                "tests/test_legacy.py": "import yaml\nfrom tests import helper\n",
                "tests/requirements_of_a_test.txt": "danger\n",
            }
        )
    )
    assert facts.tested == ["3.6", "3.7", "3.8", "3.9", "3.10"]
    assert facts.test_requirements == ["simplejson", "pytest==3", "parameterized", "PyYAML"]
    assert facts.essential_requirements == ["PyYAML"]
    assert facts.variables == {"MODE": "/testbed/x"}


def test_tox_and_hatch_in_toml() -> None:
    texts = {"tests/test_a.py": TEST}
    tox = """
        [tool.tox]
        legacy_tox_ini = \"\"\"
        [testenv:py]
        deps = respx
        \"\"\"
        [tool.pytest.ini_options]
        env = ["MODE=x"]
        timeout = 5
    """
    assert detect(tree({**texts, "pyproject.toml": tox})).test_requirements == ["respx", "pytest-timeout", "pytest-env"]
    tox = """
        [env_run_base]
        deps = ["respx", "pytest>=8"]
        set_env = {MODE = "x", OTHER = {replace = "env"}}
    """
    facts = detect(tree({**texts, "tox.toml": tox}))
    assert (facts.test_requirements, facts.variables) == (["respx", "pytest>=8"], {"MODE": "x"})
    hatch = "[envs.hatch-test]\nextra-dependencies = ['respx']\n"
    assert detect(tree({**texts, "hatch.toml": hatch})).test_requirements == ["respx"]


def test_tox_s_command_says_which_tests_are_the_project_s_first() -> None:
    texts = {"tests/unit/test_a.py": TEST, "tests/live/test_b.py": TEST}
    tox = "[testenv]\ndeps = pytest\ncommands =\n  coverage run -m pytest -q \\\n    {posargs:tests/unit}\n"
    assert detect(tree({**texts, "tox.ini": tox})).targets == ["tests/unit"]
    assert detect(tree({**texts, "tox.ini": "[testenv]\ncommands = pytest lost"})).targets == ["tests"]


def test_a_group_that_is_called_after_tests_is_looked_at_where_none_is_just_called_so() -> None:
    texts = {"tests/test_a.py": TEST}
    group = "[dependency-groups]\ncore-test-3 = ['respx']\n"
    assert detect(tree({**texts, "pyproject.toml": group})).test_requirements == ["respx"]
    group += "test = ['mock']\n"
    assert detect(tree({**texts, "pyproject.toml": group})).test_requirements == ["mock"]


def test_tests_in_a_folder_that_is_passed_over_count_where_there_are_no_others() -> None:
    texts = {"examples/test_a.py": TEST, "build/lib/demo/test_b.py": TEST}
    assert detect(tree(texts)).targets == ["examples/test_a.py"]
    assert detect(tree({**texts, "tests/test_c.py": TEST})).targets == ["tests"]


def test_metadata_of_a_source_distribution() -> None:
    facts = detect(
        tree(
            {
                "PKG-INFO": "Metadata-Version: 2.1\nName: shipped\nVersion: 3.1\nRequires-Python: <3.12\n"
                "Requires-Dist: idna (>=2)\n"
                'Requires-Dist: pytest; (python_version > "3.6") and extra == "test"\n\nText\n',
                "setup.py": "from setuptools import setup\nsetup(**read_everything())\n",
                "test/test_shipped.py": "",
            }
        )
    )
    assert (facts.name, facts.version, facts.requires_python) == ("shipped", "3.1", "<3.12")
    assert facts.dependencies == ["idna>=2"]
    assert facts.test_requirements == ['pytest; python_version > "3.6"']


def test_files_that_the_configuration_ignores_and_python_2_s_are_no_targets() -> None:
    texts = {
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-v --ignore=test_build.py"\n',
        "test_build.py": "import sys\nsys.exit()\n",
        "python2/tests/test_a.py": "print 1\n",
        "python3/tests/test_a.py": "def test_a(): ...\n",
    }
    assert detect(SourceTree(frozenset(texts), texts)).targets == ["python3/tests"]


def test_what_only_a_requirement_file_has_is_not_taken_to_be_installed_anyway() -> None:
    texts = {
        "setup.py": "from setuptools import setup\nsetup(name='demo')\n",
        "requirements.txt": "pytest-asyncio==0.24.0\nrequests\n",
        "tests/test_a.py": "import pytest\nimport requests\n\n@pytest.mark.asyncio\nasync def test_a(): ...\n",
    }
    facts = detect(SourceTree(frozenset(texts), texts))
    assert {"pytest-asyncio", "requests"} <= set(facts.test_requirements)


def test_the_plugin_for_recorded_requests_is_the_one_that_the_project_names() -> None:
    texts = {"tests/test_a.py": "import pytest\n\n@pytest.mark.vcr\ndef test_a(): ...\n"}
    assert "pytest-recording" in detect(SourceTree(frozenset(texts), texts)).test_requirements
    texts["requirements-test.txt"] = "pytest-vcr\n"
    assert "pytest-recording" not in detect(SourceTree(frozenset(texts), texts)).test_requirements


def test_an_example_s_django_is_not_the_tests_own() -> None:
    texts = {
        "examples/site/testing/settings.py": "from django.conf import global_settings\nINSTALLED_APPS = []\n",
        "tests/test_a.py": "import pytest\n",
    }
    facts = detect(SourceTree(frozenset(texts), texts))
    assert (facts.runner, facts.settings_module) == ("pytest", "")


def test_django_s_settings_are_found() -> None:
    facts = detect(
        tree(
            {
                "tests/settings.py": "INSTALLED_APPS = []\n",
                "tests/test_views.py": "from django.test import TestCase\n",
                "runtests.py": "os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'\n",
            }
        )
    )
    assert (facts.runner, facts.settings_module) == ("django", "tests.settings")
    assert "pytest-django" in facts.test_requirements


def test_nonsense_is_left_out() -> None:
    facts = detect(
        tree(
            {
                "pyproject.toml": "[project\nname = 1",
                "setup.cfg": "no section\n[options\n",
                "setup.py": "print 'two'",
                "tox.ini": "\0",
                "requirements-test.txt": "=== what\n-r ../../etc/passwd\n-r requirements-test.txt\npytest\n",
                "noxfile.py": "def tests(s): (",
                "tests/test_x.py": "(" * 5000,
            }
        )
    )
    assert facts.test_requirements == ["pytest"]
    assert facts.name == ""


def test_hostile_files_end_in_time_and_raise_nothing() -> None:
    digits, nested = "9" * 20_000, "[" * 50_000
    facts = detect(
        tree(
            {
                "pyproject.toml": f"a = {nested}",
                "setup.cfg": f"[options]\npython_requires = >={digits}\ninstall_requires =\n    a=={digits}\n",
                "setup.py": f"setup(name={'(' * 50_000})",
                "tox.ini": f"[tox]\nenvlist = py{digits}\n",
                "requirements-test.txt": f"b; python_version > '{digits}'\nc; {'(' * 50_000}\n",
                "tests/test_x.py": "def f(" * 80_000,
            }
        )
    )
    assert first_plans(facts, None, [Interpreter("3.12.1", Path("/python"), Path("/"), None)])

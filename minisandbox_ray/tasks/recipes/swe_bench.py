"""Recipes of SWE-bench's tasks: the tables of the package `swebench`, as its harness reads them.

The harness makes a conda environment with the table's packages (or those of a requirement file at
``environment_setup_commit``), installs ``pip_packages`` into it, runs ``pre_install`` and ``install`` at the base
commit and judges with ``test_cmd`` (swebench.harness.test_spec.python). Here the environment is a venv, installations
are editable, and requirement files come from the repository.
"""

import re
import shlex
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from minisandbox_ray.environments import EnvSpec, Source
from minisandbox_ray.environments.repository import Commit, Log, find_commit
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks.recipes.conda import pip_names, read_environment
from minisandbox_ray.tasks.recipes.recipe import NoRecipeError, Recipe, nearest_python, pip_install, test_command, tools
from minisandbox_ray.tasks.recipes.requirements import added_requirements, read_requirements
from minisandbox_ray.tasks.recipes.services import services_of, trust_in_services
from minisandbox_ray.tasks.recipes.shell import read_steps, settings
from minisandbox_ray.tasks.task import Task

IMAGES = "2024-10-31"
"""When the images were made that the data set was validated with (dates of swebench/resources/swebench-og in the
repository SWE-bench/SWE-bench): packages that the tables leave open had the newest version of that time."""
CONDA = {"pytest": "pytest==7.4.4"}
"""What conda's default channel had then for a package that a table names without a version, where PyPI had a newer."""

TOGETHER = {"distributed": "dask"}
"""Each release of the one wants the same of the other: pip would come to that by trying all."""


def knows_swe_bench(task: Task) -> bool:
    """Whether the tables may have the task: it names a version of its repository."""
    return bool(task.version)


def swe_bench_recipe(task: Task, mirror: Path | None = None, log: Log | None = None) -> Recipe:
    """The recipe of a task of SWE-bench.

    Raises ConfigError where the package swebench is not installed; NoRecipeError for a repository or version that its
    tables lack, and where the requirement file is missing; BuildError for a commit that cannot be had.
    """
    constants = _constants()
    versions = constants.MAP_REPO_VERSION_TO_SPECS_PY.get(task.repo)
    if versions is None:
        raise NoRecipeError(f"swebench's tables have no recipe for {task.repo}")
    table: dict[str, Any] | None = versions.get(task.version)
    if table is None:
        raise NoRecipeError(f"swebench's tables have no recipe for version {task.version} of {task.repo}")
    notes: list[str] = []
    python = nearest_python(str(table["python"]), notes)
    commands = _packages(task, table, constants, python, mirror, log, notes)
    steps = read_steps([*table.get("pre_install", []), table.get("install", "")])
    variables, evaluation = settings(table.get("eval_commands", []))
    notes += steps.notes + read_steps(evaluation).notes
    added = added_requirements(task.gold_patch)
    if added:
        notes.append(f"the fix adds requirements, which are installed: {', '.join(added)}")
    base = find_commit(Source(kind="git", repository=task.repo, commit=task.base_commit), mirror, log)
    version = _version_setting(task, base)
    targets = _targets(task, constants)
    services = services_of(task.repo, targets)
    return Recipe(
        spec=EnvSpec(
            python=python,
            source=Source(kind="git", repository=task.repo, commit=task.base_commit),
            packages=tools(python),
            install=[
                *commands,
                *(f"{version}{command}" for command in steps.commands if command),
                *pip_install(added),
                *trust_in_services(services),
            ],
            variables=steps.variables | variables,
            exclude_newer=max(IMAGES, task.created_at[:10]),
            services=services,
            system_packages=steps.system_packages,
        ),
        test_command=_test_command(table["test_cmd"]),
        test_targets=targets,
        log_parser=f"swebench:{task.repo}",
        notes=notes,
    )


@cache
def _constants() -> ModuleType:
    try:
        from swebench.harness import constants
    except ImportError as error:
        raise ConfigError(
            f"the recipes of SWE-bench are tables of the package swebench, which cannot be imported ({error}): "
            f"pip install 'minisandbox-ray[swebench]'"
        ) from error
    return constants  # type: ignore[no-any-return]


def _packages(
    task: Task,
    table: dict[str, Any],
    constants: ModuleType,
    python: str,
    mirror: Path | None,
    log: Log | None,
    notes: list[str],
) -> list[str]:
    """The commands that install what the repository needs."""
    source, pins = table.get("packages", ""), list(table.get("pip_packages", []))
    if source == "requirements.txt":
        requirements = read_requirements(_setup_commit(task, mirror, log), constants.MAP_REPO_TO_REQS_PATHS[task.repo])
        notes += requirements.notes
        return [*pip_install(requirements.lines), *pip_install(pins)]
    if source == "environment.yml":
        commit = _setup_commit(task, mirror, log)
        paths = constants.MAP_REPO_TO_ENV_YML_PATHS[task.repo]
        text = next(filter(None, map(commit.read, paths)), None)
        if text is None:
            raise NoRecipeError(f"{commit.name} has none of {', '.join(paths)}")
        names = read_environment(text.decode("utf-8", "replace"))
    else:
        names = pip_names(shlex.split(source))
        if python not in {"3.6", "3.7"}:
            names.requirements = [CONDA.get(each, each) for each in names.requirements]
    notes += names.notes
    # Upstream, pip's pins overrule what conda chose before; one resolution gives packages that fit the pins.
    pinned = {_name(pin): pin for pin in pins}
    for name, leader in TOGETHER.items():
        if name in names.requirements and leader in pinned:
            pins.append(pinned[leader].replace(leader, name, 1))
            pinned[name] = pins[-1]
    return pip_install([*(each for each in names.requirements if _name(each) not in pinned), *pins])


def _version_setting(task: Task, base: Commit) -> str:
    """What tells setuptools_scm the version, which it reads from tags otherwise: there are none in a history of one
    commit, and a pytest of version 0.1 refuses the repository's own settings."""
    texts = [base.read(name) or b"" for name in ("setup.py", "setup.cfg", "pyproject.toml")]
    if not any(b"setuptools_scm" in text or b"setuptools-scm" in text for text in texts):
        return ""
    return f"export SETUPTOOLS_SCM_PRETEND_VERSION={shlex.quote(f'{task.version}.0')}; "


def _setup_commit(task: Task, mirror: Path | None, log: Log | None) -> Any:
    commit = task.environment_setup_commit or task.base_commit
    return find_commit(Source(kind="git", repository=task.repo, commit=commit), mirror, log)


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def _test_command(line: str) -> list[str]:
    # tox with tox-current-env runs the commands of tox.ini, which are pytest's, in this very environment.
    return test_command("pytest" if line.startswith("tox ") else line)


def _targets(task: Task, constants: ModuleType) -> list[str]:
    """The test files that the task's test patch touches, as the repository's runner names them."""
    files = re.findall(r"^diff --git a/.* b/(.*)$", task.test_patch, re.MULTILINE)
    files = [path for path in files if not path.endswith(tuple(constants.NON_TEST_EXTS))]
    if task.repo == "django/django":
        return [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in files]
    return files

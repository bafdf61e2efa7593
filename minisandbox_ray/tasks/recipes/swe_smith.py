"""Recipes of SWE-smith's tasks: the profiles of the package `swesmith`.

All tasks of one profile share a commit, and so an environment. A profile's image has what its authors had exported of
an environment of theirs (swesmith.build_repo), which the package does not hold: pytest and the installation commands
stand for it.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from minisandbox_ray.environments import EnvSpec, Source
from minisandbox_ray.environments.repository import Log, find_commit
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks.recipes.recipe import NoRecipeError, Recipe, nearest_python, test_command, tools
from minisandbox_ray.tasks.recipes.shell import read_steps
from minisandbox_ray.tasks.task import Task

IMAGES = "2025-03-31"
"""When most of the images were made (SWE-smith, arXiv 2504.21798): newer packages count for newer commits only."""
_CONDA = re.compile(r"^source \S*activate;\s*conda activate \S+;\s*")


def knows_swe_smith(task: Task) -> bool:
    """Whether it is a task of SWE-smith, by its image."""
    return "swesmith." in task.image_name


def swe_smith_recipe(task: Task, mirror: Path | None = None, log: Log | None = None) -> Recipe:
    """The recipe of a task of SWE-smith.

    Raises ConfigError where the package swesmith is not installed; NoRecipeError for a repository without a profile for
    Python; BuildError for a commit that cannot be had.
    """
    profile = _profile(task)
    notes: list[str] = []
    python = nearest_python(profile.python_version, notes)
    steps = read_steps(profile.install_cmds)
    notes += steps.notes
    source = Source(kind="git", repository=task.repo, commit=profile.commit)
    return Recipe(
        spec=EnvSpec(
            python=python,
            source=source,
            packages=[*tools(python), "pytest"],
            install=steps.commands,
            variables=steps.variables,
            system_packages=steps.system_packages,
            exclude_newer=max(IMAGES, find_commit(source, mirror, log).date[:10]),
        ),
        test_command=test_command(_CONDA.sub("", profile.test_cmd)),
        log_parser=f"swesmith:{task.repo}",
        notes=notes,
    )


def _profile(task: Task) -> Any:
    for profile in _profiles():
        if f"{profile.owner}/{profile.repo}".lower() == task.repo.lower() and profile.commit.startswith(
            task.base_commit
        ):
            return profile
    raise NoRecipeError(f"swesmith has no profile for {task.repo} at {task.base_commit} in Python")


@cache
def _profiles() -> list[Any]:
    try:
        from swesmith.profiles import registry
        from swesmith.profiles.python import PythonProfile
    except ImportError as error:
        raise ConfigError(
            f"the recipes of SWE-smith are profiles of the package swesmith, which cannot be imported ({error}): "
            f"pip install 'minisandbox-ray[swesmith]'"
        ) from error
    return [profile for profile in registry.values() if isinstance(profile, PythonProfile)]

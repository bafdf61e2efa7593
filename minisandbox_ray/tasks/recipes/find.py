"""Which table has a task."""

from pathlib import Path

from minisandbox_ray.environments.repository import Log
from minisandbox_ray.tasks.recipes.recipe import NoRecipeError, Recipe
from minisandbox_ray.tasks.recipes.swe_bench import knows_swe_bench, swe_bench_recipe
from minisandbox_ray.tasks.recipes.swe_smith import knows_swe_smith, swe_smith_recipe
from minisandbox_ray.tasks.task import Task


def find_recipe(task: Task, mirror: Path | None = None, log: Log | None = None) -> Recipe:
    """The recipe that the public packages' tables have for a task. `mirror` and `log` as for `build_environment`.

    Raises NoRecipeError where none has one, BuildError where its commits cannot be had, ConfigError where the package
    with the tables is not installed.
    """
    if knows_swe_smith(task):
        return swe_smith_recipe(task, mirror, log)
    if knows_swe_bench(task):
        return swe_bench_recipe(task, mirror, log)
    raise NoRecipeError(
        f"task {task.instance_id} names neither a version (SWE-bench) nor an image of SWE-smith: no table has it"
    )

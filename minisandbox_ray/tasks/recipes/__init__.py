"""Task → recipe: what its environment is made of and how its tests are run, from the tables of the public data sets."""

from minisandbox_ray.tasks.recipes.find import find_recipe
from minisandbox_ray.tasks.recipes.recipe import NoRecipeError, Recipe

__all__ = ["NoRecipeError", "Recipe", "find_recipe"]

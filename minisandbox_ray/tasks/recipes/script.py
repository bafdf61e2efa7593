"""The recipe of a task folder's machine."""

from pathlib import Path

from minisandbox_ray.environments import EnvSpec
from minisandbox_ray.environments.instructions import Machine
from minisandbox_ray.environments.spec import tree_hash
from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks.recipes.recipe import Recipe, nearest_python
from minisandbox_ray.tasks.scripted import ScriptedTask


def script_recipe(script: ScriptedTask) -> Recipe:
    """How the machine is made that the Dockerfile describes.

    Raises BuildError if the folder is gone, or wants a Python that this machine has not.
    """
    folder = Path(script.folder)
    if not (folder / script.test_script).is_file():
        raise BuildError(f"the task folder {folder} is not there, or has no {script.test_script}")
    notes: list[str] = []
    if script.network:
        notes.append("the task may count on the internet, which the agent's and the grader's sandbox do not have")
    machine = Machine(
        folder=folder,
        base=script.base,
        has_python=bool(script.python),
        instructions=script.instructions,
        workdir=script.workdir,
        content=script.content,
        tests=tree_hash(folder / "tests"),
        build_seconds=script.build_seconds,
    )
    python = script.python or nearest_python("3.12", [])
    spec = EnvSpec(python=python, variables=script.variables, machine=machine)
    return Recipe(spec=spec, test_command=["/bin/bash", f"/{script.test_script}"], notes=notes)

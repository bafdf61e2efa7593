"""The end of an episode as a tool."""

from typing import ClassVar

from minisandbox_ray.rollout.tools.base import Tool


class SubmitTool(Tool):
    """Submits the changes in the repository and ends the task."""

    name: ClassVar[str] = "submit"
    aliases: ClassVar[tuple[str, ...]] = ("finish",)  # SWE-Gym's

"""The shell as a tool; the episode runs the command as it runs a fenced block."""

from typing import ClassVar

from pydantic import Field

from minisandbox_ray.rollout.tools.base import Tool


class Bash(Tool):
    """Runs the given command in a bash shell. Directory, variables and background processes stay between calls."""

    name: ClassVar[str] = "bash"
    aliases: ClassVar[tuple[str, ...]] = ("execute_bash",)  # SWE-Gym's

    command: str = Field(min_length=1, description="The bash command to execute.")

"""A tool as a user writes one."""

from typing import ClassVar

from pydantic import Field

from minisandbox_ray.rollout.tools import Machine, Tool


class CountLines(Tool):
    """Counts the lines of a file."""

    name: ClassVar[str] = "count_lines"

    path: str = Field(description="Where it is.")

    def use(self, machine: Machine) -> str:
        return str(machine.sandbox.read_file(self.path).count(b"\n"))

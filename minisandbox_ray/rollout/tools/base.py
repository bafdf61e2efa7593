"""What a tool is: a class whose fields are its parameters."""

from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from minisandbox_ray.sandbox import Sandbox


class ToolError(Exception):
    """The model used a tool wrongly, or what it wanted cannot be; the message is what it reads."""


@dataclass
class Machine:
    """What the tools of an episode act on: its sandbox alone, and what they remember."""

    sandbox: Sandbox
    chars: int
    """Characters of an answer; what a tool says beyond that is cut by the episode."""
    timeout: float
    """Seconds that a tool may take in this turn."""
    memory: dict[str, object] = field(default_factory=dict)
    """Of the episode, by the tools' names; an episode that is played again elsewhere makes it anew."""


class Tool(BaseModel):
    """One call. A tool of your own is a subclass in a module that every node can import, named as ``module:Class`` in
    ``episode.tools``: fields with descriptions are the parameters, the docstring tells the model what it is for.

    Values come as text or as JSON: a field of numbers or lists takes both.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]
    """By which the model calls it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Names that other scaffolds' models know it by."""

    def use(self, machine: Machine) -> str:
        """Do it -> what the model reads. Raises ToolError, and SandboxError once the sandbox is gone."""
        raise NotImplementedError(f"the episode itself does {self.name}")

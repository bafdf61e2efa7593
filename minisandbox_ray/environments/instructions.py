"""A machine that a few Dockerfile instructions describe, as part of an environment's recipe."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Instruction(BaseModel):
    """One RUN or COPY of a Dockerfile, with what ENV and WORKDIR said before it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["run", "copy"]
    """RUN or COPY."""
    command: str = ""
    """Text for /bin/sh -c (run)."""
    sources: list[str] = []
    """Files and directories below environment/, patterns resolved; of a directory its content is meant (copy)."""
    target: str = ""
    """Absolute path; a directory if it ends in a slash (copy)."""
    workdir: str = "/"
    """Where it happens; made if missing."""
    variables: dict[str, str] = {}
    """Environment variables then."""


class Machine(BaseModel):
    """What a whole root directory is made of, and what judges the work on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    """Of the task: environment/ holds what is copied, tests/ the test script. Only builds need it."""
    base: str
    """Image that is meant, as in debian:bookworm; what it becomes is this system's own /usr."""
    has_python: bool = False
    """Whether the image brings a Python, which then is at /usr/local."""
    instructions: list[Instruction] = []
    """In order."""
    workdir: str = "/"
    """Where programs start."""
    content: str = Field("", pattern="^([0-9a-f]{64})?$")
    """Hash of environment/ (`tree_hash`)."""
    tests: str = Field("", pattern="^([0-9a-f]{64})?$")
    """Hash of tests/."""
    build_seconds: float = Field(600.0, gt=0)
    """Time for all instructions."""

    def recipe(self) -> dict[str, Any]:
        """What of it an environment's digest covers: not where the folder lies, nor how long it may take."""
        return self.model_dump(mode="json", exclude={"folder", "build_seconds"})

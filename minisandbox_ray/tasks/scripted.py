"""A task of Harbor's form: a machine by a few Dockerfile instructions, and a script that judges what was done on it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

LOGS = "/logs/verifier"
"""Where the test script writes reward.json or reward.txt, inside."""


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


class ScriptedTask(BaseModel):
    """What Harbor reads from a task folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    """Absolute path of the task folder."""
    base: str
    """Image that the Dockerfile starts FROM, as in python:3.12-slim, debian:bookworm, ubuntu:24.04."""
    python: str = ""
    """Interpreter version that the base image stands for, as in "3.12"; empty where it brings none."""
    instructions: list[Instruction] = []
    """In order."""
    workdir: str = "/"
    """Where the agent starts."""
    variables: dict[str, str] = {}
    """Environment variables of the finished machine."""
    content: str = Field("", pattern="^([0-9a-f]{64})?$")
    """Hash of environment/ (`tree_hash`): with the instructions it names the machine."""
    test_script: str = "tests/test.sh"
    """Relative to the folder; tests/ goes to /tests before it runs, never earlier."""
    solution: str = ""
    """The gold solution's script, relative to the folder; solution/ goes to /solution. Empty if none, or hidden."""
    verifier_variables: dict[str, str] = {}
    """Environment variables of the test script."""
    solution_variables: dict[str, str] = {}
    """Environment variables of the solution."""
    network: bool = True
    """Whether agent and test script may count on the internet."""
    agent_seconds: float | None = Field(None, gt=0)
    """Time for the agent; None: no limit of the task's own."""
    verifier_seconds: float = Field(600.0, gt=0)
    """Time for the test script."""
    build_seconds: float = Field(600.0, gt=0)
    """Time for the Dockerfile's instructions."""
    cpus: float | None = Field(None, gt=0)
    """Processors."""
    memory_mib: int | None = Field(None, gt=0)
    """Memory, in MiB."""
    disk_mib: int | None = Field(None, gt=0)
    """Disk, in MiB."""

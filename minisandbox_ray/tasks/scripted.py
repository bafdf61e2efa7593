"""A task of Harbor's form: a machine by a few Dockerfile instructions, and a script that judges what was done on it."""

import base64
import io
import shlex
import tarfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.environments.instructions import Instruction
from minisandbox_ray.errors import BuildError, ConfigError

LOGS = "/logs/verifier"
"""Where the test script writes reward.json or reward.txt, inside."""
LARGEST_SOLUTION = 4 << 20
"""Bytes of a gold solution's folder, packed."""


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


def solution_command(script: ScriptedTask) -> str:
    """A shell command that brings the gold solution's folder to /solution and runs it.

    Raises ConfigError if it is hidden, BuildError if its folder is not there or too large.
    """
    if not script.solution:
        raise ConfigError(f"the task of {script.folder} has no solution, or it is hidden")
    folder = (Path(script.folder) / script.solution).parent
    packed = io.BytesIO()
    try:
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            tar.add(folder, arcname=".")
    except OSError as error:
        raise BuildError(f"the solution in {folder} cannot be read: {error.strerror}") from error
    if packed.tell() > LARGEST_SOLUTION:
        raise BuildError(f"the solution in {folder} is larger than {LARGEST_SOLUTION >> 20} MiB")
    text = base64.encodebytes(packed.getvalue()).decode()
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in script.solution_variables.items())
    run = f"env {settings} /bin/bash" if settings else "/bin/bash"
    name = Path(script.solution).name
    return (
        "mkdir -p /solution && base64 -d <<'END_OF_SOLUTION' | tar -xz --no-same-owner -C /solution && "
        f"{run} /solution/{name}\n{text}END_OF_SOLUTION"
    )

"""The keys below `environment:` in mini-swe-agent's YAML."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from minisandbox_ray.sandbox import SandboxSpec


class MiniSandboxEnvironmentConfig(BaseModel):
    """A sandbox on this machine."""

    model_config = ConfigDict(extra="forbid")

    environment: str | Path | None = None
    """Digest of a built environment, or a YAML file with the fields of EnvSpec (.yaml, .yml), built on first use.
    None: the host's programs and an empty /testbed."""
    tasks: Path | None = None
    """Tasks (JSON lines) to work on, instead of `environment`: `task` says on which."""
    task: str = ""
    """instance_id of one of `tasks`. A batch leaves it empty and has as `run.env_startup_command`
    ``minisandbox-task {{instance_id}}``."""
    cwd: str = "/testbed"
    """Working directory in which to execute commands."""
    env: dict[str, str] = {}
    """Environment variables to set in the sandbox."""
    timeout: PositiveFloat = 30
    """Seconds for a command."""
    interpreter: Annotated[list[str], Field(min_length=1)] = ["bash", "-c"]
    """What runs a command, which is added as its last argument."""
    sandbox: SandboxSpec = SandboxSpec()
    """Limits, network, binds and all else of a sandbox; overlays and binds come after the environment's."""

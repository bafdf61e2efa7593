"""The deployment's configuration, beside SWE-ReX's own."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from swerex.deployment.abstract import AbstractDeployment

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.sandbox import Bind, Limits, SandboxSpec

WHEELS = "/opt/wheels"
"""Where the wheels are inside."""


class DeploymentLimits(Limits):
    """A sandbox's, but for the output: SWE-ReX's callers cut it themselves."""

    output_chars: Annotated[int, Field(gt=100)] = 10 << 20
    """Of a command's output, half from the start and half from the end are kept; bytes before decoding."""


class DeploymentSpec(SandboxSpec):
    """A sandbox's."""

    cwd: str = "/"
    """Where sessions and one-shot programs start: as in a container, which SWE-agent counts on."""
    limits: DeploymentLimits = DeploymentLimits()
    """What the sandbox may use."""


def _fields(value: Any) -> Any:
    return value.model_dump(exclude_unset=True) if isinstance(value, SandboxSpec) else value


class MiniSandboxDeploymentConfig(BaseModel):
    """A sandbox on this machine. It takes the place of one of SWE-ReX's own configurations."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["minisandbox"] = "minisandbox"
    """Discriminator for (de)serialization/CLI. Do not change."""
    environment: str | Path | None = None
    """Digest of a built environment, or a YAML file with the fields of EnvSpec (.yaml, .yml), built on first use.
    None: the host's programs and an empty /testbed."""
    tasks: Path | None = None
    """Tasks (JSON lines) to work on, instead of `environment`: `task` says on which."""
    task: str = ""
    """instance_id of one of `tasks`."""
    wheels: Path | None = None
    """A directory of wheels that pip inside installs from, and from nothing else: SWE-agent's tools want some, and a
    sandbox has no network."""
    sandbox: Annotated[DeploymentSpec, BeforeValidator(_fields)] = DeploymentSpec()
    """Limits, network, variables, binds and all else of a sandbox; overlays and binds come after the environment's."""

    def spec(self) -> SandboxSpec:
        """The sandbox's, with the wheels. Raises ConfigError if they are not there."""
        if self.wheels is None:
            return self.sandbox
        if not self.wheels.is_dir():
            raise ConfigError(f"wheels: {self.wheels} is no directory")
        return self.sandbox.model_copy(
            update={
                "binds": [*self.sandbox.binds, Bind(source=self.wheels.resolve(), target=WHEELS)],
                "env": {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS, **self.sandbox.env},
            }
        )

    def get_deployment(self) -> AbstractDeployment:
        """As SWE-ReX's `get_deployment` calls it."""
        from .deployment import MiniSandboxDeployment

        return MiniSandboxDeployment.from_config(self)

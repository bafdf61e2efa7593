"""The deployment's configuration, beside SWE-ReX's own."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from swerex.deployment.abstract import AbstractDeployment

from minisandbox_ray.sandbox import Limits, SandboxSpec


class DeploymentLimits(Limits):
    """A sandbox's, but for the output: SWE-ReX's callers cut it themselves."""

    output_chars: Annotated[int, Field(gt=100)] = 10 << 20
    """Of a command's output, half from the start and half from the end are kept; bytes before decoding."""


class DeploymentSpec(SandboxSpec):
    """A sandbox's."""

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
    sandbox: Annotated[DeploymentSpec, BeforeValidator(_fields)] = DeploymentSpec()
    """Limits, network, variables, binds and all else of a sandbox; overlays and binds come after the environment's."""

    def get_deployment(self) -> AbstractDeployment:
        """As SWE-ReX's `get_deployment` calls it."""
        from .deployment import MiniSandboxDeployment

        return MiniSandboxDeployment.from_config(self)

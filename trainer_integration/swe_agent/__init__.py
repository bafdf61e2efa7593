"""SWE-ReX bridge: a deployment whose machine is a sandbox, so that SWE-agent runs unchanged.

>>> from trainer_integration.swe_agent import MiniSandboxDeployment
>>> deployment = MiniSandboxDeployment(sandbox={"network": "host"})
"""

from .config import MiniSandboxDeploymentConfig
from .deployment import MiniSandboxDeployment
from .runtime import MiniSandboxRuntime, SandboxFailureError

__all__ = ["MiniSandboxDeployment", "MiniSandboxDeploymentConfig", "MiniSandboxRuntime", "SandboxFailureError"]

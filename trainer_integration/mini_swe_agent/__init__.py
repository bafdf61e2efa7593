"""A sandbox as mini-swe-agent's environment.

In its YAML: ``environment_class: trainer_integration.mini_swe_agent.MiniSandboxEnvironment``.
"""

from .config import MiniSandboxEnvironmentConfig
from .environment import MiniSandboxEnvironment

__all__ = ["MiniSandboxEnvironment", "MiniSandboxEnvironmentConfig"]

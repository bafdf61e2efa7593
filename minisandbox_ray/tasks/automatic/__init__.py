"""Finds how a source tree is installed so that its tests run: from what lies in it, by trying, by repairing."""

from minisandbox_ray.tasks.automatic.advisor import AdvisorConfig
from minisandbox_ray.tasks.automatic.find import AutomaticConfig, Found, find_environment

__all__ = ["AdvisorConfig", "AutomaticConfig", "Found", "find_environment"]

"""An episode, the pool that runs many, and the environment that researchers and trainers hold."""

from minisandbox_ray.rollout.actions import Command, Malformed, Submit, parse_action
from minisandbox_ray.rollout.config import EpisodeConfig
from minisandbox_ray.rollout.env import SandboxEnv
from minisandbox_ray.rollout.episode import Episode
from minisandbox_ray.rollout.pool import EpisodePool
from minisandbox_ray.rollout.validate import validate_tasks
from minisandbox_ray.tasks.validation import Validation

__all__ = [
    "Command",
    "Episode",
    "EpisodeConfig",
    "EpisodePool",
    "Malformed",
    "SandboxEnv",
    "Submit",
    "Validation",
    "parse_action",
    "validate_tasks",
]

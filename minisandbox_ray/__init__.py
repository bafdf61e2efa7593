"""Container-free rollouts for reinforcement learning of software-engineering agents, on Ray."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minisandbox_ray.cluster import ClusterConfig, connect
    from minisandbox_ray.environments import EnvSpec, NodeStore, build_environment
    from minisandbox_ray.rollout import EpisodeConfig, EpisodePool, SandboxEnv
    from minisandbox_ray.sandbox import Limits, Sandbox, SandboxSpec
    from minisandbox_ray.tasks import Task, load_tasks

__version__ = "0.1.0"

# Public name -> where it lives. Imported on first use: a sandbox needs no Ray, and its starter process no pydantic.
_HOMES = {
    "ClusterConfig": "cluster",
    "connect": "cluster",
    "EnvSpec": "environments",
    "NodeStore": "environments",
    "build_environment": "environments",
    "EpisodeConfig": "rollout",
    "EpisodePool": "rollout",
    "SandboxEnv": "rollout",
    "Limits": "sandbox",
    "Sandbox": "sandbox",
    "SandboxSpec": "sandbox",
    "Task": "tasks",
    "load_tasks": "tasks",
}

__all__ = [
    "ClusterConfig",
    "EnvSpec",
    "EpisodeConfig",
    "EpisodePool",
    "Limits",
    "NodeStore",
    "Sandbox",
    "SandboxEnv",
    "SandboxSpec",
    "Task",
    "build_environment",
    "connect",
    "load_tasks",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""EnvSpec → build in a sandbox → archive → node store → the spec of a sandbox."""

from minisandbox_ray.environments.archive import Manifest, read_manifest
from minisandbox_ray.environments.build import build_environment
from minisandbox_ray.environments.cache import cache_root
from minisandbox_ray.environments.interpreters import Interpreter, find_interpreters
from minisandbox_ray.environments.inventory import describe
from minisandbox_ray.environments.spec import BaseSystem, EnvSpec, InterpreterId, Source, environment_digest
from minisandbox_ray.environments.store import DEFAULT_BUDGET, Environment, NodeStore, StoredEnvironment

__all__ = [
    "DEFAULT_BUDGET",
    "BaseSystem",
    "EnvSpec",
    "Environment",
    "Interpreter",
    "InterpreterId",
    "Manifest",
    "NodeStore",
    "Source",
    "StoredEnvironment",
    "build_environment",
    "cache_root",
    "describe",
    "environment_digest",
    "find_interpreters",
    "read_manifest",
]

"""EnvSpec → build in a sandbox → archive → node store → the spec of a sandbox."""

from minisandbox_ray.environments.archive import Manifest, read_manifest
from minisandbox_ray.environments.build import build_environment
from minisandbox_ray.environments.cache import cache_root
from minisandbox_ray.environments.gc import machine_directories
from minisandbox_ray.environments.interpreters import Interpreter, find_interpreters
from minisandbox_ray.environments.inventory import describe
from minisandbox_ray.environments.node_directories import NodeDirectories, hold_node, sweep_nodes
from minisandbox_ray.environments.provide import Provided
from minisandbox_ray.environments.sources import Peer
from minisandbox_ray.environments.spec import BaseSystem, EnvSpec, InterpreterId, Service, Source, environment_digest
from minisandbox_ray.environments.store import DEFAULT_BUDGET, Environment, NodeStore, StoredEnvironment, StoreUsage

__all__ = [
    "DEFAULT_BUDGET",
    "BaseSystem",
    "EnvSpec",
    "Environment",
    "Interpreter",
    "InterpreterId",
    "Manifest",
    "NodeDirectories",
    "NodeStore",
    "Peer",
    "Provided",
    "Service",
    "Source",
    "StoreUsage",
    "StoredEnvironment",
    "build_environment",
    "cache_root",
    "describe",
    "environment_digest",
    "find_interpreters",
    "hold_node",
    "machine_directories",
    "read_manifest",
    "sweep_nodes",
]

"""Ray: a pool of workers that host sandboxes, evenly over the nodes, and the leases it hands out."""

from minisandbox_ray.cluster.config import ClusterConfig
from minisandbox_ray.cluster.connection import Connection, connect, join
from minisandbox_ray.cluster.lease import Lease
from minisandbox_ray.cluster.nodes import Node, check_memory, check_nodes
from minisandbox_ray.cluster.pool import Pool
from minisandbox_ray.cluster.scheduler import NAMESPACE
from minisandbox_ray.cluster.worker import HostContext

__all__ = [
    "NAMESPACE",
    "ClusterConfig",
    "Connection",
    "HostContext",
    "Lease",
    "Node",
    "Pool",
    "check_memory",
    "check_nodes",
    "connect",
    "join",
]

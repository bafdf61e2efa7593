"""Ray: a pool of workers that host sandboxes, evenly over the nodes, and the leases it hands out."""

from minisandbox_ray.cluster.config import ClusterConfig
from minisandbox_ray.cluster.connection import Connection, connect
from minisandbox_ray.cluster.lease import Lease
from minisandbox_ray.cluster.nodes import check_unpack_slots
from minisandbox_ray.cluster.pool import Pool
from minisandbox_ray.cluster.worker import HostContext

__all__ = ["ClusterConfig", "Connection", "HostContext", "Lease", "Pool", "check_unpack_slots", "connect"]

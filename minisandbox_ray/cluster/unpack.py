"""Unpacking an environment's archive on a node, as a Ray task that waits for the node's unpack slots."""

import math

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from minisandbox_ray.cluster.nodes import UNPACK_SLOTS, Node
from minisandbox_ray.cluster.worker import HostContext, Missing
from minisandbox_ray.errors import MiniSandboxError

BYTES_PER_SLOT = 512 << 20


def slots_for(unpacked_bytes: int, node: Node) -> int:
    """Unpack slots for an archive: one per 512 MiB of its unpacked size, at most what the node has in all."""
    return min(max(1, math.ceil(unpacked_bytes / BYTES_PER_SLOT)), node.unpack_slots)


@ray.remote(num_cpus=0, max_retries=0)
def _materialise(environment: str, context: HostContext) -> MiniSandboxError | None:
    try:
        context.store.materialise(environment, context.archives)
    except MiniSandboxError as error:
        return error
    return None


def start_unpacking(missing: Missing, node: Node, context: HostContext) -> "ray.ObjectRef[MiniSandboxError | None]":
    """Start the task on that node; its value is None, or the error that says why the archive is unusable there."""
    task = _materialise.options(
        resources={UNPACK_SLOTS: slots_for(missing.unpacked_bytes, node)},
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
    )
    return task.remote(missing.environment, context)

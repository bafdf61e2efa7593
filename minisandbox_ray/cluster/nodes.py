"""The nodes of the connected Ray cluster that can host sandboxes."""

import json
from dataclasses import dataclass

import ray

from minisandbox_ray.errors import ConfigError

UNPACK_SLOTS = "unpack_slots"


def default_unpack_slots(cpus: float) -> int:
    """Unpack slots for a node: unpacking keeps one cpu and the disk busy, so no more than four at a time."""
    return max(1, min(int(cpus), 4))


@dataclass(frozen=True)
class Node:
    """One alive Ray node: its id, address, and what it advertises."""

    node_id: str
    address: str
    cpus: float
    unpack_slots: int


def sandbox_nodes() -> list[Node]:
    """Alive nodes with cpus to schedule on, in a stable order (``ray start --num-cpus=0`` keeps a node out)."""
    nodes = [
        Node(
            node_id=entry["NodeID"],
            address=entry["NodeManagerAddress"],
            cpus=entry["Resources"]["CPU"],
            unpack_slots=int(entry["Resources"].get(UNPACK_SLOTS, 0)),
        )
        for entry in ray.nodes()
        if entry["Alive"] and entry["Resources"].get("CPU", 0) > 0
    ]
    return sorted(nodes, key=lambda node: node.node_id)


def check_unpack_slots(nodes: list[Node]) -> None:
    """Raise ConfigError with the ``ray start`` to use when a node has no unpack slots, or there is no node."""
    if not nodes:
        raise ConfigError("the Ray cluster has no node with cpus: start one with `ray start` and --num-cpus above 0")
    lacking = [node for node in nodes if node.unpack_slots < 1]
    if lacking:
        resources = json.dumps({UNPACK_SLOTS: default_unpack_slots(lacking[0].cpus)})
        raise ConfigError(
            f"Ray node {', '.join(sorted({node.address for node in lacking}))} advertises no {UNPACK_SLOTS} "
            f"({len(lacking)} of {len(nodes)} nodes): start it with "
            f"`ray start --resources='{resources}'` beside its other options"
        )

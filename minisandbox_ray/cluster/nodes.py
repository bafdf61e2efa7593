"""The nodes of the connected Ray cluster that can host sandboxes."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.gcs_pb2 import NodeSnapshot  # type: ignore[attr-defined]

from minisandbox_ray.errors import ConfigError

UNPACK_SLOTS = "unpack_slots"
SANDBOX = "sandbox"
_HEAD = "node:__internal_head__"  # a resource that Ray gives to it


def default_unpack_slots(cpus: float) -> int:
    """Unpack slots for a node: two per cpu, as each waits for the disk part of its time, and no more than eight, which
    share one disk (benchmarks/cluster.py --only cold)."""
    return max(1, min(int(2 * cpus), 8))


@dataclass(frozen=True)
class Node:
    """One alive Ray node: its id, address, and what it advertises."""

    node_id: str
    address: str
    cpus: float
    unpack_slots: int
    sandboxes: int = 0
    """The resource ``sandbox``: how many it is to host; 0 where it names none."""
    memory_bytes: int = 0
    """What Ray counts as its memory; 0 where it does not say."""
    store_key: str | None = None
    """Its Ray id where several nodes are on one machine, and so need stores of their own; else None."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.address if self.store_key is None else f"{self.address}/{self.node_id[:8]}"


def sandbox_nodes(exclude_labels: Mapping[str, str] | None = None) -> list[Node]:
    """Alive nodes with cpus to schedule on (``ray start --num-cpus=0`` keeps a node out) and none of these labels, in
    a stable order."""
    return [node for node in all_nodes() if node.cpus > 0 and not _has_any(node.labels, exclude_labels or {})]


def all_nodes() -> list[Node]:
    """All that are alive, in a stable order."""
    alive = [entry for entry in ray.nodes() if entry["Alive"]]
    machines = Counter(entry["NodeManagerAddress"] for entry in alive)
    nodes = [_node(entry, shares_machine=machines[entry["NodeManagerAddress"]] > 1) for entry in alive]
    return sorted(nodes, key=lambda node: node.node_id)


def head_node() -> str:
    """Ray's id of the cluster's head."""
    return next(entry["NodeID"] for entry in ray.nodes() if entry["Alive"] and _HEAD in entry["Resources"])


def draining_nodes() -> frozenset[str]:
    """Ids of the nodes that are to go (``ray drain-node``, a preemption, an autoscaler), and take nothing new.

    `ray.nodes()` does not tell; this asks Ray's control service as Ray Serve does.
    """
    infos = _control_service(ray.get_runtime_context().gcs_address).get_all_node_info(timeout=10)
    return frozenset(
        node_id.hex() for node_id, info in infos.items() if info.state_snapshot.state == NodeSnapshot.DRAINING
    )


def ended_jobs() -> frozenset[str]:
    """Ids of the Ray jobs whose driver has left or died; Ray knows within a second."""
    service = _control_service(ray.get_runtime_context().gcs_address)
    infos = service.get_all_job_info(skip_submission_job_info_field=True, skip_is_running_tasks_field=True, timeout=10)
    return frozenset(job_id.hex() for job_id, info in infos.items() if info.is_dead)


@cache
def _control_service(address: str) -> GcsClient:
    return GcsClient(address=address)


def _node(entry: dict[str, Any], *, shares_machine: bool) -> Node:
    resources = entry["Resources"]
    return Node(
        node_id=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        cpus=resources.get("CPU", 0),
        unpack_slots=int(resources.get(UNPACK_SLOTS, 0)),
        sandboxes=int(resources.get(SANDBOX, 0)),
        memory_bytes=int(resources.get("memory", 0)),
        store_key=entry["NodeID"] if shares_machine else None,
        labels=dict(entry.get("Labels", {})),
    )


def _has_any(labels: Mapping[str, str], excluded: Mapping[str, str]) -> bool:
    return any(labels.get(name) == value for name, value in excluded.items())


def check_nodes(nodes: list[Node]) -> None:
    """Raise ConfigError with the ``ray start`` to use when a node has no unpack slots, or there is no node."""
    if not nodes:
        raise ConfigError(
            "the Ray cluster has no node that may host sandboxes: start one with `ray start` and --num-cpus above 0, "
            "without a label that cluster.exclude_labels names"
        )
    lacking = [node for node in nodes if node.unpack_slots < 1]
    if lacking:
        resources = json.dumps({UNPACK_SLOTS: default_unpack_slots(lacking[0].cpus)})
        raise ConfigError(
            f"Ray node {', '.join(sorted({node.address for node in lacking}))} advertises no {UNPACK_SLOTS} "
            f"({len(lacking)} of {len(nodes)} nodes): start it with "
            f"`ray start --resources='{resources}'` beside its other options"
        )


def check_memory(nodes: list[Node], memory_mib: int) -> None:
    """Raise ConfigError when a node has less memory than one sandbox may take."""
    small = [node for node in nodes if 0 < node.memory_bytes < memory_mib << 20]
    if small:
        raise ConfigError(
            f"Ray node {small[0]} has {small[0].memory_bytes >> 20} MiB of memory, less than one sandbox may take "
            f"(limits.memory_mib={memory_mib}): lower that, or keep the node out with `ray start --num-cpus=0`"
        )

"""How to reach a Ray cluster and how many sandboxes its nodes host."""

import math
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.sandbox import Isolation

if TYPE_CHECKING:
    from minisandbox_ray.cluster.nodes import Node

# A worker is one Python process; beyond this many sandboxes their threads wait for each other.
SANDBOXES_PER_WORKER = 16


class ClusterConfig(BaseModel):
    """The Ray cluster, and the size of the pool on each of its nodes."""

    model_config = ConfigDict(extra="forbid")

    address: str | None = None
    """``"local"``: a cluster of its own on this machine; ``"auto"`` or ``host:port``: that cluster; None: the one in
    ``RAY_ADDRESS`` (set inside a Ray job), else local."""
    pool: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of a pool that several drivers share and that outlives them; made by the first, ended by
    ``python -m minisandbox_ray pool stop NAME``. None: a pool of this driver's own, which ends with it."""
    workers_per_node: int | None = Field(default=None, ge=1)
    """Worker processes per node; None: as many as its sandboxes need."""
    sandboxes_per_worker: int | None = Field(default=None, ge=1)
    """Sandboxes that one worker hosts at a time; None: the node's sandboxes over its workers. A node hosts as many as
    it advertises as the resource ``sandbox``, else two per cpu."""
    exclude_labels: dict[str, str] = {}
    """Nodes with any of these labels (``ray start --labels``) host no sandboxes, as nodes that only train."""
    lease_seconds: float = Field(default=7200, gt=0)
    """A sandbox that is held longer than this is taken back, so that a client that forgot it costs no slot."""
    isolation: Isolation = "strict"
    """``strict``: nodes that cannot isolate sandboxes fail; ``best-effort``: they do what they can (``doctor`` says
    what that is)."""
    store_gib: float = Field(default=64, gt=0)
    """GiB that the unpacked environments of one node may take; those not in use are evicted beyond it."""

    def workers_on(self, node: "Node") -> list[int]:
        """Sandbox slots of each worker on that node; they differ by at most one."""
        if self.sandboxes_per_worker and self.workers_per_node and not node.sandboxes:
            return [self.sandboxes_per_worker] * self.workers_per_node
        slots = node.sandboxes or max(2, math.floor(2 * node.cpus))
        if self.sandboxes_per_worker and not node.sandboxes:
            return [self.sandboxes_per_worker] * math.ceil(slots / self.sandboxes_per_worker)
        count = self.workers_per_node or math.ceil(slots / (self.sandboxes_per_worker or SANDBOXES_PER_WORKER))
        count = min(count, slots)
        return [slots // count + (number < slots % count) for number in range(count)]

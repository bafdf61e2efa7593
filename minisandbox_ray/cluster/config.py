"""How to reach a Ray cluster and how many sandboxes its nodes host."""

import math

from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.sandbox import Isolation

# A worker is one Python process; beyond this many sandboxes their threads wait for each other.
SANDBOXES_PER_WORKER = 16


class ClusterConfig(BaseModel):
    """The Ray cluster, and the size of the pool on each of its nodes."""

    model_config = ConfigDict(extra="forbid")

    address: str | None = None
    """``"local"``: a cluster of its own on this machine; ``"auto"`` or ``host:port``: that cluster; None: the one in
    ``RAY_ADDRESS`` (set inside a Ray job), else local."""
    workers_per_node: int | None = Field(default=None, ge=1)
    """Worker processes per node; None: as many as its sandboxes need."""
    sandboxes_per_worker: int | None = Field(default=None, ge=1)
    """Sandboxes that one worker hosts at a time; None: two per cpu of the node, over its workers."""
    lease_seconds: float = Field(default=7200, gt=0)
    """A sandbox that is held longer than this is taken back, so that a client that forgot it costs no slot."""
    isolation: Isolation = "strict"
    """``strict``: nodes that cannot isolate sandboxes fail; ``best-effort``: they do what they can (``doctor`` says
    what that is)."""
    store_gib: float = Field(default=64, gt=0)
    """GiB that the unpacked environments of one node may take; those not in use are evicted beyond it."""

    def workers_on(self, cpus: float) -> list[int]:
        """Sandbox slots of each worker on a node that has this many cpus."""
        slots = max(2, math.floor(2 * cpus))
        workers = self.workers_per_node or math.ceil(slots / (self.sandboxes_per_worker or SANDBOXES_PER_WORKER))
        return [self.sandboxes_per_worker or math.ceil(slots / workers)] * workers

"""A pool's figures for Ray's metrics (Prometheus; Ray puts ``ray_`` before each name)."""

import logging
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from minisandbox_ray.cluster.messages import Unpacked

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000]

logger = logging.getLogger(__name__)


class Metrics:
    """What the scheduler reports. Gauges by node: slots, leases, store; counts and times of the whole pool."""

    def __init__(self) -> None:
        by_node = ("node",)
        self._gauges = {
            "slots": Gauge("minisandbox_sandbox_slots", "Sandboxes that the node hosts at a time.", by_node),
            "used": Gauge("minisandbox_leases", "Leases on the node.", by_node),
            "unpacking": Gauge("minisandbox_unpack_queue", "Unpacks that run or wait for slots.", by_node),
            "environments": Gauge("minisandbox_store_environments", "Environments in the node's store.", by_node),
            "hits": Gauge("minisandbox_store_hits", "Leases that found their environment.", by_node),
            "misses": Gauge("minisandbox_store_misses", "Leases that did not.", by_node),
        }
        self._store_bytes = Gauge("minisandbox_store_bytes", "Bytes in the node's store.", by_node)
        self._free_bytes = Gauge("minisandbox_store_free_bytes", "Bytes free on the store's disk.", by_node)
        self._waiting = Gauge("minisandbox_waiting_requests", "Requests that have no slot yet.")
        self._failures = Gauge("minisandbox_failures", "Episodes that failed, by whose fault it was.", ("owner",))
        self._lost = Gauge("minisandbox_lost_workers", "Workers that died since the start.")
        self._unpacks = Counter("minisandbox_unpacks_total", "Unpacks that are over.", ("origin",))
        self._wait = Histogram("minisandbox_lease_wait_seconds", "From request to lease.", _SECONDS)
        self._part = Histogram(
            "minisandbox_unpack_seconds", "Of an unpack: slots, fetch, unpack, rebuild.", _SECONDS, ("part",)
        )
        self._seen: set[str] = set()

    def waited(self, seconds: float) -> None:
        """A request became a lease after so long."""
        self._wait.observe(max(seconds, 1e-9))

    def unpacked(self, unpacked: Unpacked) -> None:
        """An environment came to a node."""
        self._unpacks.inc(1, {"origin": unpacked.origin})
        for part, seconds in unpacked.seconds.items():
            self._part.observe(max(seconds, 1e-9), {"part": part})

    def update(self, stats: dict[str, Any]) -> None:
        """Set the gauges; nodes that are gone go to 0."""
        now = {node["name"]: node for node in stats["nodes"].values()}
        for name in self._seen - set(now):
            for gauge in (*self._gauges.values(), self._store_bytes, self._free_bytes):
                gauge.set(0, {"node": name})
        self._seen = set(now)
        for name, node in now.items():
            for key, gauge in self._gauges.items():
                gauge.set(node[key], {"node": name})
            self._store_bytes.set(node["store"]["bytes"], {"node": name})
            self._free_bytes.set(node["store"]["free_bytes"], {"node": name})
        self._waiting.set(stats["waiting"])
        self._lost.set(stats["lost_workers"])
        for owner, count in stats["failures"].items():
            self._failures.set(count, {"owner": owner})

    def trouble(self, text: str) -> None:
        """Something that cures itself."""
        logger.warning("%s", text)

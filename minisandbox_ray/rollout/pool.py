"""A pool whose workers host episodes."""

from pathlib import Path
from typing import Any

import ray

from minisandbox_ray.cluster import ClusterConfig, Pool
from minisandbox_ray.environments import cache_root
from minisandbox_ray.rollout.config import EpisodeConfig
from minisandbox_ray.rollout.episode import Episode
from minisandbox_ray.rollout.grades import start_grade_service


class EpisodePool(Pool):
    """Workers on every node of the connected Ray cluster that run episodes, and the grade cache that they share.

    ``archives`` (default: those of this machine's cache) is the same path on every node.
    """

    def __init__(self, config: ClusterConfig | None = None, archives: Path | None = None) -> None:
        super().__init__(config or ClusterConfig(), Episode, archives or cache_root() / "archives")
        self._grades = start_grade_service(self.capacity)

    def options(self, config: EpisodeConfig) -> dict[str, Any]:
        """What an episode's lease is asked for with."""
        return {"config": config, "grades": self._grades if config.grading.cache else None}

    def grade_counts(self) -> dict[str, int]:
        """``hits`` and ``misses`` of the grade cache since the start."""
        return ray.get(self._grades.counts.remote())

    def close(self) -> None:
        super().close()
        if ray.is_initialized() and hasattr(self, "_grades"):
            ray.kill(self._grades)

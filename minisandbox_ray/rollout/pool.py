"""A pool whose workers host episodes."""

from pathlib import Path
from typing import Any

import ray

from minisandbox_ray.cluster import ClusterConfig, Pool, check_memory
from minisandbox_ray.environments import cache_root
from minisandbox_ray.rollout.config import EpisodeConfig, check_lifetime
from minisandbox_ray.rollout.episode import Episode
from minisandbox_ray.rollout.grades import start_grade_service


class EpisodePool(Pool):
    """Workers on the nodes of the connected Ray cluster that run episodes, and the grade cache that they share.

    ``archives`` (default: those of this machine's cache): a directory, or the URL of one. What a node does not find
    there it gets from another one.
    """

    def __init__(self, config: ClusterConfig | None = None, archives: Path | str | None = None) -> None:
        config = config or ClusterConfig()
        super().__init__(config, Episode, archives or cache_root() / "archives")
        try:
            self._grades = start_grade_service(self.capacity, config.pool)
        except BaseException:
            super().close()
            raise
        self._checked: EpisodeConfig | None = None

    def options(self, config: EpisodeConfig) -> dict[str, Any]:
        """What an episode's lease is asked for with. Raises ConfigError for one that does not fit the pool."""
        if config != self._checked:
            check_lifetime(config, self.lease_seconds)
            check_memory(self.nodes, config.limits.memory_mib)
            self._checked = config
        return {"config": config, "grades": self._grades if config.grading.cache else None}

    def grade_counts(self) -> dict[str, int]:
        """``hits`` and ``misses`` of the grade cache since the start."""
        return ray.get(self._grades.counts.remote())

    def close(self) -> None:
        super().close()
        if ray.is_initialized() and hasattr(self, "_grades") and not self._is_shared:
            ray.kill(self._grades)

"""Slots and stores of a pool over time, as lines of a file that the report draws."""

import json
import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from minisandbox_ray.errors import MiniSandboxError

if TYPE_CHECKING:
    from minisandbox_ray.cluster import Pool

SECONDS = 5.0
"""From one line to the next."""

logger = logging.getLogger(__name__)


class PoolLog:
    """While its block runs, and at its start and end, a line of JSON is added to a file.

    Of all nodes together: ``time`` (seconds since 1970), ``slots``, ``used``, ``waiting`` (requests), ``store_bytes``
    and ``store_budget_bytes``.
    """

    def __init__(self, pool: "Pool", path: Path, every: float = SECONDS) -> None:
        self._pool, self._path, self._every = pool, path, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="pool-log", daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._write()

    def _write_on(self) -> None:
        while not self._over.wait(self._every):
            self._write()

    def _write(self) -> None:
        try:
            row = json.dumps(pool_row(self._pool.stats()))
            with self._path.open("a") as file:
                file.write(row + "\n")
        except (MiniSandboxError, OSError) as error:  # a gap in a chart is no reason to end a run
            logger.warning("no line for %s: %s", self._path.name, error)


def pool_row(stats: dict[str, Any]) -> dict[str, float]:
    """The line of `Pool.stats`."""
    nodes = stats["nodes"].values()
    return {
        "time": time.time(),
        "slots": sum(node["slots"] for node in nodes),
        "used": sum(node["used"] for node in nodes),
        "waiting": stats["waiting"],
        "store_bytes": sum(node["store"]["bytes"] for node in nodes),
        "store_budget_bytes": sum(node["store"]["budget_bytes"] for node in nodes),
    }

"""The grade cache that all workers of a pool share."""

import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError

from minisandbox_ray.cluster import NAMESPACE
from minisandbox_ray.tasks import Grade, GradeCache

CLAIM_MARGIN_SECONDS = 60.0


class GradeService:
    """A GradeCache as an actor. A claim ends by itself after a while: the worker that made it may have died."""

    def __init__(self) -> None:
        self._cache = GradeCache()
        self._timers: dict[str, threading.Timer] = {}

    def claim(self, key: str, seconds: float) -> Grade | None:
        """See GradeCache.claim; None gives the caller ``seconds`` to put or abandon."""
        grade = self._cache.claim(key)
        if grade is None:
            timer = self._timers[key] = threading.Timer(seconds, self.abandon, [key])
            timer.daemon = True
            timer.start()
        return grade

    def put(self, key: str, grade: Grade) -> None:
        """See GradeCache.put."""
        self._end_timer(key)
        self._cache.put(key, grade)

    def abandon(self, key: str) -> None:
        """See GradeCache.abandon."""
        self._end_timer(key)
        self._cache.abandon(key)

    def counts(self) -> dict[str, int]:
        """Grades asked for that were there (``hits``) and that had to be made (``misses``)."""
        return {"hits": self._cache.hits, "misses": self._cache.misses}

    def _end_timer(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()


def start_grade_service(episodes: int, pool: str | None = None) -> Any:
    """The actor, for so many episodes at a time: a claim that waits for another's grading holds a thread of it.

    That of a shared pool is shared and lives as long as the pool."""
    shared = {"name": f"{pool}/grades", "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    options = {"num_cpus": 0, "max_concurrency": 2 * episodes + 8, **(shared if pool else {})}
    return ray.remote(GradeService).options(**options).remote()


def graded_once(grades: Any, key: str, timeout: float, run: Callable[[], Grade]) -> tuple[Grade, bool]:
    """(grade, whether it was there already) from the actor ``grades``; ``run`` makes one within about ``timeout`` s.

    Without the actor (it was lost with its node) every diff is graded."""
    try:
        grade = ray.get(grades.claim.remote(key, timeout + CLAIM_MARGIN_SECONDS))
    except RayActorError:
        return run(), False
    if grade is not None:
        return grade, True
    try:
        grade = run()
    except BaseException:
        grades.abandon.remote(key)
        raise
    grades.put.remote(key, grade)
    return grade, False

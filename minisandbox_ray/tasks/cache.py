"""Equal diffs of one task are graded once."""

import threading
from collections.abc import Callable

from minisandbox_ray.tasks.grading import Grade


class GradeCache:
    """Grades by key (`grade_key`), in memory, for many threads: equal keys asked at once are graded once.

    Its methods pass plain values, so that an actor with several threads can serve it to other processes.
    """

    def __init__(self) -> None:
        self.hits = 0
        """Claims that were answered without grading."""
        self.misses = 0
        """Claims that had to be graded."""
        self._grades: dict[str, Grade] = {}
        self._claimed: set[str] = set()
        self._changed = threading.Condition()

    def claim(self, key: str) -> Grade | None:
        """The grade; or None, then the caller must grade and `put` or `abandon`. Waits while somebody else does so."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._claimed)
            if key in self._grades:
                self.hits += 1
                return self._grades[key]
            self.misses += 1
            self._claimed.add(key)
            return None

    def put(self, key: str, grade: Grade) -> None:
        """Keeps the grade of a claimed key."""
        with self._changed:
            self._grades[key] = grade
            self._claimed.discard(key)
            self._changed.notify_all()

    def abandon(self, key: str) -> None:
        """Gives a claim back: the next who asks grades."""
        with self._changed:
            self._claimed.discard(key)
            self._changed.notify_all()

    def get_or_grade(self, key: str, run: Callable[[], Grade]) -> tuple[Grade, bool]:
        """(grade, whether it came from the cache); `run` grades. What it raises is raised here and not kept."""
        grade = self.claim(key)
        if grade is not None:
            return grade, True
        try:
            grade = run()
        except BaseException:
            self.abandon(key)
            raise
        self.put(key, grade)
        return grade, False

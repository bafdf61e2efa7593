import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from minisandbox_ray.tasks import Grade, GradeCache

GRADE = Grade(resolved=True, reward=1, tests={})


def test_equal_keys_asked_at_once_are_graded_once() -> None:
    cache, graded, everyone = GradeCache(), [], threading.Barrier(8)

    def ask(_: int) -> bool:
        def run() -> Grade:
            graded.append(1)
            return GRADE

        everyone.wait()
        grade, cached = cache.get_or_grade("key", run)
        assert grade is GRADE
        return cached

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(ask, range(8))) == [False] + 7 * [True]
    assert len(graded) == 1
    assert (cache.hits, cache.misses) == (7, 1)


def test_a_failure_is_raised_and_not_kept() -> None:
    cache = GradeCache()
    with pytest.raises(ZeroDivisionError):
        cache.get_or_grade("key", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert cache.get_or_grade("key", lambda: GRADE) == (GRADE, False)


def test_who_waits_takes_over_when_the_first_gives_up() -> None:
    cache = GradeCache()
    assert cache.claim("key") is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.claim, "key")
        cache.abandon("key")
        assert waiting.result() is None
    cache.put("key", GRADE)
    assert cache.claim("key") == GRADE

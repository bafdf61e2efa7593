"""Clocks. What is compared runs in turns in one process, so that noise meets both sides; a figure is a median."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Barrier
from typing import Protocol


class Live(Protocol):
    """Something started that has answered its first command."""

    def close(self) -> object:
        """End it and all that it runs."""


Start = Callable[[], Live]
_PAUSE = 0.05  # seconds


@dataclass
class Timings:
    """Seconds, one entry a time."""

    start: list[float] = field(default_factory=list)
    close: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    """Of a burst: from the common start until all of it have answered."""


def quantile(values: Sequence[float], share: float = 0.5) -> float:
    """The value below which this share of them lies; the middle one by default."""
    ordered = sorted(values)
    if share == 0.5 and len(ordered) % 2 == 0:
        return (ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2]) / 2
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def in_turns(actions: Mapping[str, tuple[Callable[[], object], int]]) -> dict[str, list[float]]:
    """Run each action its number of times, evenly mixed with the others; -> seconds of each call."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    most = max(times for _, times in actions.values())
    for turn in range(most):
        for name, (action, times) in actions.items():
            if (turn + 1) * times // most > turn * times // most:
                taken[name].append(seconds(action))
    return taken


def starts_in_turns(starts: Mapping[str, tuple[Start, int]]) -> dict[str, Timings]:
    """Start and close one at a time, each kind its number of times, evenly mixed; one more of each goes uncounted.

    A pause follows each: what one does afterwards (ours prepares its next start) must not weigh on the other.
    """
    timings = {name: Timings() for name in starts}

    def once(start: Start, name: str) -> None:
        begin = time.perf_counter()
        live = start()
        answered = time.perf_counter()
        live.close()
        timings[name].close.append(time.perf_counter() - answered)
        timings[name].start.append(answered - begin)
        time.sleep(_PAUSE)

    for start, _ in starts.values():
        start().close()
    in_turns({name: (partial(once, start, name), times) for name, (start, times) in starts.items()})
    return timings


def burst(start: Start, count: int, timings: Timings) -> None:
    """Start `count` at the same moment, a thread each; they all live until the last one has answered."""
    barrier, lives, ends = Barrier(count), [], []

    def one() -> None:
        barrier.wait()
        begin = time.perf_counter()
        lives.append(start())
        end = time.perf_counter()
        ends.append((begin, end))

    try:
        with ThreadPoolExecutor(count) as threads:
            for future in [threads.submit(one) for _ in range(count)]:
                future.result()
    finally:
        close_all(lives)
    timings.start += [end - begin for begin, end in ends]
    timings.ready.append(max(end for _, end in ends) - min(begin for begin, _ in ends))


def close_all(lives: Sequence[Live]) -> None:
    """Four at a time."""
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda live: live.close(), lives))

"""Limits of time, as people give them, and as the kernel takes them."""

import math

_LONGEST_POLL = 24 * 3600.0  # seconds; poll(2) takes an int of ms, callers look at the clock afterwards


def seconds(value: float | None, name: str) -> float:
    """A limit in seconds; None is none (inf). Raises ValueError for what is no length of time."""
    if value is None:
        return math.inf
    try:
        value = float(value)
    except OverflowError:  # an int beyond every float
        value = math.inf if value > 0 else -math.inf
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} is {value}: it must be a number of seconds, 0 or more")
    return value


def poll_milliseconds(left: float) -> float:
    """`left` seconds for poll(2), which may return early if that is very long."""
    return max(0.0, min(left, _LONGEST_POLL)) * 1000

"""Suites that take longer than anybody waits for a grade: the files of them that fit into the time."""

import re
from collections.abc import Callable, Mapping, Sequence

from minisandbox_ray.tasks.testrun import Case, TestRun

FILE_SECONDS = 45.0
"""For a file that is run alone."""
SHARE = 0.7
"""Of the time for a suite, what the files that are kept took: the next run may be slower."""


def files_listed(log: str) -> list[str]:
    """The files with tests, as pytest lists them when it is to be very quiet, quiet, or verbose."""
    found = re.findall(r"^(\S+?\.(?:py|rst|txt|md))(?:::|: \d+$)", log, re.MULTILINE)
    return list(dict.fromkeys([*found, *re.findall(r"^\s*<Module (\S+)>$", log, re.MULTILINE)]))


def files_in_time(
    files: Sequence[str], ended: Mapping[str, Case], run: Callable[[str, float], TestRun], seconds: float
) -> dict[str, Case]:
    """The tests of the files that fit into so many seconds, each whole.

    `ended` are the tests that ended before the run of all was cut short. A file that it did not come to the end of is
    run alone, with a limit in seconds, until as much time is used again.
    """
    of_file: dict[str, dict[str, Case]] = {}
    for test, case in ended.items():
        of_file.setdefault(test.partition("::")[0], {})[test] = case
    if of_file:
        of_file.popitem()  # it may have been in the middle of this one
    took = {file: sum(case.seconds for case in cases.values()) for file, cases in of_file.items()}
    left = seconds
    for file in files:
        if file not in of_file and left > 0:
            alone = run(file, min(FILE_SECONDS, left))
            left -= alone.seconds
            if alone.cases:
                of_file[file], took[file] = dict(alone.cases), alone.seconds
    kept: dict[str, Case] = {}
    total = 0.0
    for file in sorted(of_file, key=lambda file: took[file]):
        total += took[file]
        if total <= SHARE * seconds:
            kept |= of_file[file]
    return kept

"""The last resort: the files of a suite that work, where these are at least half of it."""

from collections import Counter

from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.trial import MOST_FAILING, Trial

LEAST = 0.5
"""Of the test files, and of the tests, those that have to be left."""


def working_part(trial: Trial) -> Plan | None:
    """The plan without the test files that can't be collected, and those of whose tests more than a fifth fail.

    None where that leaves less than half of the files or of the tests, or nothing fails by file.
    """
    if trial.stage == "build" or not trial.files:
        return None
    passing = Counter(test.partition("::")[0] for test in trial.passing)
    failing = Counter(test.partition("::")[0] for test in trial.failing)
    total = passing + failing
    left_out = {file for file in total if failing[file] > MOST_FAILING * total[file]} | set(trial.uncollected)
    kept = total.keys() - left_out
    if not left_out or len(left_out) > trial.files * (1 - LEAST):
        return None
    if trial.stage == "tests" and sum(passing[file] for file in kept) < LEAST * total.total():
        return None
    why = f"{trial.files - len(left_out)} of {trial.files} test files: in the others most fails"
    part = trial.plan.without_files(why, sorted(left_out))
    return part if part.targets else None

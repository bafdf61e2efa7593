"""A plan, what is known of its source, and what repairs make of a log."""

from minisandbox_ray.tasks.automatic.facts import Facts
from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.repairs.failure import Failure
from minisandbox_ray.tasks.automatic.repairs.known import repaired
from minisandbox_ray.tasks.automatic.tree import SourceTree
from minisandbox_ray.tasks.automatic.trial import Stage, Trial

PLAN = Plan(python="3.9.18", requirements=["mock==1.0", "pytest"], exclude_newer="2021-01-01", targets=["tests"])
FACTS = Facts(
    name="demo",
    version="1.2",
    dependencies=["six>=1"],
    test_requirements=["WebTest>=2", "mock==1.0"],
    essential_requirements=["mock"],
    build_requires=["setuptools"],
    targets=["tests"],
)


def next_plan(
    log: str, stage: Stage, plan: Plan = PLAN, cause: str = "", paths: tuple[str, ...] = ()
) -> tuple[str, Plan]:
    trial = Trial(plan, stage, cause, log)
    return next(repaired(Failure(trial, FACTS, SourceTree(frozenset(paths)))), ("", plan))

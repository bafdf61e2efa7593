"""What every repair looks at, and the few ways of changing a plan that several kinds of them share.

It imports no repair: `builds`, `additions`, `versions` and `suite` import it, and `known` imports these four.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from minisandbox_ray.tasks.automatic.facts import Facts
from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.requirements import name_of, parse
from minisandbox_ray.tasks.automatic.tree import SourceTree
from minisandbox_ray.tasks.automatic.trial import Trial


@dataclass(frozen=True)
class Failure:
    """What a repair looks at."""

    trial: Trial
    facts: Facts
    tree: SourceTree

    @property
    def plan(self) -> Plan:
        return self.trial.plan

    @property
    def log(self) -> str:
        return self.trial.log

    @property
    def in_build(self) -> bool:
        return self.trial.stage == "build"

    @property
    def minor(self) -> int:
        """N of Python 3.N."""
        return int(self.plan.python.split(".")[1])


Repair = Callable[[Failure], Plan | None]


def matches(pattern: str, log: str) -> list[Any]:
    """What the groups of it are, each once: texts, or tuples where there are several."""
    return list(dict.fromkeys(re.findall(pattern, log, re.MULTILINE)))


def unpinned(text: str) -> str:
    """A requirement without its versions and markers; what is none, as it is."""
    requirement = parse(text)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement and requirement.extras else ""
    return f"{requirement.name}{extras}" if requirement else text


def with_all(failure: Failure, table: dict[str, str], names: Iterable[str]) -> Plan | None:
    """The plan with the projects that a table has for these names; None if there is none that it lacks."""
    plan, why = failure.plan, list[str]()
    for project in dict.fromkeys(table.get(name, "") for name in names):
        if project and name_of(project) not in {name_of(text) for text in plan.requirements}:
            plan, why = plan.model_copy(update={"requirements": [*plan.requirements, project]}), [*why, project]
    return plan.changed(", ".join(why)) if why else None


def with_options(failure: Failure, options: list[str], why: str) -> Plan | None:
    """The plan with these options of pytest's; None if it has them."""
    present = " ".join(failure.plan.options)
    return (
        None if " ".join(options) in present else failure.plan.changed(why, options=[*failure.plan.options, *options])
    )

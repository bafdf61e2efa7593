"""What is known of tasks: whether the gold fix solves them and nothing else does, the same way each time."""

import hashlib
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from minisandbox_ray.environments import cache_root
from minisandbox_ray.environments.cache import write_atomically
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks.task import Task

_JUDGED = {"instance_id", "environment", "patch", "gold_patch", "test_patch", "hidden_tests", "graded_by"}
_JUDGED |= {"expected_statuses", "script", "FAIL_TO_PASS", "PASS_TO_PASS", "test_command", "test_targets"}
_JUDGED |= {"log_parser", "test_files"}
_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|getaddrinfo failed|"
    r"nodename nor servname|No route to host|Failed to establish a new connection|Max retries exceeded with url"
)


class Validation(BaseModel):
    """What came of a task's gold fix and of no change, each as often as there were repeats."""

    model_config = ConfigDict(frozen=True)

    instance_id: str
    """The task's."""
    gold: list[bool | None]
    """Whether the gold fix solved it; None where the episode failed."""
    empty: list[bool | None]
    """Whether it was solved without a fix."""
    flaky: list[str] = []
    """Listed tests whose status differed between repeats."""
    missing: list[str] = []
    """Listed tests that were not reported with the gold fix."""
    reason: str = ""
    """Why it is not valid, in one line."""
    seconds: float = 0.0
    """What grading the gold fix took, the longest of the repeats."""
    witnessed: bool = True
    """Whether our own report told the statuses, see `Grade`."""

    @property
    def valid(self) -> bool:
        """The gold fix solves it and nothing else does, every time, with all listed tests and none flaky."""
        is_right = all(each is True for each in self.gold) and all(each is False for each in self.empty)
        return bool(self.gold) and is_right and not self.flaky and not self.missing


def task_digest(task: Task) -> str:
    """sha256 of all that decides whether a task is valid: another one has to be validated anew."""
    content = task.model_dump_json(include=_JUDGED)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def stamped(task: Task) -> Task:
    """The task with the mark that it was found valid, which travels with it; a task that is changed has lost it."""
    return task.model_copy(update={"validated": task_digest(task)})


def save_validation(task: Task, validation: Validation) -> None:
    """Keep it in the cache (`cache_root()/validations`)."""
    path = _path(task)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, validation.model_dump_json(indent=1).encode())


def load_validation(task: Task) -> Validation | None:
    """What was found on this machine; None if nothing was, or nothing that can be read."""
    try:
        return Validation.model_validate_json(_path(task).read_bytes())
    except (OSError, ValidationError):
        return None


def is_validated(task: Task) -> bool:
    """Whether the task was found valid, here or wherever its mark comes from."""
    if task.validated == task_digest(task):
        return True
    known = load_validation(task)
    return known is not None and known.valid


def require_validated(tasks: list[Task], remedy: str) -> None:
    """Raises ConfigError, which ends in `remedy`, unless all were found valid."""
    unknown = [task.instance_id for task in tasks if not is_validated(task)]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ConfigError(f"task {unknown[0]}{more} of {len(tasks)} never proved valid: {remedy}")


def speaks_of_network(log: str) -> str:
    """What in a log looks as if the network were missing; empty if nothing does."""
    found = _NETWORK.search(log)
    return found[0] if found else ""


def _path(task: Task) -> Path:
    return cache_root() / "validations" / f"{task_digest(task)}.json"

"""A recipe, and what it adds to its task."""

import re
import shlex
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from minisandbox_ray.environments import EnvSpec, find_interpreters
from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks.task import Task

TOOLS = {
    (3, 6): ["setuptools==58.0.4", "wheel==0.37.1"],
    (3, 7): ["setuptools==65.6.3", "wheel==0.38.4"],
    (3, 8): ["setuptools==75.1.0", "wheel==0.44.0"],
}
"""What conda's environments held beside pip when the images of the data sets were made, by the lowest Python. (Pins of
swebench/resources/swebench-og of the repository SWE-bench/SWE-bench.)"""

_REPORTING = {"-rA", "-rs", "-v", "-vv", "--verbose", "-q", "--no-header", "--disable-warnings"}


class NoRecipeError(BuildError):
    """No table says how the task's environment is made."""


class Recipe(BaseModel):
    """How a task's environment is built and its tests are run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: EnvSpec
    """What is built."""
    test_command: list[str]
    """As in `Task`."""
    test_targets: list[str] = []
    """As in `Task`."""
    log_parser: str = ""
    """As in `Task`."""
    notes: list[str] = []
    """What is not as the table says, one line each: for the build's log."""

    def complete(self, task: Task, digest: str) -> Task:
        """The task with its built environment and all that grading needs."""
        known = {"environment": digest, "test_command": self.test_command, "log_parser": self.log_parser}
        return task.model_copy(update={**known, "test_targets": self.test_targets})


def nearest_python(wanted: str, notes: list[str]) -> str:
    """The minor version that is asked for, or else the nearest that this machine has, with a note.

    Raises BuildError on a machine without any.
    """
    minors = {each.key[:2] for each in find_interpreters() if each.complete}
    if not minors:
        raise BuildError("no Python on this machine can make a venv: install one with uv or pyenv")
    asked = tuple(int(part) for part in re.findall(r"\d+", wanted)[:2])
    best = min(minors, key=lambda minor: (abs(minor[1] - asked[1]), -minor[1]))
    if best != asked:
        have = ", ".join(f"3.{minor}" for _, minor in sorted(minors))
        notes.append(f"python {wanted} is not on this machine ({have}): 3.{best[1]} is taken")
    return f"3.{best[1]}"


def tools(python: str) -> list[str]:
    """setuptools and wheel of a conda environment of that Python ("3.9")."""
    key = tuple(int(part) for part in python.split("."))
    return TOOLS[max((each for each in TOOLS if each <= key), default=(3, 6))]


def pip_install(requirements: Iterable[str], *options: str) -> list[str]:
    """A shell command for those, none for nothing."""
    words = [shlex.quote(each) for each in requirements]
    return [" ".join(["python -m pip install", *options, *words])] if words else []


def test_command(line: str) -> list[str]:
    """A table's shell line as an argv: of pytest without what only changes its report, else as it is."""
    words = shlex.split(line)
    settings = []
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        settings.append(words.pop(0))
    if words and words[0] == "pytest":
        words = ["/venv/bin/pytest", *_without_reporting(words[1:])]
    return ["env", *settings, *words] if settings else words


def _without_reporting(words: list[str]) -> list[str]:
    kept: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word in {"-p", "-o"} and waiting and waiting[0].startswith(("no:cacheprovider", "console_output_style")):
            waiting.pop(0)
        elif word not in _REPORTING and not word.startswith(("--tb=", "--color=")):
            kept.append(word)
    return kept

"""What an episode leaves behind, and the file that a batch of them is kept in."""

import contextlib
import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minisandbox_ray.errors import ConfigError, MiniSandboxError, Owner, first_wrong
from minisandbox_ray.tasks import Task

TRIED_AGAIN: frozenset[Owner | None] = frozenset({"sandbox", "cluster", "model"})
"""Owners of failures that say nothing about the task or the policy: such episodes are not finished."""


class Turn(BaseModel):
    """An action and what came of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: str
    """The policy's text."""
    observation: str
    """What it was answered; empty for the last turn where that ran no command."""
    exit_code: int | None = None
    """Of the command, if one ran."""
    seconds: float
    """From action to observation, grading included."""


class Trajectory(BaseModel):
    """One line of trajectories.jsonl. Of several lines of one (instance_id, sample) the last counts."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_version: Literal[1] = Field(1, alias="schema")
    """Of this model; it grows when the meaning of a field changes. Written as ``schema``."""
    instance_id: str
    """The task's."""
    task_digest: str = ""
    """Of the task's content: a task that has changed since is played again."""
    sample: int
    """Which of the task's episodes, from 0."""
    seed: int
    """The episode's: that of the batch plus the sample."""
    environment: str
    """Digest of the task's environment."""
    policy: str
    """``gold``, ``empty``, ``random``, or name and digest of the file of actions."""
    repo: str = ""
    """The task's repository."""
    prompt: str = ""
    """What the first action answers; empty where reset failed."""
    turns: list[Turn]
    """In order."""
    diff: str
    """What was graded, as a git patch (bytes that are not UTF-8 are surrogate escapes); empty above 1 MiB."""
    reward: float
    """0 for an episode that failed, which then says nothing."""
    resolved: bool
    """Whether all tests of the task passed in the end."""
    graded: dict[str, Any] | None
    """Grade's fields; None where the episode failed before."""
    failure_owner: Owner | None
    """Whose failure ended the episode; None for one that came to its grade."""
    failure: str
    """What failed, in one line."""
    replay: dict[str, Any] | None
    """``count`` of the times it was started again elsewhere, at which ``turns`` (0: reset), and the ``diverged_turns``
    that were then observed differently; None where reset failed."""
    seconds: dict[str, float]
    """Wall time: ``total``, and of it ``wait`` (for a slot), ``reset``, ``policy``, ``command``, ``diff``, ``grade``,
    ``replay`` (what failures of the infrastructure cost)."""
    node: str
    """Address of the node that it ended on; empty where it got none."""
    versions: dict[str, str]
    """Of this package, Ray and Python."""

    @property
    def is_finished(self) -> bool:
        """Whether it need not be tried again."""
        return self.failure_owner not in TRIED_AGAIN

    def line(self) -> bytes:
        """One line of JSON."""
        # Not pydantic's own JSON, which cannot write surrogate escapes.
        return json.dumps(self.model_dump(by_alias=True)).encode() + b"\n"


def task_digest(task: Task) -> str:
    """Equal for equal tasks."""
    return hashlib.sha256(task.model_dump_json().encode("utf-8", "surrogatepass")).hexdigest()[:16]


def parse_trajectory(line: bytes, file: Path, number: int) -> Trajectory:
    """A line of a file. Raises ConfigError that names the line and the field of one that is no trajectory."""
    try:
        return Trajectory.model_validate(json.loads(line))
    except (ValueError, RecursionError) as error:
        what = "no trajectory"
        if isinstance(error, ValidationError):
            what += f": {first_wrong(error)}"
        raise ConfigError(f"{file}, line {number}: {what}") from error


class TrajectoryFile:
    """``DIRECTORY/trajectories.jsonl``, to which one process at a time appends.

    A last line that a killed process left half written is dropped. Raises ConfigError for a file that another process
    appends to, that cannot be written, or holds something else.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "trajectories.jsonl"
        self.last: dict[tuple[str, int], Trajectory] = {}
        """What the file holds by (instance_id, sample), without texts, diffs and grades."""
        if directory.exists() and not directory.is_dir():
            raise ConfigError(f"{directory} is no directory")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError as error:
            self.close()
            raise ConfigError(f"{self.path} is being written by another process: choose another --output") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "TrajectoryFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> None:
        end = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                self._keep(parse_trajectory(line, self.path, number))
        os.ftruncate(self._descriptor, end)

    def _keep(self, trajectory: Trajectory) -> None:
        turns = [turn.model_copy(update={"action": "", "observation": ""}) for turn in trajectory.turns]
        small = trajectory.model_copy(update={"prompt": "", "turns": turns, "diff": "", "graded": None})
        self.last[trajectory.instance_id, trajectory.sample] = small

    def append(self, trajectory: Trajectory) -> None:
        """Write one more; it stays, whatever becomes of this process. Raises MiniSandboxError on a full disk."""
        line = trajectory.line()
        size = os.fstat(self._descriptor).st_size
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise MiniSandboxError(f"cannot write {self.path}: {error.strerror}") from error
        self._keep(trajectory)

    def close(self) -> None:
        """Let others append."""
        os.close(self._descriptor)

"""What chooses the actions of a batch of episodes."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, Field, ValidationError, model_validator

from minisandbox_ray.errors import ConfigError, first_wrong
from minisandbox_ray.tasks import Task
from minisandbox_ray.yaml_file import read_model

SUBMIT = "```bash\nsubmit\n```"

HARMLESS = (
    "ls",
    "pwd",
    "git status --short",
    "git log --oneline | head -n 5",
    "find . -name '*.py' | sort | head -n 20",
    "wc -l $(git ls-files '*.py' | head -n 20)",
    "echo note > /tmp/note; cat /tmp/note",
    "python --version",
)
"""What the random policy chooses from."""


class Policy(Protocol):
    """Chooses the actions of one episode at a time. Calls come from threads, one at a time."""

    def reset(self, task: Task, sample: int, seed: int) -> None:
        """An episode begins; its first observation is given to the first ``act``."""

    def act(self, observation: str) -> str:
        """The next action, model text with one fenced bash block. Raises ModelServiceError when there is no answer."""


class Scripted:
    """A policy whose actions do not depend on what it observes; it submits at the end."""

    def __init__(self, script: Callable[[Task, int, int], list[str]]) -> None:
        """``script(task, sample, seed)`` gives an episode's actions."""
        self._script = script
        self._actions: list[str] = []

    def reset(self, task: Task, sample: int, seed: int) -> None:
        """See Policy."""
        self._actions = list(self._script(task, sample, seed))

    def act(self, observation: str) -> str:
        """See Policy."""
        return self._actions.pop(0) if self._actions else SUBMIT


class Recording(BaseModel):
    """A line of a file of actions: of this shape, or a trajectory."""

    instance_id: str
    sample: int | None = None
    """Which sample of the task; None: every one that has no line of its own."""
    actions: list[str] = Field(min_length=1)
    """Model texts, in order."""

    @model_validator(mode="before")
    @classmethod
    def _of_trajectory(cls, line: Any) -> Any:
        if isinstance(line, dict) and "actions" not in line and isinstance(line.get("turns"), list):
            turns = [turn.get("action") for turn in line["turns"] if isinstance(turn, dict)]
            return {"instance_id": line.get("instance_id"), "sample": line.get("sample"), "actions": turns or [SUBMIT]}
        return line


def choose_policy(name: str, tasks: list[Task], samples: int) -> tuple[str, Callable[[], Policy], int]:
    """``gold``, ``empty``, ``random``, a JSON lines file of recordings, or a YAML file with the fields of ChatConfig:
    (name in trajectories, what makes one for an episode, turns that it must be given at least). Raises ConfigError for
    an unknown one, a bad file, a task without.
    """
    if name == "gold":
        for task in tasks:
            task.gold_command()
        return name, lambda: Scripted(lambda task, sample, seed: [task.gold_action()]), 1
    if name == "empty":
        return name, lambda: Scripted(lambda task, sample, seed: []), 1
    if name == "random":
        return name, lambda: Scripted(_random), 1
    path = Path(name)
    if path.suffix in {".yaml", ".yml"}:
        from minisandbox_ray.rollout.chat import ChatConfig, chat_policy

        return *chat_policy(read_model(path, ChatConfig)), 1
    if path.suffix != ".jsonl":
        raise ConfigError(
            f"unknown policy {name}: choose gold, empty, random, a file of actions, FILE.jsonl, or a model to ask, "
            f"FILE.yaml"
        )
    recorded, content = _read_recordings(path)
    for task in tasks:
        for sample in range(samples):
            if (task.instance_id, sample) not in recorded and (task.instance_id, None) not in recorded:
                raise ConfigError(f"{path} has no actions for sample {sample} of task {task.instance_id}")

    def script(task: Task, sample: int, seed: int) -> list[str]:
        return recorded.get((task.instance_id, sample)) or recorded[task.instance_id, None]

    longest = max(map(len, recorded.values()), default=0)
    return f"{path.name}@{hashlib.sha256(content).hexdigest()[:12]}", lambda: Scripted(script), longest + 1


def _random(task: Task, sample: int, seed: int) -> list[str]:
    choice = random.Random(f"{seed} {sample} {task.instance_id}")
    commands = choice.choices(HARMLESS, k=choice.randint(1, 4))
    return [f"```bash\n{command}\n```" for command in commands]


def _read_recordings(path: Path) -> tuple[dict[tuple[str, int | None], list[str]], bytes]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the file of actions {path}: {error.strerror}") from error
    recorded: dict[tuple[str, int | None], list[str]] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            recording = Recording.model_validate(json.loads(line))
        except ValueError as error:
            why = f": {first_wrong(error)}" if isinstance(error, ValidationError) else ""
            raise ConfigError(f"{path}, line {number}: no recording (instance_id, sample, actions){why}") from error
        # Of a trajectory that was tried again the last line counts.
        recorded[recording.instance_id, recording.sample] = recording.actions
    return recorded, content

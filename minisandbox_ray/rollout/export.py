"""Trajectories of a file: chosen from, and in the forms that others read."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout.actions import Call, Command, Malformed, parse_action
from minisandbox_ray.rollout.trajectory import Trajectory, parse_trajectory


def read_trajectories(paths: Iterable[Path]) -> Iterator[Trajectory]:
    """Those of JSON lines files or of directories that hold a trajectories.jsonl, as they come: of several lines of one
    (instance_id, sample) in a file only the last. A last line that is half written is left out. Raises ConfigError.
    """
    for path in paths:
        file = path / "trajectories.jsonl" if path.is_dir() else path
        last: dict[tuple[str, int], int] = {}
        for number, trajectory in _lines(file):
            last[trajectory.instance_id, trajectory.sample] = number
        for number, trajectory in _lines(file):
            if last.get((trajectory.instance_id, trajectory.sample)) == number:  # the file may have grown
                yield trajectory


def _lines(file: Path) -> Iterator[tuple[int, Trajectory]]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip() or _is_cut(line, number):
                    continue
                yield number, parse_trajectory(line, file, number)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _is_cut(line: bytes, number: int) -> bool:
    """Whether a line is the beginning of one. What is all of a file, and begins like no trajectory, is not."""
    if line.endswith(b"\n") or (number == 1 and not line.startswith(b"{")):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def choose(
    trajectories: Iterable[Trajectory],
    *,
    resolved: bool | None = None,
    per_task: int | None = None,
    per_repository: int | None = None,
    max_chars: int | None = None,
    max_turns: int | None = None,
) -> Iterator[Trajectory]:
    """Those that came to their grade and fit: resolved ones or others, and so many at most, the first ones, of each
    task and repository; ``max_chars`` counts prompt, actions and observations."""
    of_task: Counter[str] = Counter()
    of_repository: Counter[str] = Counter()
    for each in trajectories:
        fits = (
            each.failure_owner is None
            and (resolved is None or each.resolved == resolved)
            and (max_turns is None or len(each.turns) <= max_turns)
            and (max_chars is None or characters(each) <= max_chars)
            and (per_task is None or of_task[each.instance_id] < per_task)
            and (per_repository is None or of_repository[each.repo] < per_repository)
        )
        if fits:
            of_task[each.instance_id] += 1
            of_repository[each.repo] += 1
            yield each


def characters(trajectory: Trajectory) -> int:
    """Of the prompt, the actions and the observations."""
    return len(trajectory.prompt) + sum(len(turn.action) + len(turn.observation) for turn in trajectory.turns)


def chat(trajectory: Trajectory, system: str = "") -> dict[str, Any]:
    """``messages`` in the form of chat data sets: the prompt, then actions and observations in turns, the last action
    last. With a ``system`` message if one is given."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": trajectory.prompt})
    for number, turn in enumerate(trajectory.turns):
        messages.append({"role": "assistant", "content": turn.action})
        if number + 1 < len(trajectory.turns):
            messages.append({"role": "user", "content": turn.observation})
    return {
        "messages": messages,
        "instance_id": trajectory.instance_id,
        "sample": trajectory.sample,
        "resolved": trajectory.resolved,
        "reward": trajectory.reward,
    }


def swe_agent(trajectory: Trajectory) -> dict[str, Any]:
    """The shape of SWE-agent's ``.traj`` files (sweagent.types: AgentRunResult), for its inspectors and converters."""
    history = [{"role": "user", "content": trajectory.prompt, "agent": "main", "message_type": "observation"}]
    steps: list[dict[str, Any]] = []
    for turn in trajectory.turns:
        command = _command(turn.action)
        thought = re.split("```|<function=|<tool_call>", turn.action, maxsplit=1)[0].strip()
        steps.append(
            {
                "action": command,
                "observation": turn.observation,
                "response": turn.action,
                "thought": thought,
                "execution_time": turn.seconds,
                "state": {},
                "query": [],
                "extra_info": {"exit_code": turn.exit_code},
            }
        )
        history.append(
            {
                "role": "assistant",
                "content": turn.action,
                "thought": thought,
                "action": command,
                "agent": "main",
                "message_type": "action",
            }
        )
        history.append({"role": "user", "content": turn.observation, "agent": "main", "message_type": "observation"})
    info = {
        "exit_status": f"failed ({trajectory.failure_owner})" if trajectory.failure_owner else "submitted",
        "submission": trajectory.diff,
        "model_stats": {},
        "resolved": trajectory.resolved,
    }
    return {"environment": "minisandbox", "trajectory": steps, "history": history, "info": info}


def _command(text: str) -> str:
    """What an action does, in whichever format it is written: a shell command, or a tool and what it is given."""
    action = parse_action(text)
    if isinstance(action, Malformed):
        action = parse_action(text, "tools")
    if isinstance(action, Call):
        return f"{action.tool.name} {action.tool.model_dump_json(exclude_none=True)}"
    return action.text if isinstance(action, Command) else "submit"

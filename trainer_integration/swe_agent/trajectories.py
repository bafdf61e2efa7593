"""SWE-agent's trajectories as ours: what its agent saw and did, with the grade that `evaluate` gave its patch.

For reports and fine-tuning (`trajectories show`, `trajectories export-sft`); SWE-agent need not be installed.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout.export import read_trajectories
from minisandbox_ray.rollout.tools.calls import write_call
from minisandbox_ray.rollout.trajectory import Trajectory, TrajectoryFile, Turn


def main(arguments: list[str]) -> None:
    """``import-traj``: write them to DIR/trajectories.jsonl. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="python -m trainer_integration.swe_agent import-traj", description=__doc__)
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="SWE-agent's: ID/ID.traj for each task")
    parser.add_argument("graded", type=Path, metavar="GRADED", help="what `evaluate … --output GRADED` wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write, as a rollout's")
    given = parser.parse_args(arguments)
    with TrajectoryFile(given.out) as file:
        if file.last:
            raise ConfigError(f"{file.path} holds trajectories already: choose another --out")
        for trajectory in graded_trajectories(given.output_dir, given.graded):
            file.append(trajectory)
        print(
            f"{len(file.last)} trajectories, {sum(row.resolved for row in file.last.values())} resolved | {file.path}"
        )


def graded_trajectories(output_dir: Path, graded: Path) -> Iterator[Trajectory]:
    """The graded rows, in which the agent's own turns take the place of the one that applied its patch.

    Tool calls are written as `rollout`'s format ``tools`` has them, other actions as one bash block.
    """
    for row in read_trajectories([graded]):
        path = output_dir / row.instance_id / f"{row.instance_id}.traj"
        try:
            recorded = json.loads(path.read_text(encoding="utf-8"))
            prompt, turns = _read(recorded["history"], [step["execution_time"] for step in recorded["trajectory"]])
        except OSError as error:
            raise ConfigError(f"cannot read the trajectory {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            raise ConfigError(f"{path} is no trajectory of SWE-agent 1.x: {type(error).__name__} {error}") from error
        yield row.model_copy(update={"prompt": prompt, "turns": turns, "policy": f"SWE-agent {output_dir.name}"})


def _read(history: list[dict[str, Any]], seconds: list[float]) -> tuple[str, list[Turn]]:
    """(what the agent was told first, its turns)"""
    messages = [message for message in history if not message.get("is_demo") and message["role"] != "system"]
    first = next(number for number, message in enumerate(messages) if message["role"] == "assistant")
    prompt = "\n".join(_text(message["content"]) for message in messages[:first])
    turns: list[Turn] = []
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            answer = messages[number + 1] if number + 1 < len(messages) else {"role": "assistant"}
            observation = "" if answer["role"] == "assistant" else _text(answer["content"])
            took = seconds[len(turns)] if len(turns) < len(seconds) else 0.0
            turns.append(Turn(action=_action(message), observation=observation, seconds=took))
    return prompt, turns


def _action(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls") or []
    thought = message.get("thought") or ""
    if calls:
        written = [write_call(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
        return "\n\n".join(filter(None, [thought, *written]))
    return f"{thought}\n\n```bash\n{message['action']}\n```".lstrip()


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)

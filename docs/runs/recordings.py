"""The gold fixes as actions of the format `tools`, for `rollout --policy FILE.jsonl`: one line for each task of a file.

    python docs/runs/recordings.py TASKS.jsonl >FILE.jsonl

Each looks for the first line that is wrong (`bash`), makes the fix's changes (`str_replace_editor`), and submits.
"""

import json
import shlex
import sys
from itertools import takewhile

from answers import edits

from minisandbox_ray.tasks import Task, load_tasks


def call(name: str, **arguments: str) -> str:
    """In the notation that `acts: xml` asks for."""
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{given}</function>"


def actions(task: Task) -> list[str]:
    """Model texts, in order."""
    changes = [(path, *shortened(old.splitlines(), new.splitlines())) for path, old, new in edits(task)]
    path, old, new = changes[0]
    wrong = next((line for line in old if line not in new), old[0] if old else path)
    texts = [call("bash", command=f"grep -nF -- {shlex.quote(wrong.strip())} {path}")]
    for path, old, new in changes:
        what = {
            "command": "str_replace",
            "path": f"/testbed/{path}",
            "old_str": "\n".join(old),
            "new_str": "\n".join(new),
        }
        texts.append(call("str_replace_editor", **what))
    return [*texts, call("submit")]


def shortened(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Both without the lines that they share at their beginning and their end, but one."""
    first = max(shared(old, new) - 1, 0)
    old, new = old[first:], new[first:]
    last = max(min(shared(old[::-1], new[::-1]), min(len(old), len(new)) - 1) - 1, 0)
    return old[: len(old) - last], new[: len(new) - last]


def shared(one: list[str], other: list[str]) -> int:
    """How many lines are the same at the beginning of both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


if __name__ == "__main__":
    for task in load_tasks(sys.argv[1]):
        print(json.dumps({"instance_id": task.instance_id, "actions": actions(task)}))

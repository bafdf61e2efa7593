"""A model that knows the answers, as a server of OpenAI's protocol: ``python docs/runs/answers.py TASKS [PORT]``.

It finds its task by the problem statement. Asked with tools (SWE-agent) it looks for a file of the gold fix, views it,
makes each of the fix's changes with `str_replace_editor`, and submits; without (mini-swe-agent) it applies the fix by a
command and submits. Agents are driven by it without a language model, and everything but the model is real.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any, ClassVar

from minisandbox_ray.tasks import Task, load_tasks

SUBMIT = "git diff > /tmp/patch && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat /tmp/patch"


def edits(task: Task) -> list[tuple[str, str, str]]:
    """The gold fix as (path, old text, new text), one for each hunk; a new file's old text is empty."""
    minus, plus = ("-", "+") if task.gold_patch else ("+", "-")
    found: list[tuple[str, str, str]] = []
    path, is_hunk = "", False
    for line in (task.gold_patch or task.patch).removesuffix("\n").split("\n"):
        if line.startswith("diff --git "):
            path, is_hunk = line.rpartition(" b/")[2], False
        elif line.startswith("@@ "):
            found.append((path, "", ""))
            is_hunk = True
        elif is_hunk and not line.startswith("\\"):
            path, old, new = found[-1]
            kind, text = line[:1] or " ", line[1:] + "\n"
            found[-1] = (path, old + text * (kind in (" ", minus)), new + text * (kind in (" ", plus)))
    return found


def tool_calls(task: Task) -> list[tuple[str, dict[str, Any]]]:
    """What SWE-agent's tools are called with, one call a turn."""
    changes = edits(task)
    first = changes[0][0]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("find_file", {"file_name": PurePosixPath(first).name, "dir": "/testbed"}),
        ("str_replace_editor", {"command": "view", "path": f"/testbed/{first}", "view_range": [1, 20]}),
    ]
    for path, old, new in changes:
        place = {"path": f"/testbed/{path}"}
        if old:
            calls.append(("str_replace_editor", {"command": "str_replace", **place, "old_str": old, "new_str": new}))
        else:
            calls.append(("str_replace_editor", {"command": "create", **place, "file_text": new}))
    return calls


def answer(task: Task, turn: int, tools: set[str]) -> dict[str, Any]:
    """The assistant's message of a turn, from 0."""
    if not tools:
        command = [task.gold_command(), SUBMIT][min(turn, 1)]
        return {"role": "assistant", "content": f"So:\n\n```mswea_bash_command\n{command}\n```"}
    calls = [call for call in tool_calls(task) if call[0] in tools]
    name, arguments = calls[turn] if turn < len(calls) else ("submit", {})
    call = {"id": f"call_{turn}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": f"Now {name}.", "tool_calls": [call]}


class Handler(BaseHTTPRequestHandler):
    tasks: ClassVar[list[Task]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        told = "\n".join(_text(message["content"]) for message in request["messages"] if message["role"] == "user")
        known = [task for task in self.tasks if task.problem_statement.strip() in told]
        task = max(known, key=lambda task: len(task.problem_statement))
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        message = answer(task, turn, {tool["function"]["name"] for tool in request.get("tools") or []})
        reason = "tool_calls" if "tool_calls" in message else "stop"
        body = json.dumps(
            {
                "id": f"{task.instance_id}-{turn}",
                "object": "chat.completion",
                "created": 0,
                "model": request["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or [])


if __name__ == "__main__":
    Handler.tasks = load_tasks(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 8765), Handler).serve_forever()

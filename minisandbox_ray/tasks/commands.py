"""The quickstart's action space: shell commands that may fix a task, enumerated without knowing the fix.

For each task the lines that its failing tests run are ranked by suspicion, and every small edit of one such line that
an ordinary slip might call for becomes one `sed` command. Which of them solve a task is found by grading them.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minisandbox_ray.environments import Environment
from minisandbox_ray.sandbox import Limits, Sandbox
from minisandbox_ray.tasks.localise import suspicious_lines
from minisandbox_ray.tasks.mutate import INVERTIBLE, Mutation, mutations
from minisandbox_ray.tasks.source import SourceText, compiles, unified_patch
from minisandbox_ray.tasks.task import Task


@dataclass(frozen=True)
class Candidate:
    """A command, and what it does to its task's tree."""

    command: str
    diff: str


def enumerate_commands(
    task: Task, env: Environment, layer: Path | None, count: int, limits: Limits | None = None
) -> list[Candidate]:
    """Up to `count` commands for a task, the likeliest first. Never reads `task.patch`.

    Each was run: it changes what its `diff` says and nothing else, and ends with status 0 (1 where its text is not).
    """
    lines = suspicious_lines(task, env, layer, limits=limits)
    found: list[Candidate] = []
    with Sandbox(env.sandbox_spec(layer=layer, limits=limits)) as sandbox:
        texts: dict[str, str] = {}
        for path in dict.fromkeys(path for _, (path, _) in lines):
            texts[path] = sandbox.read_file(f"/testbed/{path}").decode()
        for edit in _edits(lines, texts):
            if len(found) == count:
                break
            text = texts[edit.path]
            fixed = edit.apply(text)
            if not compiles(fixed):
                continue
            command = sed_command(edit, text)
            result = sandbox.execute(["bash", "-c", command], cwd="/testbed", timeout=10)
            if result.exit_code == 0 and sandbox.read_file(f"/testbed/{edit.path}") == fixed.encode():
                found.append(Candidate(command, unified_patch(edit.path, text, fixed)))
            sandbox.write_file(f"/testbed/{edit.path}", text.encode())
    return found


def _edits(lines: list[tuple[float, tuple[str, int]]], texts: dict[str, str]) -> Iterator[Mutation]:
    """Edits of one line each: by suspicion; lines of equal suspicion take turns."""
    by_line: dict[tuple[str, int], list[Mutation]] = {}
    for path, text in texts.items():
        for mutation in mutations(path, text, INVERTIBLE):
            if mutation.line == mutation.end_line and "\n" not in mutation.new:
                by_line.setdefault((path, mutation.line), []).append(mutation)
    ranked = []
    for score, place in lines:
        edits = sorted(by_line.get(place, []), key=lambda m: (INVERTIBLE.index(m.operator), m.start, m.new))
        ranked += [(-round(score, 9), turn, place, turn, edit) for turn, edit in enumerate(edits)]
    for *_, edit in sorted(ranked, key=lambda item: item[:4]):
        yield edit


def sed_command(edit: Mutation, text: str) -> str:
    """A shell command that makes a one-line edit, prints the new line, and fails if the old text is not there."""
    source = SourceText(text)
    line, start = source.line(edit.line), source.line_starts[edit.line - 1]
    before, after = line[: edit.start - start], line[edit.end - start :]
    # Whole words around the edit: readable, and seldom found elsewhere on the line.
    left = re.search(r"\S*\s*$", before)
    right = re.match(r"\s*\S*", after)
    assert left and right
    head, tail = left[0], right[0]
    if line.index(head + edit.old + tail) != len(before) - len(head):
        head, tail = before.lstrip(), after.rstrip()
    old, new = head + edit.old + tail, head + edit.new + tail
    mark = next((mark for mark in "/|,#@%!~" if mark not in old + new), "/")
    pattern = re.sub(rf"[\\.*[\]^${mark}]", r"\\\g<0>", old)
    replacement = re.sub(rf"[\\&{mark}]", r"\\\g<0>", new)
    script = f"{edit.line}s{mark}{pattern}{mark}{replacement}{mark}w /dev/stdout"
    # With -i only the special name reaches the terminal; grep turns "nothing was changed" into a status.
    return f"sed -i {shlex.quote(script)} {shlex.quote(edit.path)} | grep ."

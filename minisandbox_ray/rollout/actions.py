"""What a model's text asks for: one fenced bash block, as in mini-swe-agent, or to submit."""

import re
from dataclasses import dataclass

SUBMIT_COMMANDS = frozenset({"submit", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
"""What a block, or the whole text, says to submit; the second is mini-swe-agent's."""

HOW_TO_ACT = (
    "Write exactly one command block:\n\n```bash\nyour command\n```\n\n"
    "To submit your changes and end the task, the block is just:\n\n```bash\nsubmit\n```"
)

SHELLS = frozenset({"bash", "sh", "shell"})


@dataclass(frozen=True)
class Command:
    """Shell commands to run."""

    text: str


@dataclass(frozen=True)
class Submit:
    """The agent says that it is done."""


@dataclass(frozen=True)
class Malformed:
    """Neither a command nor a submission; ``reason`` is for the model."""

    reason: str


def parse_action(text: str) -> Command | Submit | Malformed:
    """The one action in a model's text.

    A block starts with a line of three or more backticks and ``bash``, ``sh`` or nothing, and ends with a line of at
    least as many (so a longer fence may hold shorter ones). Unlabelled blocks count only where there is no labelled
    one; blocks in other languages do not count.
    """
    if text.strip() in SUBMIT_COMMANDS:
        return Submit()
    blocks, is_open = _blocks(text.replace("\r\n", "\n"))
    if is_open:
        return Malformed("The command block is not closed.")
    commands = [content for label, content in blocks if label in SHELLS]
    commands = commands or [content for label, content in blocks if not label]
    if len(commands) != 1:
        return Malformed(f"Found {len(commands)} command blocks." if commands else "Found no command block.")
    command = commands[0]
    if command.strip() in SUBMIT_COMMANDS:
        return Submit()
    if not command.strip():
        return Malformed("The command block is empty.")
    return Command(command)


def _blocks(text: str) -> tuple[list[tuple[str, str]], bool]:
    """Fenced blocks as (label, content), and whether the last one lacks its end."""
    blocks: list[tuple[str, str]] = []
    lines: list[str] = []
    fence = label = ""
    for line in text.split("\n"):
        if fence:
            if re.fullmatch(rf"{fence}`*\s*", line):
                blocks.append((label, "\n".join(lines)))
                fence = ""
            else:
                lines.append(line)
        elif opening := re.fullmatch(r"(`{3,})\s*([^`\s]*)[^`]*", line):
            fence, label, lines = opening[1], opening[2].lower(), []
    return blocks, bool(fence)

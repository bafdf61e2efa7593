"""What a model's text asks for: one fenced bash block, as in mini-swe-agent, or one call of a tool, as in SWE-agent."""

import re
from dataclasses import dataclass
from typing import Literal

from minisandbox_ray.rollout.tools import DEFAULT_TOOLS, Bash, CallError, SubmitTool, Tool, load_tools, parse_call

ActionFormat = Literal["bash", "tools"]

SUBMIT_COMMANDS = frozenset({"submit", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
"""What a block, or the whole text, says to submit; the second is mini-swe-agent's."""

HOW_TO_ACT = (
    "Write exactly one command block:\n\n```bash\nyour command\n```\n\n"
    "To submit your changes and end the task, the block is just:\n\n```bash\nsubmit\n```"
)

HOW_TO_CALL = (
    "Please make sure your output includes exactly _ONE_ function call:\n\n<function=bash>\n"
    "<parameter=command>your command</parameter>\n</function>\n\n"
    "If you think you have already resolved the issue, please submit your changes by calling `submit`:\n\n"
    "<function=submit>\n</function>"
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
class Call:
    """A tool to use, other than the shell."""

    tool: Tool


@dataclass(frozen=True)
class Malformed:
    """Neither a command nor a submission; ``reason`` is for the model."""

    reason: str


def parse_action(
    text: str, action_format: ActionFormat = "bash", tools: tuple[str, ...] = DEFAULT_TOOLS
) -> Command | Submit | Call | Malformed:
    """The one action in a model's text.

    In ``tools`` it is the call of a tool, see `parse_call`; a text without any sign of one may have a block labelled as
    bash, as scripted policies and gold fixes do. In ``bash`` it is a fenced block.

    A block starts with a line of three or more backticks and ``bash``, ``sh`` or nothing, and ends with a line of at
    least as many (so a longer fence may hold shorter ones). Unlabelled blocks count only where there is no labelled
    one; blocks in other languages do not count.
    """
    if text.strip() in SUBMIT_COMMANDS:
        return Submit()
    if action_format == "tools":
        return _called(text, tools)
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


def _called(text: str, tools: tuple[str, ...]) -> Command | Submit | Call | Malformed:
    try:
        tool = parse_call(text, load_tools(tools))
    except CallError as error:
        return Malformed(str(error))
    if isinstance(tool, Bash):
        return Submit() if tool.command.strip() in SUBMIT_COMMANDS else Command(tool.command)
    if isinstance(tool, SubmitTool):
        return Submit()
    if tool is not None:
        return Call(tool)
    blocks, _ = _blocks(text.replace("\r\n", "\n"))
    scripted = parse_action(text) if any(label in SHELLS for label, _ in blocks) else None
    if scripted is None or isinstance(scripted, Malformed):
        return Malformed("Your last output did not use any tool calls!")
    return scripted


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

"""What the agent reads after an action."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from minisandbox_ray.rollout.actions import HOW_TO_ACT, HOW_TO_CALL, ActionFormat, Malformed
from minisandbox_ray.sandbox import CommandResult

LIMIT_NOTES = {
    "wall_time": "The sandbox's time is up.",
    "memory": "The sandbox ran out of memory.",
    "pids": "The sandbox ran out of processes.",
    "disk": "The sandbox ran out of disk space.",
    "cpu": "The command was slowed down by the sandbox's limit on processor time.",
    "output": "The middle of the output was cut.",
}


@dataclass(frozen=True)
class Style:
    """How observations are written; `EpisodeConfig` says more of each."""

    action_format: ActionFormat = "bash"
    template: str = ""
    reminder_from: int | None = None


PLAIN = Style()


def of_command(result: CommandResult, chars: int, turns_left: int, style: Style = PLAIN) -> str:
    """Exit code and output (at most ``chars`` characters of it), and what happened besides."""
    notes = [LIMIT_NOTES[result.limit]] if result.limit else []
    if result.timed_out:
        notes.append(f"The command was ended after {result.seconds:.0f} s: it took too long.")
    if result.restarted:
        notes.append("The shell ended and was restarted: directory and exported variables were kept.")
    output = cut(result.output, chars)
    if style.template:
        return _rendered(style, turns_left, output=output, exit_code=result.exit_code, notes=notes)
    parts = [
        f"<returncode>{result.exit_code}</returncode>",
        f"<output>\n{output.rstrip()}\n</output>",
    ]
    return _with_notes([*parts, *notes], turns_left, style)


def of_tool(text: str, chars: int, turns_left: int, style: Style = PLAIN) -> str:
    """What a tool says (at most ``chars`` characters of it)."""
    if style.template:
        return _rendered(style, turns_left, output=cut(text, chars), exit_code=None, notes=[])
    return _with_notes([cut(text, chars).rstrip()], turns_left, style)


def of_malformed(action: Malformed, turns_left: int, style: Style = PLAIN) -> str:
    """How to write an action."""
    how = HOW_TO_CALL if style.action_format == "tools" else HOW_TO_ACT
    return _with_notes([action.reason, how], turns_left, style)


def _with_notes(parts: list[str], turns_left: int, style: Style) -> str:
    reminder = _reminder(turns_left, style)
    return "\n".join([*parts, reminder] if reminder else parts)


def _reminder(turns_left: int, style: Style) -> str:
    if style.reminder_from is not None and turns_left > style.reminder_from:
        return ""
    return "This was the last turn." if turns_left == 0 else f"Turns left: {turns_left}."


def _rendered(style: Style, turns_left: int, **values: Any) -> str:
    return render(style.template, turns_left=turns_left, reminder=_reminder(turns_left, style), **values)


def render(template: str, **values: Any) -> str:
    """A prompt with its values in place: a Jinja template as in SWE-agent and mini-swe-agent (it has ``{{`` or ``{%``),
    or a text in which ``{name}`` stands for a value.

    Raises ValueError for a template that is none, that names an unknown variable, or without the package jinja2.
    """
    if "{{" in template or "{%" in template:
        from jinja2 import TemplateError

        try:
            return compiled(template).render(values)
        except TemplateError as error:
            raise ValueError(f"the template cannot be rendered: {error}") from error
    return re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), template)


@lru_cache(maxsize=64)
def compiled(template: str) -> Any:
    """The Jinja template. Raises ValueError."""
    try:
        from jinja2 import Environment, StrictUndefined, TemplateError
    except ImportError as error:
        raise ValueError("a template with {{ or {% needs the package jinja2: pip install jinja2") from error
    try:
        return Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(template)
    except TemplateError as error:
        raise ValueError(f"the template is none: {error}") from error


def cut(text: str, chars: int) -> str:
    """The text, or its first and last ``chars / 2`` characters around a mark that says how much is missing."""
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"

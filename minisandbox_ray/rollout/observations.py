"""What the agent reads after an action."""

from minisandbox_ray.rollout.actions import HOW_TO_ACT, Malformed
from minisandbox_ray.sandbox import CommandResult

LIMIT_NOTES = {
    "wall_time": "The sandbox's time is up.",
    "memory": "The sandbox ran out of memory.",
    "pids": "The sandbox ran out of processes.",
    "disk": "The sandbox ran out of disk space.",
    "cpu": "The command was slowed down by the sandbox's limit on processor time.",
    "output": "The middle of the output was cut.",
}


def of_command(result: CommandResult, chars: int, turns_left: int) -> str:
    """Exit code and output (at most ``chars`` characters of it), and what happened besides."""
    notes = [LIMIT_NOTES[result.limit]] if result.limit else []
    if result.timed_out:
        notes.append(f"The command was ended after {result.seconds:.0f} s: it took too long.")
    if result.restarted:
        notes.append("The shell ended and was restarted: directory and exported variables were kept.")
    parts = [
        f"<returncode>{result.exit_code}</returncode>",
        f"<output>\n{cut(result.output, chars).rstrip()}\n</output>",
    ]
    return _with_notes(parts, notes, turns_left)


def of_malformed(action: Malformed, turns_left: int) -> str:
    """How to write an action."""
    return _with_notes([action.reason, HOW_TO_ACT], [], turns_left)


def _with_notes(parts: list[str], notes: list[str], turns_left: int) -> str:
    left = "This was the last turn." if turns_left == 0 else f"Turns left: {turns_left}."
    return "\n".join([*parts, *notes, left])


def cut(text: str, chars: int) -> str:
    """The text, or its first and last ``chars / 2`` characters around a mark that says how much is missing."""
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"

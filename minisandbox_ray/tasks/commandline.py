"""What a test command starts."""

import re
from pathlib import PurePosixPath


def split_settings(command: list[str]) -> tuple[dict[str, str], list[str]]:
    """(variables that env sets, the rest of the command)"""
    words = list(command)
    settings: dict[str, str] = {}
    if words and PurePosixPath(words[0]).name == "env":
        words.pop(0)
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            name, _, value = words.pop(0).partition("=")
            settings[name] = value
    return settings, words


def is_pytest(command: list[str]) -> bool:
    """Whether a command starts pytest, perhaps by way of env or python -m."""
    names = [PurePosixPath(word).name for word in split_settings(command)[1]]
    if names and names[0].startswith("python") and "-m" in names:
        names = names[names.index("-m") + 1 :]
    return bool(names) and names[0] in {"pytest", "py.test"}

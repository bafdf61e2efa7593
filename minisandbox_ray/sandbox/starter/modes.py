"""How a session's terminal is set: the first process before its shell starts, the host before each step."""

import termios
from typing import Any

_IUTF8 = 0o40000


def reset(terminal: int, characters: list[Any] | None = None, when: int = termios.TCSANOW) -> list[Any]:
    """Lines, signals, no echo, output untouched; whatever a program did to it. -> control characters"""
    modes = termios.tcgetattr(terminal)
    modes[0], modes[1] = termios.ICRNL | _IUTF8, 0
    modes[2] = termios.CS8 | termios.CREAD | termios.B38400
    modes[3] = termios.ISIG | termios.ICANON | termios.IEXTEN
    if characters:
        modes[6] = characters
    termios.tcsetattr(terminal, when, modes)
    return modes[6]

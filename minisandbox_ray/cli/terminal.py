"""What others wrote (agents, data sets, names of files), as a terminal may show it."""

import unicodedata

from rich.table import Table
from rich.text import Text

_KEPT = "\n\t\u200c\u200d"  # besides lines and tabs, what joins letters and emoji
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def plain(text: str) -> str:
    """The text with what a terminal obeys, or turns round, written as Python writes it: ``\\x1b``, ``\\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _HIDDEN and char not in _KEPT else char
        for char in text
    )


def literal(text: str) -> Text:
    """The same for Rich, which finds no markup in it."""
    return Text(plain(text))


def add_row(table: Table, *cells: str) -> None:
    """A row of such texts."""
    table.add_row(*(literal(cell) for cell in cells))

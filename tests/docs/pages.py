"""What the pages of docs/ hold: fenced blocks, headings."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    language: str
    note: str
    """What stands after the language: a file's name; of bash `runs`, or `needs` and what."""
    text: str


def pages() -> list[str]:
    """Their names, in the order of the index."""
    return re.findall(r"\]\((\w[\w-]*)\.md\)", (DOCS / "README.md").read_text())


def blocks(page: str) -> list[Block]:
    return [Block(page, *found) for found in _BLOCK.findall((DOCS / f"{page}.md").read_text())]

"""Python source text addressed by syntax-tree nodes, and unified patches between two texts.

The syntax tree counts columns in UTF-8 bytes and lines as the tokenizer does; Python strings count characters and
``str.splitlines`` also splits at form feeds. Everything here works on character offsets into the unchanged text, so
that an edit touches only its own span: comments, line ends and encoding oddities around it stay as they are.
"""

import ast
import difflib
import re
import warnings
from functools import cached_property


class SourceText:
    """One file's text, its lines, its tree, and the spans of the tree's nodes."""

    def __init__(self, text: str):
        self.text = text

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree. Raises SyntaxError if the text does not parse."""
        return ast.parse(self.text)

    @cached_property
    def line_starts(self) -> list[int]:
        """Character offset of each line's first character; line numbers count from 1, this list from 0."""
        return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", self.text))]

    def offset(self, lineno: int, column: int) -> int:
        """Character offset of a tree position (line from 1, column in UTF-8 bytes from 0)."""
        start = self.line_starts[lineno - 1]
        # A character is at least one byte, so `column` characters always cover `column` bytes.
        head = self.text[start : start + column].encode("utf-8", "surrogatepass")[:column]
        return start + len(head.decode("utf-8", "surrogatepass"))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Character offsets [start, end) of a node."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """A node's text."""
        start, end = self.span(node)
        return self.text[start:end]

    def line_of(self, offset: int) -> int:
        """Line number, from 1, of a character offset."""
        low, high = 0, len(self.line_starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.line_starts[middle] <= offset else (low, middle)
        return low + 1

    def line(self, lineno: int) -> str:
        """A line's text without its line end."""
        start = self.line_starts[lineno - 1]
        end = self.line_starts[lineno] if lineno < len(self.line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")


def compiles(text: str) -> bool:
    """Whether a text is a valid Python module for this interpreter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "<source>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


def unified_patch(path: str, old: str, new: str) -> str:
    """A git-style patch of one file. `old` and `new` are its whole texts; empty if they are equal."""
    if old == new:
        return ""
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{path}", f"b/{path}")
    body = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return f"diff --git a/{path} b/{path}\n{body}"


def _lines(text: str) -> list[str]:
    # Only at "\n", as git does.
    return [line for line in re.split(r"(?<=\n)", text) if line]

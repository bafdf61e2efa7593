"""The editor that models know as str_replace_editor: commands and messages of Anthropic's public one, in SWE-agent's
version (github.com/SWE-agent/SWE-agent, tools/edit_anthropic).

It differs where that one does harm: tabs, the ends of lines and bytes that are not UTF-8 stay as they are in the file,
and in what is shown; a directory's names come in order. Files are read and written through the sandbox, links resolved
inside it.
"""

import errno
import json
import re
from collections import deque
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from minisandbox_ray.rollout.tools.base import Machine, Tool, ToolError

LARGEST = 8 << 20
"""Bytes of a file that is read or written."""
REMEMBERED = 32 << 20
"""Bytes of earlier contents that an episode keeps for undo_edit; the oldest go first."""
SNIPPET_LINES = 4
CLIPPED = (
    "<response clipped><NOTE>To save on context only part of this file has been shown to you. You should retry this "
    "tool after you have searched inside the file with `grep -n` in order to find the line numbers of what you are "
    "looking for.</NOTE>"
)


class StrReplaceEditor(Tool):
    """Custom editing tool for viewing, creating and editing files
    * State is persistent across command calls and discussions with the user
    * If `path` is a file, `view` displays the result of applying `cat -n`. If `path` is a directory, `view` lists \
non-hidden files and directories up to 2 levels deep
    * The `create` command cannot be used if the specified `path` already exists as a file
    * If a `command` generates a long output, it will be truncated and marked with `<response clipped>`
    * The `undo_edit` command will revert the last edit made to the file at `path`

    Notes for using the `str_replace` command:
    * The `old_str` parameter should match EXACTLY one or more consecutive lines from the original file. Be mindful of \
whitespaces!
    * If the `old_str` parameter is not unique in the file, the replacement will not be performed. Make sure to \
include enough context in `old_str` to make it unique
    * The `new_str` parameter should contain the edited lines that should replace the `old_str`
    """

    name: ClassVar[str] = "str_replace_editor"
    aliases: ClassVar[tuple[str, ...]] = ("str_replace_based_edit_tool",)

    command: Literal["view", "create", "str_replace", "insert", "undo_edit"] = Field(
        description="The commands to run. Allowed options are: `view`, `create`, `str_replace`, `insert`, `undo_edit`."
    )
    path: str = Field(description="Absolute path to file or directory, e.g. `/testbed/file.py` or `/testbed`.")
    file_text: str | None = Field(
        None, description="Required parameter of `create` command, with the content of the file to be created."
    )
    old_str: str | None = Field(
        None, description="Required parameter of `str_replace` command containing the string in `path` to replace."
    )
    new_str: str | None = Field(
        None,
        description="Optional parameter of `str_replace` command containing the new string (if not given, no string "
        "will be added). Required parameter of `insert` command containing the string to insert.",
    )
    insert_line: int | None = Field(
        None,
        description="Required parameter of `insert` command. The `new_str` will be inserted AFTER the line "
        "`insert_line` of `path`.",
    )
    view_range: list[int] | None = Field(
        None,
        description="Optional parameter of `view` command when `path` points to a file. If none is given, the full "
        "file is shown. If provided, the file will be shown in the indicated line number range, e.g. [11, 12] will "
        "show lines 11 and 12. Indexing at 1 to start. Setting `[start_line, -1]` shows all lines from `start_line` "
        "to the end of the file.",
    )

    @field_validator("view_range", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value.strip() else None
        except ValueError:
            raise ValueError(f"view_range must be in the format [<start>, <end>], got {value}") from None

    def use(self, machine: Machine) -> str:
        """See Tool."""
        file = _File(machine, self.path)
        match self.command:
            case "view":
                return self._view(file)
            case "create":
                return self._create(file)
            case "str_replace":
                return self._str_replace(file)
            case "insert":
                return self._insert(file)
            case "undo_edit":
                return self._undo_edit(file)

    def _needed(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise ToolError(f"Parameter `{name}` is required for command: {self.command}")
        return value

    def _view(self, file: "_File") -> str:
        if file.is_directory():
            if self.view_range:
                raise ToolError("The `view_range` parameter is not allowed when `path` points to a directory.")
            return file.listing()
        lines = file.read().split("\n")
        first, last = 1, len(lines)
        if self.view_range:
            first, last = _range(self.view_range, len(lines))
        return file.numbered("\n".join(lines[first - 1 : last]), str(file), first)

    def _create(self, file: "_File") -> str:
        if file.exists():
            raise ToolError(f"File already exists at: {file}. Cannot overwrite files using command `create`.")
        text = self._needed("file_text")
        parent = _File(file.machine, str(PurePosixPath(self.path).parent))
        if not parent.exists():
            raise ToolError(f"The parent directory {parent} does not exist. Please create it first.")
        file.write(text)
        file.remember(text)
        return f"File created successfully at: {file}"

    def _str_replace(self, file: "_File") -> str:
        text = file.text()
        old, new = self._needed("old_str"), self.new_str or ""
        if old and old not in text and "\r\n" in text:
            old, new = _with_crlf(old), _with_crlf(new)
        count = text.count(old) if old else 0
        if not old:
            raise ToolError("No replacement was performed, `old_str` is empty.")
        if count == 0:
            raise ToolError(f"No replacement was performed, old_str `{old}` did not appear verbatim in {file}.")
        if count > 1:
            starts = [found.start() for found in re.finditer(re.escape(old), text)]
            lines = [text.count("\n", 0, start) + 1 for start in starts[:100]]
            raise ToolError(
                f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines {lines}. Please "
                "ensure it is unique"
            )
        if new == old:
            raise ToolError(f"No replacement was performed, old_str `{old}` is the same as new_str `{new}`.")
        before = text.partition(old)[0].count("\n")
        edited = text.replace(old, new)
        file.write(edited)
        file.remember(text)
        first = max(1, before - SNIPPET_LINES)
        lines_after = edited.split("\n")
        snippet = "\n".join(lines_after[first - 1 : before + SNIPPET_LINES + new.count("\n")])
        return (
            f"The file {file} has been edited. {file.numbered(snippet, f'a snippet of {file}', first)}"
            "Review the changes and make sure they are as expected. Edit the file again if necessary."
        )

    def _insert(self, file: "_File") -> str:
        text = file.text()
        at, new = self._needed("insert_line"), self._needed("new_str")
        if "\r\n" in text:
            new = _with_crlf(new)
        lines = text.split("\n")
        if not 0 <= at <= len(lines):
            raise ToolError(
                f"Invalid `insert_line` parameter: {at}. It should be within the range of lines of the file: "
                f"{[0, len(lines)]}"
            )
        added = new.split("\n")
        if "\r\n" in text:
            added = [*added[:-1], added[-1] + "\r"]
        edited = [*lines[:at], *added, *lines[at:]]
        file.write("\n".join(edited))
        file.remember(text)
        first = max(0, at - SNIPPET_LINES)
        snippet = "\n".join(edited[first : at + len(added) + SNIPPET_LINES])
        return (
            f"The file {file} has been edited. {file.numbered(snippet, 'a snippet of the edited file', first + 1)}"
            "Review the changes and make sure they are as expected (correct indentation, no duplicate lines, etc). "
            "Edit the file again if necessary."
        )

    def _undo_edit(self, file: "_File") -> str:
        file.text()
        text = file.recall()
        if text is None:
            raise ToolError(f"No edit history found for {file}.")
        file.write(text)
        return f"Last edit to {file} undone successfully. {file.numbered(text, str(file))}"


class _File:
    """A path inside the sandbox."""

    def __init__(self, machine: Machine, path: str) -> None:
        self.machine = machine
        self._path = path
        if not path.startswith("/"):
            maybe = PurePosixPath(machine.sandbox.spec.cwd, path)
            raise ToolError(
                f"The path {path} is not an absolute path, it should start with `/`. Maybe you meant {maybe}?"
            )

    def __str__(self) -> str:
        return self._path

    def _read(self, most: int) -> bytes:
        """Raises OSError, IsADirectoryError for a directory."""
        try:
            return self.machine.sandbox.read_file(self._path, most)
        except ValueError as error:
            raise ToolError(f"The path {self._path!r} is none: {error}") from error

    def exists(self) -> bool:
        try:
            self._read(0)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def is_directory(self) -> bool:
        try:
            self._read(0)
        except IsADirectoryError:
            return True
        except OSError:
            return False
        return False

    def text(self) -> str:
        """Bytes that are not UTF-8 are surrogate escapes."""
        try:
            return self._read(LARGEST).decode("utf-8", "surrogateescape")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ToolError(f"The path {self} does not exist. Please provide a valid path.") from error
        except IsADirectoryError as error:
            raise ToolError(
                f"The path {self} is a directory and only the `view` command can be used on directories"
            ) from error
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise ToolError(
                    f"The file {self} is larger than {LARGEST >> 20} MiB: look at parts of it with the shell"
                ) from error
            raise ToolError(f"Ran into {error.strerror} while trying to read {self}") from error

    def read(self) -> str:
        """To be shown."""
        return self.text().replace("\r\n", "\n")

    def write(self, text: str) -> None:
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ToolError(f"Ran into {error.reason} while trying to write to {self}") from error
        if len(data) > LARGEST:
            raise ToolError(f"The file {self} would be larger than {LARGEST >> 20} MiB: nothing was written")
        try:
            self.machine.sandbox.write_file(self._path, data)
        except OSError as error:
            raise ToolError(f"Ran into {error.strerror} while trying to write to {self}") from error

    def _history(self) -> deque[tuple[str, str]]:
        found = self.machine.memory.setdefault(StrReplaceEditor.name, deque())
        assert isinstance(found, deque)
        return found

    def remember(self, text: str) -> None:
        """What it was before an edit; or, as the original has it, what it was created as."""
        history = self._history()
        history.append((self._path, text))
        size = sum(len(each) for _, each in history)
        while size > REMEMBERED:
            size -= len(history.popleft()[1])

    def recall(self) -> str | None:
        history = self._history()
        for at in range(len(history) - 1, -1, -1):
            if history[at][0] == self._path:
                text = history[at][1]
                del history[at]
                return text
        return None

    def numbered(self, text: str, what: str, first: int = 1) -> str:
        """Lines as ``cat -n`` writes them."""
        text = re.sub("[\udc80-\udcff]", "\ufffd", text.replace("\r\n", "\n").removesuffix("\r"))
        lines = text[: self.machine.chars].split("\n")
        shown = "\n".join(f"{first + at:6}\t{line}" for at, line in enumerate(lines))
        if len(text) > self.machine.chars or len(shown) > self._room():
            shown = shown[: self._room()] + CLIPPED
        return f"Here's the result of running `cat -n` on {what}:\n{shown}\n"

    def _room(self) -> int:
        """Characters of an answer beside what is said around it: the episode need not cut it again."""
        return max(100, self.machine.chars - len(CLIPPED) - len(self._path) * 2 - 300)

    def listing(self) -> str:
        """Of a directory."""
        result = self.machine.sandbox.execute(
            ["find", "-H", self._path, "-maxdepth", "2", "-not", "-path", r"*/\.*"],
            timeout=self.machine.timeout,
            max_output=4 * self.machine.chars,
        )
        names = "\n".join(sorted(result.stdout.decode("utf-8", "replace").splitlines()))
        if len(names) > self._room():
            names = names[: self._room()] + CLIPPED
        return f"Here's the files and directories up to 2 levels deep in {self}, excluding hidden items:\n{names}\n"


def _range(asked: list[int], count: int) -> tuple[int, int]:
    """First and last line, from 1. Raises ToolError."""
    if len(asked) != 2:
        raise ToolError("Invalid `view_range`. It should be a list of two integers.")
    first, last = asked
    if not 1 <= first <= count:
        raise ToolError(
            f"Invalid `view_range`: {asked}. Its first element `{first}` should be within the range of lines of the "
            f"file: {[1, count]}"
        )
    if last > count:
        raise ToolError(
            f"Invalid `view_range`: {asked}. Its second element `{last}` should be smaller than the number of lines in "
            f"the file: `{count}`"
        )
    if last != -1 and last < first:
        raise ToolError(
            f"Invalid `view_range`: {asked}. Its second element `{last}` should be larger or equal than its first "
            f"`{first}`"
        )
    return first, count if last == -1 else last


def _with_crlf(text: str) -> str:
    return re.sub("\r?\n", "\r\n", text)

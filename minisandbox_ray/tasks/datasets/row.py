"""One row of a data set, read field by field; what is wrong with it is told by field."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

_SHOWN = 80  # characters of a bad value in a reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row or task folder is left out."""

    instance_id: str
    """The row's, or "row 17" (from 1) for one without; a folder's name."""
    field: str
    """Column, or file of a task folder and key in it; empty if the row itself is not one."""
    reason: str
    """One line."""

    def __str__(self) -> str:
        return f"{self.instance_id}: {self.field + ': ' if self.field else ''}{self.reason}"


class BadRowError(Exception):
    """A row cannot become a task. Never leaves this package: it becomes a `Refusal`."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason = field, reason


class Row:
    """Typed access to the columns. Every method raises BadRowError with the field's name."""

    def __init__(self, columns: Mapping[str, Any], name: str) -> None:
        self.columns = columns
        """As they were read."""
        self.instance_id = self.text("instance_id") or name
        """The column, else `name`."""

    def text(self, field: str) -> str:
        """A string; "" if the column or its value is missing. Numbers and dates become text."""
        value = self.columns.get(field)
        if value is None:
            return ""
        if isinstance(value, date):  # datetimes are dates
            return value.isoformat()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise BadRowError(field, f"expected text, found {shown(value)}")
        return value

    def needed(self, field: str) -> str:
        """A string that is not empty."""
        value = self.text(field)
        if not value.strip():
            raise BadRowError(field, "is missing")
        return value

    def repository(self, field: str = "repo") -> str:
        """owner/name."""
        value = self.needed(field)
        if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", value) or set(value.split("/")) & {".", ".."}:
            raise BadRowError(field, f"expected owner/name, found {shown(value)}")
        return value

    def commit(self, field: str, optional: bool = False) -> str:
        """A commit id, whole or abbreviated."""
        value = self.text(field) if optional else self.needed(field)
        if value and not re.fullmatch(r"[0-9a-f]{7,64}", value):
            raise BadRowError(field, f"expected a commit id, found {shown(value)}")
        return value

    def patch(self, field: str) -> str:
        """A git patch; "" if the column is empty. Raises BadRowError for one that changes no file."""
        value = self.text(field)
        if value.strip() and not re.search(r"^(diff --git |--- )", value, re.MULTILINE):
            raise BadRowError(field, f"is no patch: {shown(value)}")
        return value if value.strip() else ""

    def tests(self, field: str, needed: bool = False) -> list[str]:
        """Test ids: a list, or the JSON text of one."""
        value = self.columns.get(field)
        if isinstance(value, str):
            value = self.json(field)
        if value is None and not needed:
            return []
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise BadRowError(field, f"expected a list of test ids, or JSON of one, found {shown(value)}")
        if needed and not value:
            raise BadRowError(field, "is empty: no test tells whether the task is solved")
        return value

    def json(self, field: str) -> Any:
        """What a column of JSON text says; a value that is none comes as it is."""
        value = self.columns.get(field)
        if value is None:
            raise BadRowError(field, "is missing")
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRowError(field, f"is not JSON: {error}: {shown(value)}") from error

    def rest(self, known: set[str]) -> dict[str, Any]:
        """The columns besides those, as far as JSON has them: a task keeps them as they are."""
        rest = {name: value for name, value in self.columns.items() if name not in known and value is not None}
        return {name: value for name, value in rest.items() if _is_json(value)}


def shown(value: Any) -> str:
    """A value for a message: one line, bounded."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True

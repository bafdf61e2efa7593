"""Files of a sandbox, kept for later."""

import os
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from .spec import SandboxSpec


@dataclass(frozen=True, slots=True)
class SessionState:
    """What of a session another shell can begin with."""

    cwd: str
    env: dict[str, str]
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a new sandbox starts from instead of the spec alone."""

    descriptors: tuple[int, int]
    """The root, and what was written to overlays."""
    since: int = 0
    """Files that have not changed since (nanoseconds after the epoch) are as in every new sandbox."""
    sessions: dict[str, SessionState] = field(default_factory=dict)


class Snapshot:
    """All files that a sandbox had written, and each session's directory and exported variables.

    It is kept in memory (as much as the sandbox's files took, counted as this process's) until it is closed. The
    sandbox may be closed before.
    """

    def __init__(self, spec: SandboxSpec, descriptors: list[int], sessions: dict[str, SessionState]) -> None:
        self.spec = spec
        root, layers = descriptors
        self.origin = Origin((root, layers), 0, sessions)
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for descriptor in self.origin.descriptors:
                    os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

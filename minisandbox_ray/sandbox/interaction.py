"""An interactive program as a session's step: type to it, wait for what it prints."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from minisandbox_ray.errors import Owner, SandboxError

from .capture import Capture
from .session import Running, Session, Step
from .spec import CommandResult
from .times import seconds

_KEPT = 256 << 10  # bytes of output that matched nothing yet
_INTERRUPT, _END_OF_FILE = b"\x03", b"\x04"

Pattern = str | bytes | re.Pattern[str] | re.Pattern[bytes]
"""A string is looked for as it is, a compiled expression as one. `$` also matches where the output ends so far."""


@dataclass(frozen=True, slots=True)
class Match:
    """What was expected, and came."""

    index: int
    """Which of the patterns."""
    text: str
    """What matched."""
    before: str
    """What was printed between the last match and this one, as it came; its end, if it was more than 256 KiB."""
    groups: tuple[str | bytes | None, ...] = ()
    """Of an expression."""


class InteractionTimeoutError(SandboxError):
    """What was waited for did not come in time; the program runs on."""

    owner: Owner = "agent"

    def __init__(self, message: str, before: str) -> None:
        super().__init__(message)
        self.before = before
        """What was printed since the last match."""


class ProgramEndedError(SandboxError):
    """The program ended before what was waited for came."""

    owner: Owner = "agent"

    def __init__(self, message: str, before: str, result: CommandResult) -> None:
        super().__init__(message)
        self.before = before
        """What was printed since the last match."""
        self.result = result


class Interaction:
    """Holds its session until the program has ended; `close`, or leaving the `with` block, ends it.

    The terminal does not echo: programs that edit lines (python3, gdb, bash) show what is typed by themselves. Every
    method raises SandboxError once the sandbox or the session is closed.
    """

    def __init__(
        self,
        session: Session,
        command: str,
        *,
        timeout: float,
        output_limit: int,
        in_use: Callable[[], AbstractContextManager[None]],
        as_result: Callable[[Step], CommandResult],
    ) -> None:
        self._session, self._in_use, self._as_result = session, in_use, as_result
        self._timeout = seconds(timeout, "timeout")
        self._unmatched, self._dropped = bytearray(), 0
        self._patterns: list[Pattern] = []
        self._found: Match | None = None
        self._result: CommandResult | None = None
        self._running = Running(command, Capture(output_limit), self._take, thread=None)
        session.begin(self._running)
        session.pause()

    def expect(self, pattern: Pattern | Sequence[Pattern], timeout: float | None = None) -> Match:
        """Wait until a pattern is in what was printed since the last match; the earliest there, then in the list.

        `timeout` in seconds (default: the interaction's). Raises InteractionTimeoutError, and ProgramEndedError if the
        program ends first.
        """
        patterns = (
            list(pattern) if isinstance(pattern, Sequence) and not isinstance(pattern, str | bytes) else [pattern]
        )
        if not patterns:
            raise ValueError("there is no pattern to expect")
        for one in patterns:
            if not isinstance(one, str | bytes | re.Pattern) or not one:
                raise ValueError(f"{one!r} is no pattern: a string that is not empty, or a compiled expression")
        with self._in_use(), self._running.turn:
            self._patterns, self._found = patterns, None
            try:
                if not self._search():
                    self._wait(timeout)
                if found := self._found:
                    return found
            finally:
                self._patterns, self._found = [], None
            wanted = " or ".join(repr(one.pattern if isinstance(one, re.Pattern) else one) for one in patterns)
            if self._running.step:
                raise self._ended(f"{wanted:.200} did not come: the program ended")
            raise self._late(f"{wanted:.200} did not come", timeout)

    def send(self, text: str | bytes) -> None:
        """Type; as many lines as you like, but the terminal cuts one that is longer than 4095 bytes.

        Raises InteractionTimeoutError if nobody reads, ProgramEndedError if the program has ended.
        """
        left = memoryview(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
        with self._in_use(), self._running.turn:
            self._wait(0)
            deadline = time.monotonic() + self._timeout
            while left:
                if self._running.step:
                    raise self._ended("nothing reads what is typed: the program ended")
                written = self._session.type(left[:1024])
                left = left[written:]
                if not written:
                    if time.monotonic() > deadline:
                        raise self._late("the program does not read what is typed", None)
                    self._wait(0.01)
            if self._running.step:
                raise self._ended("nothing reads what is typed: the program ended")

    def send_line(self, text: str | bytes = "") -> None:
        """Type, and a newline."""
        self.send(text + "\n" if isinstance(text, str) else text + b"\n")

    def interrupt(self) -> None:
        """Type Ctrl-C: an INT signal to what is in the foreground, unless that has turned such keys off."""
        with self._in_use():
            self._session.type(_INTERRUPT)

    def send_eof(self) -> None:
        """Type Ctrl-D: at the start of a line, the end of the program's input.

        Expect the prompt first of a program that edits lines: it loses such a key that comes before.
        """
        self.send(_END_OF_FILE)

    def resize(self, rows: int, columns: int) -> None:
        """Tell the program the size of the window, in characters."""
        with self._in_use():
            self._session.resize(rows, columns)

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Until the program ends by itself; -> what it gave. Raises InteractionTimeoutError."""
        with self._in_use(), self._running.turn:
            self._wait(timeout)
            if not self._running.step:
                raise self._late("the program did not end", timeout)
            return self._final()

    def close(self) -> None:
        """End the program as a limit on time does, if it still runs; the shell stays. Idempotent."""
        try:
            with self._in_use(), self._running.turn:
                if not self._running.step:
                    self._session.stop(self._running)
        except SandboxError:  # the session or the sandbox is closed
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _wait(self, timeout: float | None) -> None:
        """Until the program ends, a pattern is found, or the time is over; by who has the turn."""
        running, session = self._running, self._session
        if running.step:
            return
        limit = self._timeout if timeout is None else seconds(timeout, "timeout")
        try:
            session.resume(running)
            if self._found:
                session.pause()
                return
            ending = session.advance(running, time.monotonic() + limit, float("inf"))
            if ending in ("time", "enough"):
                session.pause()
            else:
                session.conclude(running, ending)
                self._search()
        except Exception:
            session.abandon(running)
            raise
        except BaseException:  # Ctrl-C at the caller's own terminal: the program runs on
            session.pause()
            raise

    def _take(self, data: bytes) -> bool:
        self._running.capture.add(data)
        self._unmatched += data
        if len(self._unmatched) > 2 * _KEPT:
            self._dropped += len(self._unmatched) - _KEPT
            del self._unmatched[:-_KEPT]
        return self._search()

    def _search(self) -> bool:
        """Look for the patterns in what is there; what is found is taken out."""
        if self._found or not self._patterns:
            return bool(self._found)
        data, text = bytes(self._unmatched), None
        best: tuple[int, int, int, tuple[str | bytes | None, ...]] | None = None
        for index, pattern in enumerate(self._patterns):
            groups: tuple[str | bytes | None, ...] = ()
            if isinstance(pattern, str | bytes):
                literal = pattern if isinstance(pattern, bytes) else pattern.encode("utf-8", "surrogateescape")
                start = data.find(literal)
                end = start + len(literal)
            elif isinstance(pattern.pattern, bytes):
                in_bytes = pattern.search(data)
                start, end = in_bytes.span() if in_bytes else (-1, -1)
                groups = in_bytes.groups() if in_bytes else ()
            else:
                text = text or data.decode("utf-8", "surrogateescape")
                found = pattern.search(text)
                start = len(_encode(text[: found.start()])) if found else -1
                end = start + len(_encode(text[found.start() : found.end()])) if found else -1
                groups = found.groups() if found else ()
            if start >= 0 and (best is None or start < best[1]):
                best = index, start, end, groups
        if best is None:
            return False
        index, start, end, groups = best
        self._found = Match(index, data[start:end].decode("utf-8", "replace"), self._before(start), groups)
        del self._unmatched[:end]
        self._dropped = 0
        return True

    def _before(self, end: int | None = None) -> str:
        text = bytes(self._unmatched[:end]).decode("utf-8", "replace")
        return f"[... {self._dropped} bytes left out ...]\n{text}" if self._dropped else text

    def _final(self) -> CommandResult:
        assert self._running.step
        if self._result is None:
            self._result = self._as_result(self._running.step)
        return self._result

    def _late(self, what: str, timeout: float | None) -> InteractionTimeoutError:
        before = self._before()
        limit = self._timeout if timeout is None else timeout
        return InteractionTimeoutError(f"{what} within {limit:g} s{_last(before)}", before)

    def _ended(self, what: str) -> ProgramEndedError:
        before, result = self._before(), self._final()
        return ProgramEndedError(f"{what} (exit status {result.exit_code}){_last(before)}", before, result)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _last(text: str) -> str:
    return f"; it printed last: {text[-200:]!r}" if text else "; it printed nothing more"

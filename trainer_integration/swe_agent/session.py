"""SWE-ReX's idea of a session over ours: a program that is not waited for any more runs on, and is typed to.

What SWE-ReX finds in the output (its prompt, the exit code) is known out of band here; the rest is as there: a command
that is too late or whose expected output came is left running until it ends, is told to quit, or is interrupted.
"""

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
)
from swerex.runtime.abstract import BashAction, BashInterruptAction, BashObservation

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import CommandResult, Interaction, InteractionTimeoutError, ProgramEndedError, Sandbox
from minisandbox_ray.sandbox.capture import plain

PROMPT = "SHELLPS1PREFIX"
"""What SWE-ReX calls its prompt: an observation's `expect_string` where the command ended."""

_NEVER = os.urandom(32)  # a string that nothing prints: quicker to miss than an expression
_EXIT_CODE_SECONDS = 1.0  # SWE-ReX's
_ENDING_SECONDS = 0.2
_CHECK_SECONDS = 10.0
_FOREVER = threading.TIMEOUT_MAX


class BashSession:
    """Threads may share one; its actions run one at a time, but interrupts do not wait."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        """`name` is an open session's."""
        self._sandbox, self._name = sandbox, name
        self._turn, self._state = threading.Lock(), threading.Lock()
        self._owner: threading.Event | None = None  # whose action it is; guarded by _state
        self._closed = False
        self._program: Interaction | None = None  # what runs; it may have ended meanwhile
        self._command = ""
        self._left: Literal["late", "matched", "typed"] = "late"  # why nobody waits for it
        self._is_whole = True  # nothing of its output was handed out
        self._notice = ""

    def run(self, action: BashAction, cancelled: threading.Event) -> BashObservation:
        """Run a command, or type it to what runs. Raises SWE-ReX's errors, and SandboxError.

        Once `cancelled` is set, nobody wants the result; see `cancel`.
        """
        for one in action.expect:
            re.compile(one)  # raises re.error before anything runs
        with self._acting(action, cancelled) as deadline:
            if action.is_interactive_command or action.is_interactive_quit:
                return self._run_interactive(action, deadline)
            return self._run_normal(action, deadline)

    def cancel(self, cancelled: threading.Event) -> None:
        """End the action that has this event, with what it runs."""
        cancelled.set()
        with self._state, suppress(SandboxError):  # it has ended otherwise
            if self._owner is cancelled:
                self._sandbox.interrupt(self._name)

    def close(self) -> None:
        """End it with what runs in it."""
        self._closed = True
        self._sandbox.close_session(self._name)

    @contextmanager
    def _acting(self, action: BashAction, cancelled: threading.Event) -> Iterator[float]:
        """Have the turn; -> the action's deadline (monotonic)."""
        deadline = time.monotonic() + (_FOREVER if action.timeout is None else action.timeout)
        if not self._turn.acquire(timeout=_until(deadline)):
            raise self._late(action)
        try:
            with self._state:
                self._owner = cancelled
            if cancelled.is_set():
                raise self._late(action)
            yield deadline
        except SandboxError:
            self._program = None
            if self._closed:
                raise SessionDoesNotExistError(f"the session was closed while {action.command!r:.200} ran") from None
            raise
        finally:
            with self._state:
                self._owner = None
            self._turn.release()

    def _run_normal(self, action: BashAction, deadline: float) -> BashObservation:
        if self._program:
            self._settle(action, deadline)
        is_fresh = self._program is None
        if is_fresh:
            if "\n" in action.command.strip():  # bash would run what comes before the error
                self._check_syntax(action.command)
            self._start(action.command)
        elif not self._send(action):
            return self._run_normal(action, deadline)
        earlier, self._notice = self._notice, ""
        output, matched, result = self._await(action, action.expect, deadline)
        if result is None and action.check != "ignore":  # what was expected came; perhaps the end comes soon
            rest, result = self._rest(_EXIT_CODE_SECONDS)
            output += rest
        if result and is_fresh and (result.exit_code == 2 or (result.exit_code == 1 and "unexpected" in output)):
            self._check_syntax(action.command)  # nothing of it was run; 1 is of a bash before 5
        if action.check == "raise" and result is None:
            raise NoExitCodeError(f"no exit code: {action.command!r} still runs, after {matched!r} came")
        exit_code = None if result is None or action.check == "ignore" else result.exit_code
        if action.check == "raise" and exit_code != 0:
            message = f"Command {action.command!r} failed with exit code {exit_code}. Here is the output:\n{output!r}"
            raise NonZeroExitCodeError(f"{action.error_msg}: {message}" if action.error_msg else message)
        return _observation(earlier + output, exit_code, matched, result)

    def _settle(self, action: BashAction, deadline: float) -> None:
        """What runs is waited for if it was too late, and told apart from what only prints its last words."""
        if self._left == "late":
            self._notice += self._await(action, [], deadline)[0]
        else:
            self._notice += self._rest(_ENDING_SECONDS if self._left == "matched" else 0.0)[0]

    def _run_interactive(self, action: BashAction, deadline: float) -> BashObservation:
        if not (self._program and self._send(action)):
            self._start(action.command)
        self._left = "typed"
        output, matched, result = self._await(action, action.expect, deadline)
        if action.is_interactive_quit:
            if result is None:
                result = self._rest(_EXIT_CODE_SECONDS)[1]
            if result is None:
                raise CommandTimeoutError(f"the program did not end after {action.command!r}")
        else:
            output = output.lstrip().removeprefix(action.command).strip()
        return _observation(output, 0, matched, result)

    def interrupt(self, action: BashInterruptAction) -> BashObservation:
        """Type Ctrl-C until the program ends, or what is expected comes; at last it is killed."""
        program = self._program
        if program is None:
            return _observation("", 0, PROMPT, None)
        for attempt in range(action.n_retry + 1):
            if attempt:
                program.interrupt()
            # another call may wait for the program, and sees its end then
            if self._turn.acquire(timeout=action.timeout if attempt else 0):
                try:
                    if self._program is not program:
                        return _observation("", 0, PROMPT, None)
                    expect = action.expect if attempt else []  # it may have ended by itself
                    wait = action.timeout if attempt else 0.0
                    output, matched, result = self._await(action, expect, time.monotonic() + wait)
                    return _observation(output.strip(), 0, matched, result)
                except CommandTimeoutError:
                    pass
                finally:
                    self._turn.release()
        self._sandbox.interrupt(self._name)
        with self._turn:
            self._notice = f"[1]+  Killed                  {self._command}\n"  # as an interactive bash has it
            output, result = self._rest(_EXIT_CODE_SECONDS) if self._program is program else ("", None)
        return _observation(output.strip(), 0, PROMPT, result)

    def _start(self, command: str) -> None:
        self._command, self._left, self._is_whole = command, "late", True
        self._program = self._sandbox.interact(command, session=self._name)
        if self._owner and self._owner.is_set():  # cancelled before there was anything to interrupt
            self._program.close()

    def _send(self, action: BashAction) -> bool:
        """Type it; false if the program has ended meanwhile."""
        assert self._program
        try:
            self._program.send_line(action.command)
        except InteractionTimeoutError:
            raise self._late(action) from None
        except ProgramEndedError as ended:
            self._notice += self._ended(ended)[0]
            return False
        return True

    def _await(
        self, action: BashAction | BashInterruptAction, expect: list[str], deadline: float
    ) -> tuple[str, str, CommandResult | None]:
        """-> (output until then, what of the expected came, the result if the program ended)"""
        patterns = [re.compile(one, re.DOTALL) for one in expect]  # as pexpect has them
        program = self._program
        assert program
        try:
            if not patterns and self._is_whole:
                result = program.wait(_until(deadline))
                self._program = None
                return result.output, PROMPT, result
            match = program.expect(patterns or _NEVER, _until(deadline))
        except ProgramEndedError as ended:
            return self._ended(ended)
        except InteractionTimeoutError:
            raise self._late(action) from None
        self._is_whole = False
        if self._left == "late":
            self._left = "matched"
        return _plain(match.before), expect[match.index], None

    def _rest(self, seconds: float) -> tuple[str, CommandResult | None]:
        """Wait a little for the end of the program."""
        assert self._program
        try:
            self._program.expect(_NEVER, seconds)
        except ProgramEndedError as ended:
            output, _, result = self._ended(ended)
            return output, result
        except InteractionTimeoutError:
            pass
        return "", None

    def _ended(self, ended: ProgramEndedError) -> tuple[str, str, CommandResult]:
        self._program = None
        return (ended.result.output if self._is_whole else _plain(ended.before)), PROMPT, ended.result

    def _late(self, action: BashAction | BashInterruptAction) -> CommandTimeoutError:
        what = f"running command {action.command!r}" if isinstance(action, BashAction) else "interrupting"
        message = f"timeout after {action.timeout} seconds while {what}"
        if isinstance(action, BashAction) and action.command != self._command:
            message += f"; {self._command!r:.200} still runs, interrupt it"
        return CommandTimeoutError(message)

    def _check_syntax(self, command: str) -> None:
        """Raises BashIncorrectSyntaxError. Told by a bash of its own, in the sandbox, as SWE-ReX does."""
        text = command.encode("utf-8", "surrogatepass") + b"\n"
        result = self._sandbox.execute(["/bin/bash", "-n"], stdin=text, timeout=_CHECK_SECONDS)
        if result.exit_code not in (1, 2):  # 0: well-formed; else bash itself could not do it
            return
        out, err = (stream.decode(errors="backslashreplace") for stream in (result.stdout, result.stderr))
        raise BashIncorrectSyntaxError(
            f"Error (exit code {result.exit_code}) while checking bash command \n{command!r}\n"
            f"---- Stderr ----\n{err}\n---- Stdout ----\n{out}",
            extra_info={"bash_stdout": out, "bash_stderr": err},
        )


def _until(deadline: float) -> float:
    return min(max(0.0, deadline - time.monotonic()), _FOREVER)


def _plain(text: str) -> str:
    return plain(text.encode()) if "\x1b" in text else text


def _observation(output: str, exit_code: int | None, matched: str, result: CommandResult | None) -> BashObservation:
    reason = f"limit: {result.limit}" if result and result.limit else ""
    return BashObservation(output=output, exit_code=exit_code, expect_string=matched, failure_reason=reason)

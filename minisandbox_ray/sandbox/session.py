"""A bash on a terminal, whose completion, exit code and directory are never parsed out of its output.

Bash reads its commands as a script from a pipe that holds one page. A step's text is a file that only the host can
write; the pipe gets `\\. FILE` and two newlines. Bash reads a pipe byte by byte, so the last newline frees the page
exactly when the step is over: the pipe turns writable. Exit code and exported variables are read from bash's memory,
the directory from /proc. A shell that never opened the file (inotify) is mute and replaced; one that is gone, too.
"""

# ruff: noqa: PTH115, PTH116  (pathlib would add a tenth to every step)

import os
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from minisandbox_ray.errors import Owner, SandboxError

from .capture import Capture
from .drain import Master
from .launcher import pid_of
from .opens import OpenWatch
from .shellstate import ShellState
from .starter import syscalls, wire
from .starter.root import CONTROL_DIRECTORY

_SET_UP = b"exec 9<&-; BASH_ARGV0=bash; set +H +o history; unset HISTFILE; trap '\\return 130 2>/dev/null' INT"
_SET_UP_SECONDS = 30.0
# (signal, seconds until the next, whether the shell itself may go)
_ESCALATION = (
    (signal.SIGINT, 0.5, False),
    (signal.SIGTERM, 0.4, False),
    (signal.SIGKILL, 0.4, False),
    (signal.SIGKILL, 5.0, True),
)
_NEVER = 1 << 62

Ending = Literal["done", "dead", "time"]


class BrokenSandboxError(SandboxError):
    """The sandbox lives, but what ran in it left nothing to start a shell with."""

    owner: Owner = "agent"


@dataclass(frozen=True, slots=True)
class Step:
    """What a step of a session gave; see CommandResult."""

    capture: Capture
    exit_code: int
    timed_out: bool
    restarted: bool
    cwd: str
    seconds: float


class _Shell:
    """One bash process; a session replaces it when it is gone."""

    def __init__(self, channel: socket.socket, descriptors: list[int]) -> None:
        self.channel = channel
        master, self.pipe, handle = descriptors
        try:
            self.pid = pid_of(handle)
        finally:
            os.close(handle)
        self.terminal = Master(master)
        self.modes = _reset_modes(master)
        self.exit_code: int | None = None
        self.state: ShellState | None = None
        os.set_blocking(self.pipe, False)
        self.pipe_inode = os.fstat(self.pipe).st_ino
        self.poller = select.poll()
        self.poller.register(self.pipe, select.POLLOUT)
        self.poller.register(master, select.POLLIN)
        self.poller.register(channel, select.POLLIN)
        try:
            self.activity = os.open(f"/proc/{self.pid}/syscall", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # gone already
            self.activity = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        self.channel.close()
        self.terminal.close()
        os.close(self.pipe)
        os.close(self.activity)
        if self.state:
            self.state.close()

    def is_idle(self) -> bool:
        """It sleeps in read(2) on the pipe: the byte that is missing there was not stolen through /proc/PID/fd."""
        for attempt in range(200):
            try:
                fields = os.pread(self.activity, 200, 0).split()
            except OSError:
                return False
            if not fields:
                return False
            if fields[0] == b"%d" % syscalls.READ_NUMBER:
                try:
                    return os.stat(f"/proc/{self.pid}/fd/{int(fields[1], 16)}").st_ino == self.pipe_inode
                except OSError:
                    return False
            if fields[0] != b"running" and attempt > 20:
                return False
            time.sleep(0 if attempt < 20 else 0.0005)
        return False

    def push(self, text: bytes) -> None:
        try:
            os.write(self.pipe, text)
        except (BrokenPipeError, BlockingIOError):  # seen by the poll as an error
            pass

    def receive(self) -> dict[str, Any]:
        received = wire.receive(self.channel)
        if received is None:
            raise SandboxError("the sandbox is gone (closed, or its first process was killed)")
        message, _ = received
        if "exit" in message:
            self.exit_code = message["exit"]
        return message

    def kill(self, number: int, since: int, shell: bool) -> None:
        try:
            wire.send(self.channel, {"signal": number, "since": since, "shell": shell})
        except OSError:
            if self.exit_code is not None:
                return
        while self.exit_code is None:
            if "signalled" in self.receive():
                return

    def wait(self, capture: Capture, deadline: float) -> Ending:
        """Until the step is over, the shell is gone, or the deadline (monotonic seconds)."""
        master = self.terminal.descriptor
        ending: Ending | None = None
        while ending is None:
            if self.exit_code is not None:
                ending = "dead"
                break
            left = deadline - time.monotonic()
            for descriptor, event in self.poller.poll(max(0.0, left * 1000)):
                if descriptor == master:
                    if event & select.POLLIN:
                        capture.add(_read(master))
                    else:
                        self.poller.unregister(master)
                elif descriptor == self.pipe:
                    if event & select.POLLERR:  # nothing reads any more: replaced by exec, or dying
                        self.poller.unregister(self.pipe)
                    elif self.is_idle():
                        ending = "done"
                    else:
                        self.push(b"\n")
                else:
                    self.receive()
            if ending is None and left <= 0:
                return "time"
        for _ in range(64):  # what was printed before the end is in the terminal by now
            data = _read(master)
            if not data:
                break
            capture.add(data)
        return ending


def _read(master: int) -> bytes:
    try:
        return os.read(master, 1 << 16)
    except OSError:
        return b""


def _reset_modes(master: int, characters: list[Any] | None = None) -> list[Any]:
    """Lines, signals, no echo, output untouched; whatever a program did to it. -> control characters"""
    modes = termios.tcgetattr(master)
    modes[0], modes[1] = termios.ICRNL | 0o40000, 0  # IUTF8
    modes[2] = termios.CS8 | termios.CREAD | termios.B38400
    modes[3] = termios.ISIG | termios.ICANON | termios.IEXTEN
    if characters:
        modes[6] = characters
    termios.tcsetattr(master, termios.TCSANOW, modes)
    return modes[6]


class Session:
    """One at a time may call. `spawn(cwd, env)` asks pid 1 for a shell: -> (its channel, its descriptors)."""

    def __init__(
        self,
        name: str,
        control: int,
        spawn: Callable[[str, dict[str, str]], tuple[socket.socket, list[int]]],
        cwd: str,
        env: dict[str, str],
    ) -> None:
        self.cwd, self.env, self._clean_env = cwd, env, env
        self._used = False
        self._name, self._spawn = name, spawn
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(name, flags, 0o644, dir_fd=control)
        self._opened: OpenWatch | None = None
        self._shell: _Shell | None = None
        try:
            self._opened = OpenWatch(f"/proc/self/fd/{self._file}")
            self._start_shell()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._give_up_shell()
        if self._opened:
            self._opened.close()
            self._opened = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _give_up_shell(self) -> None:
        """Pid 1 kills a shell whose channel is closed."""
        if self._shell:
            self._shell.close()
            self._shell = None

    def _start_shell(self) -> _Shell:
        """A new shell in the last directory, with the last exported variables if one starts with them."""
        self._give_up_shell()
        for env in (self.env, self._clean_env):
            shell = _Shell(*self._spawn(self.cwd, env))
            try:
                self._begin(shell, _SET_UP)
                if shell.wait(Capture(1000), time.monotonic() + _SET_UP_SECONDS) == "done" and self._was_opened():
                    shell.state = ShellState(shell.pid)
                    self._shell, self.env = shell, env
                    return shell
            finally:
                if not self._shell:
                    shell.close()
        message = "no shell starts in this sandbox any more: its files were destroyed, or a limit holds"
        raise BrokenSandboxError(message) if self._used else SandboxError(message)

    def _begin(self, shell: _Shell, text: bytes) -> None:
        written = 0
        while written < len(text):
            written += os.pwrite(self._file, text[written:], written)
        os.ftruncate(self._file, len(text))
        self._was_opened()
        shell.push(f"\\. {CONTROL_DIRECTORY}/{self._name}\n\n".encode())

    def _was_opened(self) -> bool:
        assert self._opened
        return self._opened.was_opened()

    def run(self, command: str, timeout: float, output_limit: int) -> Step:
        """Run a command to its end or its time limit (seconds). Raises SandboxError if the sandbox is gone."""
        try:
            return self._run(command, timeout, output_limit)
        except BaseException:  # interrupted in the middle: what the shell is doing is unknown
            self._give_up_shell()
            raise

    def _run(self, command: str, timeout: float, output_limit: int) -> Step:
        began = time.monotonic()
        text = command.encode("utf-8", "surrogateescape") + b"\n"
        capture, timed_out, restarted = Capture(output_limit), False, False
        shell = self._shell or self._start_shell()
        self._used = True
        shell.terminal.take()
        _reset_modes(shell.terminal.descriptor, shell.modes)
        self._begin(shell, text)
        ending = shell.wait(capture, began + timeout)
        if ending == "done" and not self._was_opened():  # mute: `.` shadowed or disabled, extdebug, …; it never began
            shell.kill(signal.SIGKILL, _NEVER, shell=True)
            shell = self._start_shell()
            capture, restarted = Capture(output_limit), True
            self._begin(shell, text)
            ending = shell.wait(capture, began + timeout)
        if ending == "time":
            timed_out = True
            age = time.monotonic() - began
            since = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age) * os.sysconf("SC_CLK_TCK"))
            for number, grace, may_kill_shell in _ESCALATION:
                shell.kill(number, since, may_kill_shell)
                ending = shell.wait(capture, time.monotonic() + grace)
                if ending != "time":
                    break
        exit_code = self._note(shell) if ending == "done" else None
        if exit_code is None:
            code = shell.exit_code
            exit_code = 1 if code is None else 128 - code if code < 0 else code
            restarted = True
            try:
                shell = self._start_shell()
            except BrokenSandboxError:  # told by the next step; this one has a result
                return Step(capture, exit_code, timed_out, restarted, self.cwd, time.monotonic() - began)
        elif timed_out:  # an INT that comes late must not hit the next step
            self._begin(shell, b"return %d\n" % exit_code)
            if shell.wait(Capture(1000), time.monotonic() + 2) != "done":
                restarted = True
                shell.kill(signal.SIGKILL, _NEVER, shell=True)
                shell = self._start_shell()
        shell.terminal.leave()
        return Step(capture, exit_code, timed_out, restarted, self.cwd, time.monotonic() - began)

    def _note(self, shell: _Shell) -> int | None:
        """Exit code, directory and exported variables; None if the shell cannot tell any more."""
        assert shell.state
        try:
            exit_code = shell.state.exit_code()
            self.cwd = os.readlink(f"/proc/{shell.pid}/cwd").removesuffix(" (deleted)")
            self.env = shell.state.exported() or self.env
        except (OSError, struct.error):
            return None
        return exit_code

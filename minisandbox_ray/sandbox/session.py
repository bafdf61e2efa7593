"""A bash on a terminal, whose completion, exit code and directory are never parsed out of its output.

Bash reads its commands as a script from a pipe that holds one page. A step's text is a file that only the host can
write; the pipe gets `\\. FILE` and two newlines. Bash reads a pipe byte by byte, so the last newline frees the page
exactly when the step is over: the pipe turns writable. Exit code and exported variables are read from bash's memory,
the directory from /proc. A shell that never opened the file (inotify) is mute and replaced; one that is gone, too.
"""

# ruff: noqa: PTH115, PTH116  (pathlib would add a tenth to every step)

import os
import re
import signal
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from minisandbox_ray.errors import Owner, SandboxError

from .capture import Capture
from .opens import OpenWatch
from .shell import Ending, Shell, Sink
from .snapshot import SessionState
from .spec import StoppedBy
from .starter import modes
from .starter.root import CONTROL_DIRECTORY

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_LARGEST = 65535  # rows or columns, unsigned short in the kernel's struct winsize
# (signal, seconds until the next, whether the shell itself may go)
_ESCALATION = (
    (signal.SIGINT, 0.5, False),
    (signal.SIGTERM, 0.4, False),
    (signal.SIGKILL, 0.4, False),
    (signal.SIGKILL, 5.0, True),
)
_NUL = b"bash: the command holds a NUL character, which no shell can read; nothing was run\n"
_UNWOUND = 2  # `$?` of a step that an INT ended, see starter/init.py
_HEARD_SECONDS = 2.0
_FOREVER = float("inf")
_NEVER = 1 << 62
_STOPPED: dict[Ending, StoppedBy] = {"time": "timeout", "idle": "idle_timeout", "woken": "interrupt"}

Spawn = Callable[[str, dict[str, str], tuple[int, int], bool], tuple[socket.socket, list[int]]]
"""(directory, environment, rows and columns, whether the directory must exist) -> (a shell's channel, descriptors)"""
OnOutput = Callable[[bytes], object]


class BrokenSandboxError(SandboxError):
    """The sandbox lives, but what ran in it left nothing to start a shell with."""

    owner: Owner = "agent"


class SessionBusyError(SandboxError):
    """An interactive program holds the session, or the caller is its own output callback: waiting would not end."""

    owner: Owner = "user"


@dataclass(frozen=True, slots=True)
class Step:
    """What a step of a session gave; see CommandResult."""

    capture: Capture
    exit_code: int
    stopped_by: StoppedBy | None
    restarted: bool
    cwd: str
    seconds: float


@dataclass(slots=True, eq=False)
class Running:
    """The step that is under way."""

    command: str
    capture: Capture
    sink: Sink
    began: float = field(default_factory=time.monotonic)
    thread: int | None = field(default_factory=threading.get_ident)
    """The one that waits for its end; None if it is interactive."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Of an interactive one: held by the thread that uses it."""
    start: int = 0
    """Where its own output begins."""
    stop: bool = False
    opened: bool = False
    typed: bool = False
    """Something was: keys that nobody took must not reach the next."""
    restarted: bool = False
    step: Step | None = None
    """How it ended."""


def check_name(name: str) -> None:
    """A session's name is a file name. Raises ValueError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a session: up to 64 of A-Z a-z 0-9 _ . - after a letter or digit")


def check_size(rows: int, columns: int) -> tuple[int, int]:
    for what, value in (("rows", rows), ("columns", columns)):
        if not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise ValueError(f"{what} is {value!r}: it must be 1 to {_LARGEST}")
    return rows, columns


class Session:
    """Threads may share one; its steps run one at a time.

    `env` is what its shell starts with, `clean_env` what one starts with that does not start so any more.
    """

    def __init__(
        self,
        name: str,
        control: int,
        spawn: Spawn,
        *,
        cwd: str,
        env: dict[str, str],
        clean_env: dict[str, str],
        size: tuple[int, int],
        output_limit: int,
        is_root_used: bool,
        directory: str = "",
    ) -> None:
        self.name, self.cwd, self.env = name, cwd, env
        self._clean_env, self._size, self._output_limit = clean_env, size, output_limit
        self._is_root_used = is_root_used
        self._spawn = spawn
        self._place = f"{directory}/root" if directory else ""  # where / is, without namespaces
        self._shown = f"{directory}/control" if directory else CONTROL_DIRECTORY
        self._control, self._control_line = control, f". {self._shown}/{name}".encode()
        self._told: OpenWatch | None = None  # with the directory `_codes`
        self._state = threading.Condition()  # guards _running, _closed, _shell and _size
        self._running: Running | None = None
        self._closed = False
        self._unheard = 0
        self._shell: Shell | None = None
        self._opened: OpenWatch | None = None
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(name, flags, 0o644, dir_fd=control)
        os.fchmod(self._file, 0o644)  # whatever the owner's umask is
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._opened = OpenWatch(f"/proc/self/fd/{self._file}")
            self._start_shell(self.env, strict=True)
        except BaseException:
            self._free()
            raise

    def state(self) -> SessionState:
        """What another shell can go on with."""
        with self._state:
            if self._shell and not self._running:
                self.env = self._shell.exported_now() or self.env
            env = {name: value.replace(self._place, "") for name, value in self.env.items()}
            return SessionState(self.cwd, env if self._place else self.env, self._size)

    def close(self) -> None:
        """End what it runs; who waits for that gets a SandboxError. Idempotent."""
        with self._state:
            if self._closed:
                return
            if self._running and self._running.thread == threading.get_ident():
                raise SessionBusyError(f"session {self.name!r} was asked to close in the middle of its step")
            self._closed = True
            if self._running:
                self._running.stop = True
                os.eventfd_write(self._wake, 1)
            self._state.wait_for(lambda: self._running is None or self._running.thread is None)
            running = self._running
        if running:
            with running.turn:
                self._release(running)
        self._free()

    def _free(self) -> None:
        self._give_up_shell()
        if self._opened:
            self._opened.close()
        if self._told:
            self._told.close()
            os.close(self._codes)
        os.close(self._file)
        os.close(self._wake)

    def _give_up_shell(self) -> None:
        with self._state:
            shell, self._shell = self._shell, None
        if shell:
            shell.close()

    def _start_shell(self, env: dict[str, str], strict: bool = False) -> Shell:
        """A new shell in the last directory, or the nearest that is left; it has not proved to work."""
        self._give_up_shell()
        channel, descriptors = self._spawn(self.cwd, env, self._size, strict)
        shell = Shell(channel, descriptors, self._wake, self._output_limit // 4)
        with self._state:
            self._shell, self.env = shell, env
        return shell

    # A step: begin, then advance, perhaps often, then conclude.

    def run(self, command: str, timeout: float, idle_timeout: float, on_output: OnOutput | None) -> Step:
        """Run a command to its end or a limit (seconds). Raises SandboxError if the sandbox is gone.

        What `on_output` raises stops the command as a limit does, and is raised.
        """
        capture, failures = Capture(self._output_limit), list[Exception]()

        def sink(data: bytes) -> bool:
            capture.add(data)
            if on_output and not failures:
                try:
                    on_output(data)
                except Exception as error:
                    failures.append(error)
                    return True
            return False

        running = Running(command, capture, sink)
        self.begin(running)
        try:
            ending = self.advance(running, running.began + timeout, idle_timeout)
            step = self.conclude(running, ending)
        except BaseException:
            self.abandon(running)
            raise
        if failures:
            raise failures[0]
        return step

    def begin(self, running: Running) -> None:
        """Wait for the session's other steps to end, and start this one. Raises SessionBusyError."""
        me = threading.get_ident()
        with self._state:
            while self._running:
                if self._running.thread is None:
                    raise SessionBusyError(
                        f"session {self.name!r} is held by an interactive program: {self._running.command[:60]!r}"
                    )
                if self._running.thread == me:
                    raise SessionBusyError(f"session {self.name!r} was asked to run a step in the middle of its step")
                self._state.wait()
            if self._closed:
                raise SandboxError(f"session {self.name!r} is closed")
            self._running = running
        try:
            shell = self._shell or self._start_shell(self.env)
            self.resume(running)
            if "\0" in running.command:
                running.sink(_NUL)
            if not shell.is_new:
                modes.reset(shell.terminal.descriptor, shell.characters)
            self._feed(shell, _script(running.command))
        except BaseException:  # interrupted in the middle: what the shell is doing is unknown
            self.abandon(running)
            raise

    def resume(self, running: Running) -> None:
        """Take the terminal, and what was printed since it was left."""
        shell = self._the_shell()
        kept = shell.terminal.take()
        if kept:
            running.sink(kept.data())
            running.capture.note_cut(kept)
            if not running.opened:
                running.start = running.capture.total

    def pause(self) -> None:
        """Leave the terminal to the drain thread."""
        self._the_shell().terminal.leave()

    def _the_shell(self) -> Shell:
        if self._shell is None:
            raise SandboxError(f"session {self.name!r} is closed")
        return self._shell

    def _feed(self, shell: Shell, text: bytes) -> None:
        written = 0
        while written < len(text):
            written += os.pwrite(self._file, text[written:], written)
        os.ftruncate(self._file, len(text))
        assert self._opened
        self._opened.arm()
        shell.push(b"\\" + self._control_line + b"\n\n")

    def _was_opened(self) -> bool:
        assert self._opened
        return self._opened.opened() is not None

    def advance(self, running: Running, deadline: float, idle: float) -> Ending:
        """Wait as Shell.wait does; a shell that cannot begin the step is replaced."""
        while True:
            shell = self._the_shell()
            ending = shell.wait(running.sink, deadline, idle)
            if ending == "woken" and self._closed:
                raise SandboxError(f"session {self.name!r} was closed")
            running.opened = running.opened or self._was_opened()
            if running.opened:
                shell.is_new = False
                self._is_root_used = True
            if running.opened or ending not in ("done", "dead"):
                return ending
            # it never began: `.` shadowed or disabled, extdebug, …, or a shell that was killed between steps
            env = self.env
            if shell.is_new:
                if env is self._clean_env:
                    self._give_up_shell()
                    message = "no shell starts in this sandbox any more: its files were destroyed, or a limit holds"
                    raise BrokenSandboxError(message) if self._is_root_used else SandboxError(message)
                env = self._clean_env
            else:
                running.restarted = True
            if ending == "done":
                shell.kill(signal.SIGKILL, _NEVER, shell=True)
            running.capture.clear()
            self._feed(self._start_shell(env), _script(running.command))

    def conclude(self, running: Running, ending: Ending) -> Step:
        """The step's result, once it has ended; it is stopped first if it has not."""
        shell, stopped_by = self._the_shell(), _STOPPED.get(ending)
        if ending not in ("done", "dead"):
            ending = self._stop(shell, running)
        exit_code = self._note(shell) if ending == "done" and not self._is_mute(running, shell) else None
        if exit_code == _UNWOUND and stopped_by:
            exit_code = 128 + signal.SIGINT
        if exit_code is None:
            code = shell.exit_code
            exit_code = 1 if code is None else 128 - code if code < 0 else code
            self._restart(running)
        elif stopped_by or running.typed:  # an INT that comes late must not hit the next step
            if running.typed:  # nor may it read what was typed
                termios.tcflush(shell.terminal.descriptor, termios.TCOFLUSH)
                modes.reset(shell.terminal.descriptor, shell.characters, termios.TCSAFLUSH)
            if not self._have_done(shell, f"return {exit_code}\n"):
                shell.kill(signal.SIGKILL, _NEVER, shell=True)
                self._restart(running)
        if self._shell:
            self._shell.terminal.leave()
        running.capture.drop_line(running.start, self._control_line)  # shown under `set -x` and `set -v`
        step = Step(
            running.capture, exit_code, stopped_by, running.restarted, self.cwd, time.monotonic() - running.began
        )
        running.step = step
        self._release(running)
        return step

    def _is_mute(self, running: Running, shell: Shell) -> bool:
        """It was stopped before it began: too early to be heard, or something stands in the way of `.`."""
        running.opened = running.opened or self._was_opened()
        if running.opened:
            shell.is_new, self._unheard = False, 0
            return False
        self._unheard += 1
        return shell.is_new or self._unheard > 1 or time.monotonic() - running.began > _HEARD_SECONDS

    def abandon(self, running: Running) -> None:
        """What the shell is doing is unknown: it is replaced."""
        self._give_up_shell()
        self._release(running)

    def _release(self, running: Running) -> None:
        with self._state:
            if self._running is running:
                self._running = None
                if running.stop and not self._closed:  # told too late to be seen
                    try:
                        os.eventfd_read(self._wake)
                    except BlockingIOError:
                        pass
            self._state.notify_all()

    def _restart(self, running: Running) -> None:
        running.restarted = True
        try:
            self._start_shell(self.env)
        except SandboxError:  # told by the next step; this one has a result
            pass

    def _stop(self, shell: Shell, running: Running) -> Ending:
        age = time.monotonic() - running.began
        since = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age) * os.sysconf("SC_CLK_TCK"))
        ending: Ending = "time"
        for number, grace, may_kill_shell in _ESCALATION:
            shell.kill(number, since, may_kill_shell)
            deadline = time.monotonic() + grace
            while (ending := shell.wait(running.sink, deadline, _FOREVER)) in ("woken", "enough"):
                pass
            if ending != "time":
                break
        return ending

    def _note(self, shell: Shell) -> int | None:
        """Exit code, directory and exported variables; None if the shell cannot tell any more."""
        try:
            exit_code: int | None
            if shell.state.is_readable:
                exit_code = shell.state.exit_code()
                self.env = shell.state.exported() or self.env
            else:
                exit_code = self._ask_exit_code(shell)
            self.cwd = self._directory(shell)
        except (OSError, struct.error):
            return None
        return exit_code

    def _ask_exit_code(self, shell: Shell) -> int | None:
        """By which file the shell opens, of a bash whose memory tells nothing (a static build)."""
        directory = f".{self.name}"
        if self._told is None:
            os.mkdir(directory, dir_fd=self._control)
            self._codes = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._control)
            self._told = OpenWatch(f"/proc/self/fd/{self._codes}")
            for code in range(256):
                os.close(os.open(str(code), os.O_CREAT | os.O_CLOEXEC, 0o444, dir_fd=self._codes))
        self._told.arm()
        if not self._have_done(shell, f"<{self._shown}/{directory}/$?\n"):
            return None
        told = self._told.opened()
        return int(told) if told and self._have_done(shell, f"return {int(told)}\n") else None

    def _have_done(self, shell: Shell, text: str) -> bool:
        """Something short that is no step."""
        self._feed(shell, text.encode())
        return shell.wait(_ignore, time.monotonic() + _HEARD_SECONDS, _FOREVER) == "done"

    def _directory(self, shell: Shell) -> str:
        directory = self._real_directory(shell)
        if self._place and f"{directory}/".startswith(f"{self._place}/"):
            return directory.removeprefix(self._place) or "/"
        return directory

    @staticmethod
    def _real_directory(shell: Shell) -> str:
        path = f"/proc/{shell.pid}/cwd"
        directory = os.readlink(path)
        if directory.endswith(" (deleted)") and os.stat(path).st_nlink == 0:
            return directory.removesuffix(" (deleted)")
        return directory

    # From any thread, at any time.

    def interrupt(self) -> None:
        """Stop the step that is under way, as a limit does, and wait until it is over; nothing if none is."""
        with self._state:
            running = self._running
            if running is None or running.thread == threading.get_ident():
                return
            running.stop = True
            os.eventfd_write(self._wake, 1)
        if running.thread is None:
            with running.turn:
                if self._running is running:
                    self.stop(running)
        with self._state:
            self._state.wait_for(lambda: self._running is not running)

    def stop(self, running: Running) -> Step:
        """End an interactive step, by who holds its turn."""
        try:
            self.resume(running)
            return self.conclude(running, "woken")
        except BaseException:
            self.abandon(running)
            raise

    def type(self, data: bytes | memoryview) -> int:
        """-> how many bytes the terminal took."""
        with self._state:
            if self._running:
                self._running.typed = True
            try:
                return os.write(self._the_shell().terminal.descriptor, data)
            except BlockingIOError:
                return 0

    def resize(self, rows: int, columns: int) -> None:
        """Tell what runs the size of the window, in characters."""
        with self._state:
            self._size = rows, columns
            if self._shell:
                termios.tcsetwinsize(self._shell.terminal.descriptor, self._size)


def _script(command: str) -> bytes:
    if "\0" in command:
        return b"return 126\n"
    try:
        text = command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # halves of characters, as JSON can hold them: pairs are joined, others replaced
        text = command.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    return text + b"\n"


def _ignore(_: bytes) -> None:
    pass

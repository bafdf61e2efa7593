"""One bash process on a terminal: how it is fed, watched and signalled. See session.py for what is asked of it."""

# ruff: noqa: PTH116  (pathlib would add a tenth to every step)

import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable
from typing import Any, Literal

from minisandbox_ray.errors import SandboxError

from .drain import Master
from .launcher import pid_of
from .shellstate import ShellState
from .starter import syscalls, wire
from .times import poll_milliseconds

Ending = Literal["done", "dead", "time", "idle", "woken", "enough"]
Sink = Callable[[bytes], bool | None]
"""Takes output as it comes; true once it has what it waited for."""


class Shell:
    """A session replaces it when it is gone. `wake` is an eventfd that ends a wait."""

    def __init__(self, channel: socket.socket, descriptors: list[int], wake: int, kept_limit: int) -> None:
        self.channel = channel
        self.wake = wake
        master, self.pipe, handle = descriptors
        try:
            self.pid = pid_of(handle)
        finally:
            os.close(handle)
        self.terminal = Master(master, kept_limit)
        self.characters = termios.tcgetattr(master)[6]
        self.exit_code: int | None = None
        self.is_new = True
        self._state: ShellState | None = None
        os.set_blocking(self.pipe, False)
        self.pipe_inode = os.fstat(self.pipe).st_ino
        self.poller = select.poll()
        self.poller.register(self.pipe, select.POLLOUT)
        self.poller.register(master, select.POLLIN)
        self.poller.register(channel, select.POLLIN)
        self.poller.register(wake, select.POLLIN)
        try:
            self.activity = os.open(f"/proc/{self.pid}/syscall", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # gone already, or a kernel without it
            self.activity = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def state(self) -> ShellState:
        """Raises OSError or struct.error when the shell is gone or has become another program."""
        if self._state is None:
            self._state = ShellState(self.pid)
        return self._state

    def exported_now(self) -> dict[str, str] | None:
        """Of a shell at rest; None if it cannot be told."""
        try:
            return self.state.exported_now() if not self.is_new and self.state.is_readable else None
        except (OSError, OverflowError, ValueError, struct.error):
            return None

    def close(self) -> None:
        """Pid 1 kills a shell whose channel is closed."""
        self.channel.close()
        self.terminal.close()
        os.close(self.pipe)
        os.close(self.activity)
        if self._state:
            self._state.close()

    def is_idle(self) -> bool:
        """It sleeps in read(2) on the pipe: the byte that is missing there was not stolen through /proc/PID/fd."""
        for attempt in range(200):
            try:
                fields = os.pread(self.activity, 200, 0).split()
            except PermissionError:  # to everybody, where yama's ptrace_scope is 3
                return self._seems_idle()
            except OSError:
                return False
            if not fields:
                return self._seems_idle()
            if fields[0] == b"%d" % syscalls.READ_NUMBER:
                try:
                    return os.stat(f"/proc/{self.pid}/fd/{int(fields[1], 16)}").st_ino == self.pipe_inode
                except OSError:
                    return False
            if fields[0] != b"running" and attempt > 20:
                return False
            time.sleep(0 if attempt < 20 else 0.0005)
        return False

    def _seems_idle(self) -> bool:
        """Where the kernel does not show system calls: it sleeps, and holds the foreground of its terminal.

        A byte that is stolen inside of `$(…)` is not noticed then. Fields of /proc/PID/stat: proc(5).
        """
        for attempt in range(200):
            try:
                descriptor = os.open(f"/proc/{self.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    text = os.read(descriptor, 1000)
                finally:
                    os.close(descriptor)
            except OSError:
                return False
            state, _, group, _, _, foreground = text.rpartition(b")")[2].split()[:6]
            if state == b"S" and group == foreground:
                return True
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

    def wait(self, sink: Sink, deadline: float, idle: float) -> Ending:
        """Until the step is over (done), the shell is gone (dead), the deadline (monotonic seconds; time), a time of
        `idle` seconds without output, another thread wants it (woken), or the sink is content (enough)."""
        master, quiet_until = self.terminal.descriptor, time.monotonic() + idle
        ending: Ending | None = None
        while ending is None:
            if self.exit_code is not None:
                ending = "dead"
                break
            until = min(deadline, quiet_until)
            left = until - time.monotonic()
            for descriptor, event in self.poller.poll(poll_milliseconds(left)):
                if descriptor == master:
                    if event & select.POLLIN:
                        if sink(read(master)):
                            return "enough"
                        quiet_until = time.monotonic() + idle
                    else:
                        self.poller.unregister(master)
                elif descriptor == self.pipe:
                    if event & select.POLLERR:  # nothing reads any more: replaced by exec, or dying
                        self.poller.unregister(self.pipe)
                    elif self.is_idle():
                        ending = "done"
                    else:
                        self.push(b"\n")
                elif descriptor == self.wake:
                    os.eventfd_read(self.wake)
                    return "woken"
                else:
                    self.receive()
            if ending is None and left <= 0:
                return "time" if until == deadline else "idle"
        for _ in range(64):  # what was printed before the end is in the terminal by now
            data = read(master)
            if not data:
                break
            sink(data)
        return ending


def read(master: int) -> bytes:
    """What is in the terminal, at most 64 KiB; nothing if nothing is."""
    try:
        return os.read(master, 1 << 16)
    except OSError:
        return b""

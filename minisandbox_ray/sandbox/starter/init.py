"""Pid 1 of a sandbox: spawns what the host asks for, reaps, signals. Nobody inside can kill, trace or read it.

Each shell and each one-shot program has a socket of its own to the host ("channel"), over which its end is told and
signals for it are asked for. When the host's end of the control socket closes, the sandbox ends.
"""

# ruff: noqa: PTH104, PTH114, PTH115, PTH120, PTH123, PTH208, PTH211

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable
from typing import Any

from . import modes, syscalls, watchdog, wire

_PIPE_SIZE = 4096  # one page: one slot
_LAST_SECONDS = 5.0  # after its wall time, in which its owner ends commands in good order
_LONGEST_SLEEP = 86_400.0  # seconds; poll(2) takes no number of milliseconds beyond 31 bits
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441
# the starter ignores SIGINT, Python others, and whoever started the owner perhaps more; exec resets handlers only
_IGNORED_SIGNALS = {signal.SIGINT} | {
    number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN
}
SHELL = ["/bin/bash", "--norc", "--noprofile", "-i", "-m", "/proc/self/fd/9"]

# What a shell does first; the host waits for none of it. An INT ends a step: it returns, and until the shell is back
# at its script (BASH_SOURCE then holds that alone) a DEBUG trap whose status is 2 has it return before each command,
# from functions and sourced files alike (extdebug, in bash's manual); then the trap removes itself.
_UNWIND = r"if ((\${#BASH_SOURCE[@]}>1)); then [[ x =~ [ ]] 2>/dev/null; else trap - DEBUG; shopt -u extdebug; fi"
_SET_UP = (
    "exec 9<&-; BASH_ARGV0=bash; set +H +o history; unset HISTFILE; "
    rf"""trap 'trap "{_UNWIND}" DEBUG; shopt -s extdebug; \return 130 2>/dev/null' INT"""
    "\n"
).encode()


class Child:
    """A process that the host asked for; `held` are descriptors that must stay open while it lives."""

    def __init__(self, pid: int, channel: socket.socket, held: tuple[int, ...] = ()) -> None:
        self.pid, self.channel, self.held = pid, channel, held

    def close(self) -> None:
        self.channel.close()
        for descriptor in self.held:
            os.close(descriptor)


class Init:
    """Whatever becomes of its owner, the sandbox ends after `wall_seconds`."""

    terminals = "/dev/pts/ptmx"

    def __init__(
        self, control: socket.socket, links: dict[str, str], wall_seconds: float, watch: watchdog.Watchdog | None
    ) -> None:
        self.control, self.links, self.watch = control, links, watch
        self.deadline = time.monotonic() + wall_seconds + _LAST_SECONDS
        self.children: dict[int, Child] = {}
        self.channels: dict[int, Child] = {}
        self.poller = select.poll()

    def serve(self) -> None:
        """Never returns."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poller.register(woken, select.POLLIN)
        self.poller.register(self.control, select.POLLIN)
        while True:
            for descriptor, _ in self.poller.poll(self._on_time() * 1000):
                if descriptor == woken:
                    os.read(woken, 4096)
                elif descriptor == self.control.fileno():
                    self._request()
                elif descriptor in self.channels:
                    self._signal(self.channels[descriptor])
            self._reap()

    def _on_time(self) -> float:
        """Do what is due; -> seconds until the next."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            os._exit(0)
        return min(left, self.watch.check() if self.watch else _LONGEST_SLEEP)

    def _request(self) -> None:
        received = wire.receive(self.control)
        if received is None:
            os._exit(0)
        if self.watch:
            self.watch.hurry()
        message, (channel_descriptor, *descriptors) = received
        self._adapt(message)
        channel = socket.socket(fileno=channel_descriptor)
        try:
            if message["op"] == "shell":
                child = self._shell(message, channel)
            elif message["op"] == "terminal":
                child = self._terminal(message, channel)
            else:
                child = self._program(message, channel, descriptors)
        except OSError as error:
            try:
                wire.send(channel, {"error": f"{message['op']}: {error}", "errno": error.errno})
            except OSError:
                pass
            channel.close()
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.children[child.pid] = self.channels[channel.fileno()] = child
        self.poller.register(channel, select.POLLIN)

    def _adapt(self, message: dict[str, Any]) -> None:
        """Where paths are others inside than they are called: change the request."""

    def _shell(self, message: dict[str, Any], channel: socket.socket) -> Child:
        """A bash on a new terminal of the sandbox's own, which reads its commands from a pipe of one slot."""
        if message["strict"]:
            os.close(os.open(message["cwd"], os.O_PATH | os.O_DIRECTORY))
        for path, target in self.links.items():
            _restore_link(path, target)
        for _ in range(100):
            try:
                return self._begin_shell(message, channel)
            except OSError as error:  # eaten up by what is inside, which must not keep its own shells from starting
                if error.errno not in (errno.ENOSPC, errno.ETOOMANYREFS):
                    raise
            self._evict()
        return self._begin_shell(message, channel)

    def _begin_shell(self, message: dict[str, Any], channel: socket.socket) -> Child:
        with contextlib.ExitStack() as undo:
            master, slave = _open_terminal(self.terminals, *message["size"])
            undo.callback(os.close, master)
            undo.callback(os.close, slave)
            modes.reset(slave)  # now: a shell goes back to what it found whenever a program dies by a signal
            reader, writer = os.pipe2(os.O_CLOEXEC)
            with open(reader, "rb"), open(writer, "wb"):
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
                os.write(writer, _SET_UP)
                pid = self._fork(lambda: self._spawn_shell(message, slave, reader), evict=True)
                # the slave stays open so that the master never hangs up early; the master tells the foreground group
                child = Child(pid, channel, (slave, master))
                handle = os.pidfd_open(pid)
                try:
                    self._hand_over(child, [master, writer, handle])
                finally:
                    os.close(handle)
            undo.pop_all()
        return child

    def _spawn_shell(self, message: dict[str, Any], slave: int, script: int) -> int:
        return _spawn_shell(message, os.ttyname(slave), script)

    def _terminal(self, message: dict[str, Any], channel: socket.socket) -> Child:
        """A program on a new terminal, which hangs up when the last process on it ends."""
        master, slave = _open_terminal(self.terminals, *message["size"])
        try:
            pid = self._fork(lambda: fork_to(lambda: _run_on_terminal(message, slave)), evict=False)
            child = Child(pid, channel)
            self._hand_over(child, [master])
        finally:
            os.close(master)
            os.close(slave)
        return child

    @staticmethod
    def _hand_over(child: Child, descriptors: list[int]) -> None:
        try:
            wire.send(child.channel, {"pid": child.pid}, descriptors)
        except OSError as error:  # nobody waits for it any more
            kill(child.pid, signal.SIGKILL)
            if error.errno == errno.ETOOMANYREFS:  # descriptors that somebody inside has sent, and nobody received
                raise

    def _program(self, message: dict[str, Any], channel: socket.socket, descriptors: list[int]) -> Child:
        pid = self._fork(lambda: fork_to(lambda: _run(message, descriptors)), evict=False)
        return Child(pid, channel)

    def _fork(self, fork: Callable[[], int], evict: bool) -> int:
        """Call `fork`; where the process limit is eaten up, `evict` ends everything inside first."""
        for _ in range(100):
            try:
                return fork()
            except OSError:
                if self.watch and self.watch.pids:
                    self.watch.hit("pids")
                if not evict:
                    raise
            self._evict()
        return fork()

    def _evict(self) -> None:
        """End everything inside."""
        watchdog.kill_everything()
        self._reap()
        time.sleep(0.01)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            child = self.children.pop(pid, None)
            if child:
                self._forget(child)
                try:
                    wire.send(child.channel, {"exit": os.waitstatus_to_exitcode(status)})
                except OSError:
                    pass
                child.close()

    def _forget(self, child: Child) -> None:
        if self.channels.pop(child.channel.fileno(), None):
            self.poller.unregister(child.channel)

    def _signal(self, child: Child) -> None:
        received = wire.receive(child.channel)
        if received is None:  # the host gave it up
            self._forget(child)
            if not child.held:
                kill(-child.pid, signal.SIGKILL)
            kill_for_good(child.pid)
            return
        message, _ = received
        if child.held:
            kill_foreground(child, message["signal"], message["since"], message["shell"])
        else:
            kill(-child.pid, message["signal"])
            if message["signal"] == signal.SIGKILL:
                kill_for_good(child.pid)
            else:
                kill(child.pid, message["signal"])
        try:
            wire.send(child.channel, {"signalled": True})
        except OSError:
            pass


def _restore_link(path: str, target: str) -> None:
    """What lies there instead is set aside, where that can be."""
    try:
        if os.path.lexists(path):
            if os.path.islink(path) and os.readlink(path) == target:
                return
            os.rename(path, f"{path}.{time.monotonic_ns()}")
        os.symlink(target, path)
    except OSError:
        pass


def fork_to(work: Callable[[], None]) -> int:
    """-> the pid of a child that does that, which never returns."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(126)
    return pid


def _run(message: dict[str, Any], streams: list[int]) -> None:
    os.setsid()
    _become_or_tell(message, streams)


def _run_on_terminal(message: dict[str, Any], slave: int) -> None:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    _become_or_tell(message, [slave, slave, slave])


def _open_terminal(maker: str, rows: int, columns: int) -> tuple[int, int]:
    """(master, slave) of a new pseudo-terminal of the sandbox's own"""
    master = os.open(maker, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    return master, fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def _spawn_shell(message: dict[str, Any], terminal: str, script: int) -> int:
    """-> its pid. By vfork(2): a copy of this process's page tables would take longer than all the rest.

    All descriptors here are closed on exec. The terminal becomes the controlling one of the new session's first
    process when that opens it. Raises OSError when there can be no more processes.
    """
    streams = [(os.POSIX_SPAWN_OPEN, 0, terminal, os.O_RDWR, 0), (os.POSIX_SPAWN_DUP2, 0, 1)]
    streams += [(os.POSIX_SPAWN_DUP2, 0, 2), (os.POSIX_SPAWN_DUP2, script, 9)]
    _change_directory(message["cwd"], strict=False)
    try:
        pid = os.posix_spawn(
            SHELL[0],
            SHELL,
            message["env"],
            file_actions=streams,
            setsid=True,
            setsigmask=[],
            setsigdef=_IGNORED_SIGNALS,
        )
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise
        pid = os.fork()  # no bash here any more, or an environment that is too long: a shell that ends at once
        if pid == 0:
            os._exit(127)
    finally:
        os.chdir("/")
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:  # rather than pid 1; it runs nothing yet
            file.write("500")
    except OSError:  # it has ended
        pass
    return pid


def _become_or_tell(message: dict[str, Any], streams: list[int]) -> None:
    """In a forked child: exec the message's argv with these for 0, 1 and 2, or say why not and exit as a shell does."""
    argv = message["argv"]
    try:
        become(argv, message, dict(enumerate(streams)), strict=True)
    except _NoDirectory as error:
        what, status = f"cannot start in {message['cwd']}: {error}", 126
    except OSError as error:
        what, status = f"{argv[0]}: {error.strerror}", 127 if error.errno == errno.ENOENT else 126
    except ValueError as error:  # half a character, which JSON can hold
        what, status = f"arguments or environment: {error}", 126
    os.write(2, f"{what}\n".encode("utf-8", "backslashreplace" if status == 126 else "surrogateescape"))
    os._exit(status)


def become(argv: list[str], message: dict[str, Any], streams: dict[int, int], strict: bool) -> None:
    """In a forked child: take these descriptors and no others, and exec argv with the message's `env` in its `cwd`.

    If that directory is gone, `strict` raises _NoDirectory, else it is the nearest that is left.
    """
    lifted = {number: fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for number, descriptor in streams.items()}
    for number, descriptor in lifted.items():  # lifted first: the numbers, all below 10, may collide
        os.dup2(descriptor, number)
    low = 3
    for number in sorted(set(streams) - {0, 1, 2}):
        os.closerange(low, number)
        low = number + 1
    os.closerange(low, 1 << 20)
    signal.set_wakeup_fd(-1)
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    syscalls.set_dumpable(True)  # nothing of pid 1's is open any more, and its files in /proc are its own again
    # rather than pid 1; denied where it may write nothing below /proc
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    _change_directory(message["cwd"], strict)
    os.execvpe(argv[0], argv, message["env"])


class _NoDirectory(Exception):
    pass


def _change_directory(path: str, strict: bool) -> None:
    while True:
        try:
            return os.chdir(path)
        except OSError as error:
            if strict or path in ("/", ""):
                raise _NoDirectory(error.strerror) from None
            path = os.path.dirname(path.rstrip("/"))


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def kill_for_good(pid: int) -> None:
    """The end of what is traced is told to its tracer alone until that has ended, too (ptrace(2))."""
    kill(pid, signal.SIGKILL)
    try:
        with open(f"/proc/{pid}/status") as file:
            tracer = next(int(line.split()[1]) for line in file if line.startswith("TracerPid:"))
    except (OSError, StopIteration):
        return
    if tracer > 1:
        kill(tracer, signal.SIGKILL)


def kill_foreground(child: Child, number: int, since: int, shell: bool) -> None:
    """Signal what a shell is running.

    INT goes to the shell too, whose trap ends the step. Where the shell itself is in the foreground, TERM and KILL go
    to those of its children that began after the step did (`since`, in ticks after boot); with `shell` to the shell.
    """
    pid, master = child.pid, child.held[1]
    try:
        group = os.tcgetpgrp(master)
    except OSError:
        group = pid
    if number == signal.SIGINT:
        kill(pid, signal.SIGCONT)
    if group > 1 and group != pid:
        if number == signal.SIGINT:
            kill(pid, number)
        kill(-group, number)
        kill(-group, signal.SIGCONT)
    elif number == signal.SIGINT:
        kill(-pid, number)
    else:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            parent, its_group, start = int(fields[1]), int(fields[2]), int(fields[19])
            if parent == pid and start >= since:
                kill(-its_group if its_group != pid else int(name), number)
    if shell:
        kill_for_good(pid)

"""A running sandbox, as its owner holds it."""

import contextlib
import os
import platform
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from minisandbox_ray.errors import Owner, SandboxError

from . import diff as diff_
from . import files, launcher, program
from .disposal import dispose
from .interaction import Interaction
from .plan import make_plan
from .session import OnOutput, Session, SessionBusyError, Step, check_name, check_size
from .snapshot import Origin, SessionState, Snapshot
from .spec import DEFAULT_ENV, CommandResult, ExecResult, Isolation, LimitName, Limits, SandboxSpec
from .starter import paths, wire
from .terminal import Terminal
from .times import seconds

_LONGEST_MEMO = 1 << 15  # characters
_DIFF_LIMITS = Limits(memory_mib=4096, disk_mib=2048)
_SPAWN_SECONDS, _CLOSE_SECONDS = 60.0, 30.0
_SIZE = (50, 200)  # rows and columns of a session's terminal
_FULL = 1 << 16  # bytes free, at most, on a disk that is called full


class WallTimeError(SandboxError):
    """The sandbox's time is up."""

    owner: Owner = "agent"


class Sandbox:
    """A copy-on-write view of host directories in namespaces of its own, with limits and a shell.

    Threads may share one; the steps of a session run one at a time. `close` may be called at any time and ends what
    is running. It ends with its owning process, however that dies.

    Raises SandboxError when it cannot be started, and from every method once it is gone.
    """

    def __init__(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, shell: bool = True) -> None:
        """With a snapshot of a sandbox of the same spec, it starts with those files instead of none. Without `shell`,
        the main session's shell is started by the first `run` and not beside what else is done: for programs alone."""
        self._open(spec, _origin(snapshot, spec), shell=shell)

    def _open(self, spec: SandboxSpec, origin: Origin | None, *, shell: bool = True) -> None:
        self.spec = spec
        self._env = {**DEFAULT_ENV, **spec.env}
        self._state = threading.Condition()
        self._users: list[int] = []  # the threads of calls that are under way; guarded by _state, as _closed is
        self._closed = self._to_close = False
        self._closing = threading.RLock()  # a signal handler may close in the middle of that
        self._sessions: dict[str, Session] = {}
        self._sessions_lock, self._diff_lock = threading.Lock(), threading.Lock()
        self._fresh: Sandbox | None = None  # while a diff is made
        self._enter(origin, shell)

    def run(
        self,
        command: str,
        timeout: float = 60,
        *,
        session: str = "main",
        idle_timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> CommandResult:
        """Run shell commands in a session, a bash on a terminal; state persists between calls.

        `timeout` in seconds, `idle_timeout` in seconds without output: then INT, TERM and KILL go to what is running,
        and the shell is kept where that helps. `on_output` is called with each piece of output (bytes, as printed) as
        it comes; what it raises stops the command and is raised here. The session `main` opens by itself; steps of one
        session wait for one another. Raises ValueError for another session that is not open, SessionBusyError while an
        interactive program holds it, BrokenSandboxError if what ran before left no shell that starts.
        """
        time, idle = seconds(timeout, "timeout"), seconds(idle_timeout, "idle_timeout")
        with self._in_use():
            return self._result(self._session(session).run(command, min(time, self._seconds_left()), idle, on_output))

    def open_session(
        self,
        name: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        rows: int = 50,
        columns: int = 200,
    ) -> None:
        """Open a session beside the others. `env` is added to the sandbox's.

        Raises ValueError if the name is no file name or taken, SandboxError if the directory does not exist.
        """
        check_name(name)
        program.check_environment(env or {})
        size = check_size(rows, columns)
        with self._in_use(), self._sessions_lock:
            if name in self._sessions:
                raise ValueError(f"session {name!r} is open already")
            self._open_session(name, cwd or self.spec.cwd, {**self._env, **(env or {})}, size)

    def close_session(self, name: str) -> None:
        """End a session and what runs in it; a thread that waits for that gets a SandboxError."""
        with self._in_use():
            session = self._sessions.get(name)
            if session is None:
                raise ValueError(self._unknown(name))
            session.close()
            with self._sessions_lock:
                if self._sessions.get(name) is session:
                    del self._sessions[name]

    def interact(self, command: str, *, session: str = "main", timeout: float = 60) -> Interaction:
        """Run an interactive program (python3, gdb, less) as the session's step, and type to it.

        `timeout` in seconds is the default of its waits. Close it, or use it in a `with` statement: it holds the
        session until it has ended. Raises as `run` does.
        """
        with self._in_use():
            return Interaction(
                self._session(session),
                command,
                timeout=timeout,
                output_limit=self.spec.limits.output_chars,
                in_use=self._in_use,
                as_result=self._result,
            )

    @property
    def sessions(self) -> list[str]:
        """The names of those that are open, oldest first."""
        return list({**self._sessions, **self._carried})

    def interrupt(self, session: str = "main") -> None:
        """From another thread: stop what the session runs, as a limit on time does, and wait until that is over.

        INT, TERM and KILL go to its foreground; the shell is kept where that helps. Nothing happens if nothing runs.
        """
        with self._in_use():
            if session in self._sessions or session != "main":
                self._session(session).interrupt()

    def resize(self, rows: int, columns: int, session: str = "main") -> None:
        """Tell what runs in the session the size of its window, in characters."""
        size = check_size(rows, columns)
        with self._in_use():
            self._session(session).resize(*size)

    def _session(self, name: str) -> Session:
        found = self._sessions.get(name)
        if found:
            return found
        with self._sessions_lock:
            if name not in self._sessions:
                usual = self._main_state() if name == "main" else None
                state = self._carried.get(name, usual)
                if state is None:
                    raise ValueError(self._unknown(name))
                self._open_session(name, state.cwd, state.env, state.size)
                self._carried.pop(name, None)
            return self._sessions[name]

    def _main_state(self) -> SessionState:
        return SessionState(self.spec.cwd, self._env, _SIZE)

    def _unknown(self, name: str) -> str:
        return f"no session {name!r}: open are {', '.join(self.sessions) or 'none'}"

    def _open_session(self, name: str, cwd: str, env: dict[str, str], size: tuple[int, int]) -> None:
        """`env` is all that its shell starts with. The caller holds the lock."""
        self._sessions[name] = Session(
            name,
            self._descriptors["control"],
            self._spawn,
            cwd=cwd,
            env=env,
            clean_env=self._env,
            size=size,
            output_limit=self.spec.limits.output_chars,
            is_root_used=bool(self._sessions),
            directory=self._directory,
        )

    def _result(self, step: Step) -> CommandResult:
        timed_out = step.stopped_by in ("timeout", "idle_timeout")
        return CommandResult(
            output=step.capture.text(),
            exit_code=step.exit_code,
            timed_out=timed_out,
            truncated=step.capture.truncated,
            restarted=step.restarted,
            limit=self._limit(timed_out=timed_out, truncated=step.capture.truncated, seconds=step.seconds),
            cwd=step.cwd,
            seconds=step.seconds,
            output_bytes=step.capture.total,
            stopped_by=step.stopped_by,
        )

    def execute(
        self,
        argv: list[str],
        *,
        stdin: bytes | int = b"",
        timeout: float = 60,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        max_output: int = 10 << 20,
        on_output: program.OnOutput | None = None,
        stop: int | None = None,
    ) -> ExecResult:
        """Run one program without a shell, session or terminal.

        `stdin` is its input, or a descriptor that is read to its end meanwhile. `timeout` in seconds, then its process
        group is killed. `max_output` in bytes, of each stream; more is cut in the middle. `env` is added to the
        sandbox's. `on_output` is called with 1 (stdout) or 2 (stderr) and each piece of output as it comes. Once the
        descriptor `stop` is readable, it is ended as by the limit on time. What it leaves in the background lives on.
        """
        program.check_request(argv, cwd, env or {})
        time_limit = seconds(timeout, "timeout")
        with self._in_use():
            left = min(time_limit, self._seconds_left())
            request = {"op": "program", "argv": argv, "cwd": cwd or self.spec.cwd, "env": {**self._env, **(env or {})}}
            result = program.run(
                self._control, request, stdin=stdin, timeout=left, max_output=max_output, on_output=on_output, stop=stop
            )
            how = {key: result[key] for key in ("timed_out", "truncated", "seconds")}
            return ExecResult(**result, limit=self._limit(**how))

    def open_terminal(
        self,
        argv: list[str],
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> Terminal:
        """Start a program on a terminal of its own, for a person; it lives beside sessions and one-shot programs."""
        program.check_request(argv, cwd, env or {})
        size = check_size(rows, columns)
        with self._in_use():
            variables = {**self._env, "TERM": "xterm", **(env or {})}
            request = {"op": "terminal", "argv": argv, "cwd": cwd or self.spec.cwd, "env": variables}
            return Terminal(*self._ask({**request, "size": size}))

    def read_file(self, path: str, max_bytes: int = 64 << 20) -> bytes:
        """The content of a regular file. A relative path is one below the spec's cwd.

        Links are resolved inside the sandbox. Raises OSError as open() does; EFBIG if it is larger than `max_bytes`.
        """
        with self._in_use():
            return files.read(self._root, self._absolute(path), max_bytes)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a regular file, with its directories; `mode` is for a new one. Raises OSError as open() does."""
        with self._in_use():
            files.write(self._root, self._absolute(path), data, mode)

    def upload(self, source: Path, target: str) -> None:
        """Copy a host file, or a directory with all below it, to `target`: files, directories and links.

        What is there is overwritten, what is only there stays. Raises OSError as open() does.
        """
        with self._in_use():
            files.upload(self._root, Path(source), self._absolute(target))

    def download(self, source: str, target: Path, max_bytes: int = 1 << 30) -> None:
        """Copy a file, or a directory with all below it, to the host path `target`; `max_bytes` in all.

        Links below the directory stay links, and are never followed, whoever made them; nothing special is copied, no
        set-user-id, no owner. Raises OSError as open() does; EFBIG if it is too much.
        """
        with self._in_use():
            files.download(self._root, self._absolute(source), Path(target), max_bytes)

    def diff(self, memo: MutableMapping[str, str] | None = None) -> str:
        """The change of /testbed since the start as a git patch against the commit that the lower layer holds.

        Made from the overlay's upper layer in a fresh sandbox: no git program reads what was written in this one. New
        files that the pristine repository ignores are left out, and so is everything in a directory named .git. Bytes
        that are not UTF-8 are surrogate escapes. `memo` keeps patches by the content of the change, so that an equal
        one costs no git (small changes only); share one only among sandboxes whose lower directories never change.
        Raises DiffTooLargeError; SandboxError if /testbed is no repository.
        """
        with self._in_use(), self._diff_lock:
            overlays = [overlay for overlay in self.spec.overlays if overlay.target == "/testbed"]
            if not overlays:
                raise SandboxError("diff() needs an overlay on /testbed")
            fresh = SandboxSpec(overlays=overlays, limits=_DIFF_LIMITS, isolation=self.spec.isolation)
            merged = paths.open_in_root(self._root, "/testbed", os.O_PATH | os.O_DIRECTORY)
            try:
                if self._has_copies:
                    with Sandbox(fresh, shell=False) as self._fresh:
                        pristine = paths.open_in_root(self._fresh._root, "/testbed", os.O_PATH | os.O_DIRECTORY)
                        try:
                            change = diff_.compare(pristine, merged, diff_.places(self._directory))
                        finally:
                            os.close(pristine)
                else:
                    change = diff_.collect(self._descriptors["upper"], merged)
                if not change:
                    return ""
                key = None
                if memo is not None:
                    key = diff_.memo_key([str(path) for overlay in overlays for path in overlay.lower], change)
                    if key is not None and key in memo:
                        return memo[key]
                with Sandbox(fresh, shell=False) as self._fresh:
                    if self._closed or self._to_close:  # before this one could be ended with it
                        raise SandboxError("the sandbox is closed")
                    patch = diff_.make_patch(self._fresh, change)
                if memo is not None and key is not None and len(patch) <= _LONGEST_MEMO:
                    memo[key] = patch
                return patch
            finally:
                self._fresh = None
                os.close(merged)

    def fork(self) -> "Sandbox":
        """A new sandbox with the same files, at a cost that grows with what was written, not with what is below.

        Each session's directory and exported variables go with them; processes do not. What a program is writing
        meanwhile may be copied half-way. Raises SandboxError.
        """
        with self._in_use():
            child = Sandbox.__new__(Sandbox)
            child._open(self.spec, Origin(self._written, self._born, self._session_states()))
            return child

    def snapshot(self) -> Snapshot:
        """Keep the files as they are now, for `restore` and for new sandboxes. Close it when it is not needed any more.

        Raises SandboxError.
        """
        with self._in_use():
            states = self._session_states()
            copied = [overlay.target for overlay in self.spec.overlays if self._has_copies]
            descriptors = launcher.take_snapshot(self._written, copied, confined=self.is_confined)
            return Snapshot(self.spec, descriptors, states)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of this sandbox or one of the same spec: its files, and fresh shells in them.

        Everything that runs is ended; a call that is under way in another thread gets a SandboxError.
        """
        if snapshot is None:
            raise TypeError("restore() needs a snapshot")
        origin = _origin(snapshot, self.spec)
        if self._is_user():
            raise SessionBusyError("the sandbox was asked for a restore in the middle of a call of this thread")
        with self._closing:
            with self._state:
                if self._closed:
                    raise SandboxError("the sandbox is closed")
            self._end()
            self._sessions = {}
            self._enter(origin)
            with self._state:
                self._closed = False

    @property
    def written_places(self) -> list[tuple[str, int, str]]:
        """Where what was written to each overlay lies: (the overlay's target, a directory's descriptor, path below it).

        Besides what was not written where the overlay is a copy. Trust no link there; the descriptors close with the
        sandbox.
        """
        if self._has_copies:
            return [(overlay.target, self._root, overlay.target) for overlay in self.spec.overlays]
        layers = self._descriptors["layers"]
        return [(overlay.target, layers, f"{number}-upper") for number, overlay in enumerate(self.spec.overlays)]

    @property
    def _written(self) -> tuple[int, int]:
        return self._descriptors["root"], self._descriptors["layers"]

    def _session_states(self) -> dict[str, SessionState]:
        with self._sessions_lock:
            open_ = {name: session.state() for name, session in self._sessions.items()}
            return {**open_, **self._carried}

    @property
    def init_pid(self) -> int:
        """Its first process, as the host numbers it; -1 when it is gone."""
        if self._closed:
            return -1
        return launcher.pid_of(self._handle)

    @property
    def is_confined(self) -> bool:
        """Whether it has no namespaces, so that paths are others for its commands (see SandboxSpec.isolation)."""
        return bool(self._directory)

    @property
    def is_alive(self) -> bool:
        return not self._closed and self._is_running()

    def close(self) -> None:
        """End everything inside, at once; nothing is left. Idempotent.

        In the middle of a call of the same thread (an output callback, a signal handler) that call does the rest.
        """
        with self._state:
            if self._is_user():
                self._to_close = True
                self._kill()
                return
        with self._closing:
            self._end()

    def _end(self) -> None:
        """The caller holds `_closing`."""
        with self._state:
            if self._closed:
                return
            self._closed = True
        self._kill()
        poller = select.poll()
        poller.register(self._handle, select.POLLIN)
        poller.poll(_CLOSE_SECONDS * 1000)
        with self._state:  # calls that were under way have seen the end by now
            self._state.wait_for(lambda: not self._users)
        for session in self._sessions.values():
            session.close()
        self._control.close()
        if self._first:
            self._first[1].close()
        os.close(self._handle)
        dispose(self._descriptors.values(), self._groups)

    def _kill(self) -> None:
        if self._directory:  # to be removed by its first process
            with contextlib.suppress(OSError):  # shut down before
                self._control.shutdown(socket.SHUT_RDWR)
            poller = select.poll()
            poller.register(self._handle, select.POLLIN)
            poller.poll(_CLOSE_SECONDS * 1000)
        if self._is_running():
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        if fresh := self._fresh:
            fresh.close()

    def _is_user(self) -> bool:
        """Whether a call of this thread is under way."""
        return threading.get_ident() in self._users

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _enter(self, origin: Origin | None, shell: bool = True) -> None:
        self._carried = dict(origin.sessions) if origin else {}
        plan = {**_plan(self.spec), "since": origin.since if origin else 0}
        main = self._carried.get("main", self._main_state())
        request = _shell_request(main.cwd, main.env, main.size, strict=True) if shell else None
        launched = launcher.launch(plan, origin.descriptors if origin else (), request)
        self._control, self._handle, self._descriptors, self._groups = launched[:4]
        self._born, self._has_copies, self._directory, channel = launched[4:]
        self._first = (request, channel) if channel else None
        self._root = self._descriptors["root"]
        self._deadline = time.monotonic() + self.spec.limits.wall_seconds  # pid 1's is some seconds later
        try:
            for place in {"/dev/shm", *(overlay.target for overlay in self.spec.overlays)}:  # what can be full
                self._descriptors[place] = paths.open_in_root(self._root, place, os.O_PATH | os.O_DIRECTORY)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):  # its root is empty once its first process is gone
                raise SandboxError(f"the sandbox did not start, or was killed at once: {error}") from error
            raise

    def _is_running(self) -> bool:
        poller = select.poll()  # not select(2): descriptor numbers may be large
        poller.register(self._handle, select.POLLIN)
        return not poller.poll(0)

    @contextmanager
    def _in_use(self, *, late: bool = False) -> Iterator[None]:
        """While a call is under way its descriptors stay open.

        Raises SandboxError if the sandbox is closed, WallTimeError (unless `late`) if its time is up.
        """
        with self._state:
            if self._closed or self._to_close:
                raise SandboxError("the sandbox is closed")
            if not late:
                self._check_time()
            self._users.append(threading.get_ident())
        try:
            yield
        except SandboxError:
            self._check_time()  # why it is gone
            raise
        finally:
            with self._state:
                self._users.remove(threading.get_ident())
                self._state.notify_all()
            if self._to_close and not self._is_user():
                self.close()

    def _check_time(self) -> None:
        if self._seconds_left() <= 0:
            raise WallTimeError(f"the sandbox's time is up: limits.wall_seconds is {self.spec.limits.wall_seconds:g}")

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.spec.cwd}/{path}"

    def _spawn(
        self, cwd: str, env: dict[str, str], size: tuple[int, int], strict: bool
    ) -> tuple[socket.socket, list[int]]:
        return self._ask(_shell_request(cwd, env, size, strict=strict))

    def _ask(self, request: wire.Message) -> tuple[socket.socket, list[int]]:
        """Have pid 1 start something on a terminal; -> (its channel, its descriptors)"""
        with self._state:
            is_first = self._first is not None and self._first[0] == request  # what was asked for at the start
            first, self._first = (self._first, None) if is_first else (None, self._first)
        if first:
            channel = first[1]
        else:
            channel, theirs = wire.channel()
            with theirs, contextlib.suppress(OSError):  # seen by what follows
                wire.send(self._control, request, [theirs.fileno()])
        try:
            channel.settimeout(_SPAWN_SECONDS)
            received = wire.receive(channel)
            channel.settimeout(None)
        except OSError:
            received = None
        if received is None or "error" in received[0]:
            channel.close()
            reason = received[0]["error"] if received else "it is gone (closed, or its first process was killed)"
            raise SandboxError(f"no {request['op']} in this sandbox: {reason}")
        return channel, received[1]

    def limit_hit(self) -> LimitName | None:
        """A limit that was hit since the last call or result, or a disk that is full now. Also after its wall time."""
        with self._in_use(late=True):
            return "wall_time" if self._seconds_left() <= 0 else self._limit()

    def _limit(self, *, timed_out: bool = False, truncated: bool = False, seconds: float = 0) -> LimitName | None:
        """The gravest limit that was hit; which of them matter depends on how the command ended."""
        hits = self._groups.new_hits(seconds)
        if timed_out and self._seconds_left() <= 0:
            return "wall_time"
        for name in ("memory", "pids"):
            if name in hits:
                return name
        if any(_is_full(self._descriptors[name]) for name in self._descriptors if name == "root" or name[0] == "/"):
            return "disk"
        if timed_out and "cpu" in hits:
            return "cpu"
        return "output" if truncated else None

    def _seconds_left(self) -> float:
        """Of its wall time."""
        return self._deadline - time.monotonic()


def _is_full(file_system: int) -> bool:
    status = os.fstatvfs(file_system)
    return status.f_bavail * status.f_frsize <= _FULL or (status.f_files > 0 and status.f_favail == 0)


def _shell_request(cwd: str, env: dict[str, str], size: tuple[int, int], *, strict: bool) -> wire.Message:
    return {"op": "shell", "cwd": cwd, "env": env, "size": size, "strict": strict}


def _origin(snapshot: Snapshot | None, spec: SandboxSpec) -> Origin | None:
    if snapshot is None:
        return None
    if not isinstance(snapshot, Snapshot):
        raise TypeError(f"no snapshot: {snapshot!r:.80}")
    if snapshot.is_closed:
        raise SandboxError("the snapshot is closed")
    if snapshot.spec != spec:
        raise ValueError("the snapshot is of a sandbox with another spec")
    return snapshot.origin


def _plan(spec: SandboxSpec) -> dict[str, Any]:
    try:
        return make_plan(spec)
    except OSError as error:
        raise SandboxError(f"the sandbox did not start: {error.filename}: {error.strerror}") from None


def check_supported(isolation: Isolation = "strict") -> None:
    """Start a sandbox for real. Raises SandboxError with what this machine lacks, in one line."""
    if platform.system() != "Linux":
        raise SandboxError(f"sandboxes need Linux, this is {platform.system()}")
    with Sandbox(SandboxSpec(isolation=isolation)) as sandbox:
        result = sandbox.run("true", timeout=30)
    if result.exit_code != 0:
        raise SandboxError(f"a sandbox started, but `true` gave {result.exit_code} in it: {result.output.strip()}")

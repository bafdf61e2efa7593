"""SWE-ReX's runtime over one sandbox."""

import errno
import io
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from swerex.exceptions import (
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SessionNotInitializedError,
    SwerexException,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    BashInterruptAction,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    IsAliveResponse,
    Observation,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Sandbox

from .session import PROMPT, BashSession
from .threads import in_thread
from .upload import upload

_START_SECONDS = 60.0
_ERRNO = {os.strerror(number): number for number in errno.errorcode}


class SandboxFailureError(SwerexException, SandboxError):
    """The sandbox died, was closed, or its time is up; `owner` says whose fault that is."""


class MiniSandboxRuntime(AbstractRuntime):
    """Whoever made the sandbox closes it. Threads and event loops may share the runtime, none is needed to make it.

    Calls raise what SWE-ReX's local runtime raises, and SandboxFailureError.
    """

    def __init__(self, sandbox: Sandbox, *, logger: logging.Logger | None = None) -> None:
        self.logger = logger or get_logger("rex-runtime")
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._sessions: dict[str, BashSession | None] = {}  # None: about to be one
        self._numbers = itertools.count()

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the sandbox runs."""
        is_alive = self._sandbox.is_alive
        return IsAliveResponse(is_alive=is_alive, message="" if is_alive else "the sandbox has ended")

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Open a bash and source the files in it. Raises SessionExistsError; CommandTimeoutError for slow files."""
        if not isinstance(request, CreateBashSessionRequest):
            raise ValueError(f"unknown session type: {request!r}")
        with self._lock:
            if request.session in self._sessions:
                raise SessionExistsError(f"session {request.session} already exists")
            self._sessions[request.session] = None
        try:
            session, output = await in_thread(lambda: self._open(request), discard=lambda opened: opened[0].close())
        except BaseException:
            with self._lock:
                self._sessions.pop(request.session, None)
            raise
        with self._lock:
            self._sessions[request.session] = session
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: Action) -> Observation:
        """Run a command, or type to what runs, or interrupt it. Raises SWE-ReX's errors.

        After CommandTimeoutError the command runs on: interrupt it, or the next one waits for it. When the caller is
        cancelled, the command is ended. `failure_reason` names a limit of the sandbox that was hit. Bytes that are not
        UTF-8 are replaced by U+FFFD.
        """
        session = self._session(action.session)
        if isinstance(action, BashInterruptAction):
            return await in_thread(lambda: _told(session.interrupt, action))
        cancelled = threading.Event()
        return await in_thread(lambda: _told(session.run, action, cancelled), cancel=lambda: session.cancel(cancelled))

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """End it, and what runs in it."""
        session = self._session(request.session)
        with self._lock:
            self._sessions.pop(request.session, None)
        await in_thread(lambda: _told(session.close))
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        """As subprocess.run() does, but for a negative exit code: it is 128 + signal.

        `env` is all of the program's environment, if given. With it, or with merged streams, a program that is not
        there gives exit code 127 instead of FileNotFoundError. Raises CommandTimeoutError, NonZeroExitCodeError. When
        the caller is cancelled, the program is killed.
        """
        reader, writer = socket.socketpair()

        def run() -> CommandResponse:
            with reader, writer:
                return _told(self._execute, command, reader.fileno())

        return await in_thread(run, cancel=writer.close)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """A text file's content. Raises OSError and UnicodeError as Path.read_text() does."""
        data = await in_thread(lambda: _told(self._sandbox.read_file, request.path))
        text = io.TextIOWrapper(io.BytesIO(data), encoding=request.encoding or "utf-8", errors=request.errors)
        return ReadFileResponse(content=text.read())

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a text file, with its directories."""
        data = request.content.encode()
        await in_thread(lambda: _told(self._sandbox.write_file, request.path, data))
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or a directory of the host; see `upload.upload`."""
        await in_thread(lambda: _told(upload, self._sandbox, request.source_path, request.target_path))
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """End all sessions; the sandbox lives on."""
        with self._lock:
            sessions = list(filter(None, self._sessions.values()))
            self._sessions = {name: session for name, session in self._sessions.items() if session is None}
        for session in sessions:
            with suppress(SandboxError):  # the sandbox has ended, and all in it
                await in_thread(session.close)
        return CloseResponse()

    def _session(self, name: str) -> BashSession:
        with self._lock:
            if name not in self._sessions:
                raise SessionDoesNotExistError(f"session {name!r} does not exist")
            session = self._sessions[name]
        if session is None:
            raise SessionNotInitializedError(f"session {name!r} is about to start")
        return session

    def _open(self, request: CreateBashSessionRequest) -> tuple[BashSession, str]:
        name = f"rex{next(self._numbers)}"
        # as in an interactive bash, for files that look for its prompt and for aliases
        lines = [f"PS1='{PROMPT}'; shopt -s expand_aliases", *(f"source {path}" for path in request.startup_source)]
        timeout = request.startup_timeout if request.startup_source else _START_SECONDS
        _told(self._sandbox.open_session, name)
        session = BashSession(self._sandbox, name)
        try:
            result = _told(self._sandbox.run, "\n".join(lines), timeout, session=name)
            if result.timed_out:
                raise CommandTimeoutError(f"timeout after {timeout} seconds while sourcing {request.startup_source}")
        except BaseException:
            with suppress(SandboxError):
                session.close()
            raise
        return session, result.output

    def _execute(self, command: Command, stop: int) -> CommandResponse:
        argv = [command.command] if isinstance(command.command, str) else command.command
        if command.shell:
            argv = ["/bin/sh", "-c", *argv]
        is_plain = command.env is None and not command.merge_output_streams
        if command.env is not None:  # nothing else
            argv = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in command.env.items()), *argv]
        if command.merge_output_streams:
            argv = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *argv]
        timeout = float("inf") if command.timeout is None else command.timeout
        result = self._sandbox.execute(argv, cwd=command.cwd, timeout=timeout, stop=stop)
        if result.timed_out:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        stdout, stderr = (stream.decode(errors="backslashreplace") for stream in (result.stdout, result.stderr))
        if is_plain and not stdout:
            _check_start(result.exit_code, stderr, argv[0], command.cwd)
        if command.check and result.exit_code != 0:
            message = (
                f"Command {command.command!r} failed with exit code {result.exit_code}. "
                f"Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
            )
            raise NonZeroExitCodeError(f"{command.error_msg}: {message}" if command.error_msg else message)
        return CommandResponse(stdout=stdout, stderr=stderr, exit_code=result.exit_code)


def _check_start(exit_code: int, stderr: str, program: str, cwd: str | None) -> None:
    """Raise what subprocess.run() raises, where the sandbox only says that it could not start the program."""
    for status, what, path in ((127, program, program), (126, program, program), (126, f"cannot start in {cwd}", cwd)):
        start, _, reason = stderr.strip().rpartition(": ")
        if exit_code == status and start == what and reason in _ERRNO:
            raise OSError(_ERRNO[reason], reason, path)


def _told[**P, T](call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Have SWE-ReX's callers told in their words that the sandbox failed."""
    try:
        return call(*args, **kwargs)
    except SandboxError as error:
        failure = SandboxFailureError(str(error))
        failure.owner = error.owner
        raise failure from error

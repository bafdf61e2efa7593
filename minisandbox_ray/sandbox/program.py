"""One-shot programs: no shell, no terminal, bounded output."""

# ruff: noqa: PTH123

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from io import FileIO
from typing import Any

from minisandbox_ray.errors import SandboxError

from .capture import Capture
from .starter import wire
from .times import poll_milliseconds

_KILL_SECONDS = 10.0
_GONE = "the sandbox is gone (closed, or its first process was killed)"


OnOutput = Callable[[int, bytes], object]
"""Called with 1 (stdout) or 2 (stderr) and what was printed there, as it comes."""


def check_environment(env: dict[str, str]) -> None:
    """Raises ValueError for what no environment can hold."""
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ValueError(f"{name!r} is no name of an environment variable")
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"the environment variable {name} is no string without a NUL character")


def check_request(argv: list[str], cwd: str | None, env: dict[str, str]) -> None:
    """Raises ValueError for what no program can be started with."""
    if isinstance(argv, str) or not argv:
        raise ValueError("argv is a list of the program's name and its arguments, not empty")
    for argument in argv:
        if not isinstance(argument, str) or "\0" in argument:
            raise ValueError(f"{argument!r:.80} in argv is no string without a NUL character")
    if not argv[0]:
        raise ValueError("argv[0], the program's name, is empty")
    if cwd is not None and "\0" in cwd:
        raise ValueError(f"cwd {cwd!r} holds a NUL character")
    check_environment(env)


def run(
    control: socket.socket,
    request: dict[str, Any],
    *,
    stdin: bytes | int,
    timeout: float,
    max_output: int,
    on_output: OnOutput | None = None,
    stop: int | None = None,
) -> dict[str, Any]:
    """Have pid 1 run the request's argv; -> the fields of ExecResult but `limit`. Raises SandboxError if it is gone."""
    began = time.monotonic()
    channel, theirs = wire.channel()
    (in_reader, in_writer), (out_reader, out_writer), (err_reader, err_writer) = (os.pipe2(os.O_CLOEXEC) for _ in "123")
    outputs = {out_reader: Capture(max_output), err_reader: Capture(max_output)}
    with channel, open(in_writer, "wb", buffering=0) as feed, open(out_reader, "rb"), open(err_reader, "rb"):
        try:
            with theirs:
                wire.send(control, request, [theirs.fileno(), in_reader, out_writer, err_writer])
        except OSError:
            raise SandboxError(_GONE) from None
        finally:
            for descriptor in (in_reader, out_writer, err_writer):
                os.close(descriptor)
        for descriptor in (in_writer, *outputs):
            os.set_blocking(descriptor, False)
        exit_code, timed_out = _talk(
            channel, feed, stdin, outputs, deadline=began + timeout, on_output=on_output, stop=stop
        )
    stdout, stderr = outputs.values()
    return {
        "stdout": stdout.data(),
        "stderr": stderr.data(),
        "exit_code": exit_code,
        "timed_out": timed_out,
        "truncated": stdout.truncated or stderr.truncated,
        "seconds": time.monotonic() - began,
    }


def _talk(
    channel: socket.socket,
    feed: FileIO,
    stdin: bytes | int,
    outputs: dict[int, Capture],
    *,
    deadline: float,
    on_output: OnOutput | None,
    stop: int | None,
) -> tuple[int, bool]:
    """Feed and read until the program's end; -> (exit code, whether the deadline (monotonic) ended it)"""
    numbers = dict(zip(outputs, (1, 2), strict=True))

    def emit(descriptor: int, data: bytes) -> None:
        outputs[descriptor].add(data)
        if on_output:
            on_output(numbers[descriptor], data)

    def take(descriptor: int, times: int) -> bool:
        for data in _read(descriptor, times):
            if not data:
                return False
            emit(descriptor, data)
        return True

    poller = select.poll()
    for descriptor in (channel.fileno(), *outputs):
        poller.register(descriptor, select.POLLIN)
    if stop is not None:
        poller.register(stop, select.POLLIN)
    target, source = feed.fileno(), stdin if isinstance(stdin, int) else -1
    view, timed_out = memoryview(b"" if isinstance(stdin, int) else stdin), False
    poller.register(*((source, select.POLLIN) if source >= 0 else (target, select.POLLOUT)))
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            if timed_out:
                raise SandboxError("a killed program does not end: the kernel holds it")
            timed_out, deadline = True, time.monotonic() + _KILL_SECONDS
            _kill(channel)
            continue
        for descriptor, event in poller.poll(poll_milliseconds(left)):
            if descriptor == stop:
                poller.unregister(stop)
                deadline = deadline if timed_out else 0.0
            elif descriptor == source:
                poller.unregister(source)
                view = memoryview(os.read(source, 1 << 16))
                if view:
                    poller.register(target, select.POLLOUT)
                else:
                    feed.close()
            elif descriptor == target:
                view = _write(target, view)
                if view and not event & select.POLLERR:
                    continue
                poller.unregister(target)
                if source >= 0 and not event & select.POLLERR:
                    poller.register(source, select.POLLIN)
                else:
                    feed.close()
            elif descriptor in outputs:
                if not take(descriptor, times=1):
                    poller.unregister(descriptor)
            else:
                received = wire.receive(channel)
                if received is None:
                    raise SandboxError(_GONE)
                message, _ = received
                if "error" in message:
                    emit(list(outputs)[1], message["error"].encode("utf-8", "surrogateescape") + b"\n")
                    return 126, timed_out
                if "exit" in message:
                    for output in outputs:  # what it printed is in the pipes by now
                        take(output, times=1024)
                    code = message["exit"]
                    return (128 - code if code < 0 else code), timed_out


def _kill(channel: socket.socket) -> None:
    try:
        wire.send(channel, {"signal": signal.SIGKILL})
    except OSError:
        pass


def _write(stdin: int, view: memoryview) -> memoryview:
    """Write some; -> what is left, nothing if nobody reads."""
    try:
        return view[os.write(stdin, view[: 1 << 16]) :]
    except BlockingIOError:
        return view
    except BrokenPipeError:
        return view[:0]


def _read(descriptor: int, times: int) -> Iterator[bytes]:
    """What is there, in pieces; an empty one at its end."""
    for _ in range(times):
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        yield data
        if not data:
            return

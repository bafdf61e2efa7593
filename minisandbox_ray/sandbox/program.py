"""One-shot programs: no shell, no terminal, bounded output."""

# ruff: noqa: PTH123

import os
import select
import signal
import socket
import time
from io import FileIO
from typing import Any

from minisandbox_ray.errors import SandboxError

from .capture import Capture
from .starter import wire

_KILL_SECONDS = 10.0
_GONE = "the sandbox is gone (closed, or its first process was killed)"


def run(
    control: socket.socket, request: dict[str, Any], stdin: bytes, timeout: float, max_output: int
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
        exit_code, timed_out = _talk(channel, feed, stdin, outputs, began + timeout)
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
    channel: socket.socket, feed: FileIO, data: bytes, outputs: dict[int, Capture], deadline: float
) -> tuple[int, bool]:
    """Feed and read until the program's end; -> (exit code, whether the deadline (monotonic) ended it)"""
    poller = select.poll()
    for descriptor in (channel.fileno(), *outputs):
        poller.register(descriptor, select.POLLIN)
    stdin = feed.fileno()
    poller.register(stdin, select.POLLOUT)
    view, timed_out = memoryview(data), False
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            if timed_out:
                raise SandboxError("a killed program does not end: the kernel holds it")
            timed_out, deadline = True, time.monotonic() + _KILL_SECONDS
            _kill(channel)
            continue
        for descriptor, event in poller.poll(left * 1000):
            if descriptor == stdin:
                view = _write(stdin, view)
                if not view or event & select.POLLERR:
                    poller.unregister(stdin)
                    feed.close()
            elif descriptor in outputs:
                if not _read(descriptor, outputs[descriptor], times=1):
                    poller.unregister(descriptor)
            else:
                received = wire.receive(channel)
                if received is None:
                    raise SandboxError(_GONE)
                message, _ = received
                if "error" in message:
                    outputs[max(outputs)].add(message["error"].encode("utf-8", "surrogateescape") + b"\n")
                    return 126, timed_out
                if "exit" in message:
                    for output, capture in outputs.items():  # what it printed is in the pipes by now
                        _read(output, capture, times=1024)
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


def _read(descriptor: int, capture: Capture, times: int) -> bool:
    """Read what is there; -> False at its end."""
    for _ in range(times):
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        capture.add(data)
    return True

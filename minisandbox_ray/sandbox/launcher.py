"""The owning process's side of its starter: one per process, started when first needed, replaced when it died."""

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from minisandbox_ray.errors import SandboxError

from .groups import Groups
from .spec import Limits
from .starter import cgroups, wire

_CODE = "import sys; sys.path.append({path!r}); from starter.main import main; main({descriptor})"
_START_SECONDS = 60.0


class _Starter:
    def __init__(self) -> None:
        self.owner = cgroups.owner_key(os.getpid())
        self.socket, theirs = wire.channel()
        with theirs:
            code = _CODE.format(path=str(Path(__file__).parent), descriptor=theirs.fileno())
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code],
                env={},
                cwd="/",
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        handle = os.pidfd_open(os.getpid())
        try:
            wire.send(self.socket, {"owner": self.owner}, [handle])
        except OSError:
            pass  # it died at once: told by the first request
        finally:
            os.close(handle)
            process.wait()


_starter: _Starter | None = None
_lock = threading.Lock()


def _forget() -> None:
    """A forked child needs a starter of its own: this one answers to the parent's life."""
    global _starter, _lock
    if _starter is not None:
        _starter.socket.close()
    _starter, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _get(dead: _Starter | None = None) -> _Starter:
    """The process's starter; a new one if there is none or it is `dead`."""
    global _starter
    with _lock:
        if _starter is None or _starter is dead:
            if _starter is not None:
                _starter.socket.close()
            _starter = _Starter()
        return _starter


def launch(plan: dict[str, Any], limits: Limits) -> tuple[socket.socket, int, dict[str, int], Groups]:
    """Start a sandbox. -> (control socket of its pid 1, pidfd of its pid 1, the root's descriptors, control groups)

    Raises SandboxError with what failed inside.
    """
    starter = _get()
    for attempt in (1, 2):
        control, theirs = wire.channel()
        handle, groups = -1, None
        try:
            with theirs:
                try:
                    wire.send(starter.socket, plan, [theirs.fileno()])
                except OSError:
                    pass  # seen by the next line
            if received := _answer(control):
                message, (handle,) = received
                try:
                    groups = Groups(message["groups"], limits)
                    wire.send(control, {})
                except OSError:
                    _answer(control)  # it died: raises what it says of that
                    raise
                if received := _answer(control):
                    message, descriptors = received
                    found = dict(zip(message["descriptors"], descriptors, strict=True))
                    groups.add_watchdog(found.get("hits"))
                    return control, handle, found, groups
        except BaseException as error:
            _give_up(control, handle, groups)
            if isinstance(error, OSError):
                raise SandboxError(f"the sandbox did not start: {error}") from None
            raise
        _give_up(control, handle, groups)
        if attempt == 1:  # the starter was killed
            starter = _get(dead=starter)
    raise SandboxError("the sandbox did not start: its starter process ends at once (run `python -I -S -c ''` to see)")


def _give_up(control: socket.socket, handle: int, groups: Groups | None) -> None:
    control.close()
    if handle >= 0:
        os.close(handle)
    if groups:
        groups.close()


def _answer(control: socket.socket) -> tuple[wire.Message, list[int]] | None:
    """None if whoever should answer has died."""
    control.settimeout(_START_SECONDS)
    try:
        received = wire.receive(control)
    except TimeoutError:
        raise SandboxError(f"no sandbox within {_START_SECONDS:.0f} s: the node is overloaded or hangs") from None
    finally:
        control.settimeout(None)
    if received and "error" in received[0]:
        raise SandboxError(f"the sandbox did not start: {received[0]['error']}")
    return received


def pid_of(handle: int) -> int:
    """Of a pidfd; -1 if the process is gone."""
    found = re.search(r"^Pid:\s*(-?\d+)", Path(f"/proc/self/fdinfo/{handle}").read_text(), re.MULTILINE)
    return int(found[1]) if found else -1

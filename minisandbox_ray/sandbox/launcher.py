"""The owning process's side of its starter: one per process, started when first needed, replaced when it died."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from minisandbox_ray.errors import SandboxError

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


def owner_key() -> str:
    """Names this process in what its sandboxes leave in the control group tree."""
    return _get().owner


def launch(plan: dict[str, Any]) -> tuple[socket.socket, int, dict[str, int]]:
    """Start a sandbox. -> (control socket of its pid 1, pidfd of its pid 1, the root's descriptors)

    Raises SandboxError with what failed inside.
    """
    starter = _get()
    for attempt in (1, 2):
        control, theirs = wire.channel()
        try:
            with theirs:
                wire.send(starter.socket, plan, [theirs.fileno()])
            control.settimeout(_START_SECONDS)
            received = wire.receive(control)
            control.settimeout(None)
        except OSError as error:
            received = None
            if isinstance(error, TimeoutError):
                control.close()
                raise SandboxError(
                    f"no sandbox within {_START_SECONDS:.0f} s: the node is overloaded or hangs"
                ) from None
        if received is not None and "error" not in received[0]:
            message, (handle, *descriptors) = received
            return control, handle, dict(zip(message["descriptors"], descriptors, strict=True))
        control.close()
        if received is not None:
            raise SandboxError(f"the sandbox did not start: {received[0]['error']}")
        if attempt == 1:  # the starter was killed
            starter = _get(dead=starter)
    raise SandboxError("the sandbox did not start: its starter process ends at once (run `python -I -S -c ''` to see)")

"""The owning process's side of its starter: one per process, started when first needed, replaced when it died."""

import fcntl
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from minisandbox_ray.errors import SandboxError

from .groups import Groups
from .plan import scratch
from .starter import cgroups, wire

_CODE = "import sys; sys.path.append({path!r}); from starter.main import main; main({descriptor})"
_START_SECONDS = 60.0


class _Starter:
    def __init__(self) -> None:
        self.owner = cgroups.owner_key(os.getpid())
        self.socket, theirs = wire.channel()
        with theirs, socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)) as passed:
            # not 0, 1 or 2, as it may be where those are closed: they become the starter's own
            code = _CODE.format(path=str(Path(__file__).parent), descriptor=passed.fileno())
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code],
                env={},
                cwd="/",
                pass_fds=[passed.fileno()],
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
    for starter in [*_stale, *([_starter] if _starter else [])]:
        starter.socket.close()
    _stale.clear()
    _starter, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


_stale: list[_Starter] = []  # have sandboxes still, but do not see what the host has mounted since


def _get(unfit: _Starter | None = None, *, is_stale: bool = False) -> _Starter:
    """The process's starter; a new one if there is none or it is `unfit`, which means dead unless it is stale."""
    global _starter
    with _lock:
        if _starter is None or _starter is unfit:
            if _starter is not None and is_stale:
                _stale.append(_starter)
            elif _starter is not None:
                _starter.socket.close()
            _starter = _Starter()
        return _starter


class Launched(NamedTuple):
    """A sandbox that runs."""

    control: socket.socket
    """Of its first process."""
    handle: int
    """A pidfd of its first process."""
    descriptors: dict[str, int]
    """What the starter's root.complete tells."""
    groups: Groups
    born: int
    """When its files were as every sandbox's are, in nanoseconds after the epoch."""
    copies: bool
    """It has copies in the place of overlays."""
    directory: str
    """Its private directory on the host, if it is confined instead of isolated (starter/confined.py), else empty."""
    first: socket.socket | None
    """Where the answer to its first request comes."""


def launch(plan: wire.Message, origin: Sequence[int] = (), request: wire.Message | None = None) -> Launched:
    """Start a sandbox, with the files that the descriptors of `origin` (root, layers) show.

    `request` is what its first process is asked for before it runs, so that it need not wait for that later. Raises
    SandboxError with what failed inside.
    """
    starter = _get()
    for _ in range(3):
        outcome = _attempt(starter, {"op": "sandbox", **plan}, origin, request)
        if isinstance(outcome, Launched):
            return outcome
        starter = _get(starter, is_stale=outcome == "stale")
    raise SandboxError("the sandbox did not start: its starter process ends at once (run `python -I -S -c ''` to see)")


def _attempt(
    starter: _Starter, plan: wire.Message, origin: Sequence[int], request: wire.Message | None
) -> Launched | Literal["dead", "stale"]:
    """Else what is wrong with the starter."""
    control, theirs = wire.channel()
    first, answers = wire.channel() if request else (None, None)
    with theirs:
        try:
            wire.send(starter.socket, plan, [theirs.fileno(), *origin])
            if request and answers:
                with answers:
                    wire.send(control, request, [answers.fileno()])
        except OSError:
            pass  # seen by the next line
    descriptors: list[int] = []
    try:
        received = _answer(control)
        if received and "stale" not in received[0]:
            message, descriptors = received
            handle, *shown = descriptors
            named = dict(zip(message["descriptors"], shown, strict=True))
            groups = Groups(message["groups"])
            groups.add_watchdog(named.get("hits"))
            about = message["born"], message["copies"], message.get("directory", "")
            return Launched(control, handle, named, groups, *about, first)
    except BaseException as error:
        control.close()
        if first:
            first.close()
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, OSError):
            raise SandboxError(f"the sandbox did not start: {error}") from None
        raise
    control.close()
    if first:
        first.close()
    return "stale" if received else "dead"


def take_snapshot(origin: Sequence[int], copied: Sequence[str], *, confined: bool) -> list[int]:
    """Copy what the descriptors of `origin` (root, layers) show; -> descriptors of the copies. Raises SandboxError.

    `copied` are the paths of what is a copy itself, not an overlay; `confined`: they lie in a private directory.
    """
    control, theirs = wire.channel()
    with control:
        with theirs:
            try:
                request = {"op": "snapshot", "copied": list(copied), "scratch": scratch(), "confined": confined}
                wire.send(_get().socket, request, [theirs.fileno(), *origin])
            except OSError:
                pass  # seen by the next line
        received = _answer(control, "snapshot")
    if received is None:
        raise SandboxError("no snapshot was taken: the starter process was killed meanwhile")
    return received[1]


def _answer(control: socket.socket, what: str = "sandbox") -> tuple[wire.Message, list[int]] | None:
    """None if whoever should answer has died."""
    control.settimeout(_START_SECONDS)
    try:
        received = wire.receive(control)
    except TimeoutError:
        raise SandboxError(f"no {what} within {_START_SECONDS:.0f} s: the node is overloaded or hangs") from None
    finally:
        control.settimeout(None)
    if received and "error" in received[0]:
        for directory, _ in received[0]["groups"].values():
            cgroups.remove(Path(directory), patience=1)
        failed = "the sandbox did not start" if what == "sandbox" else f"no {what} was taken"
        raise SandboxError(f"{failed}: {received[0]['error']}")
    return received


def pid_of(handle: int) -> int:
    """Of a pidfd; -1 if the process is gone."""
    found = re.search(r"^Pid:\s*(-?\d+)", Path(f"/proc/self/fdinfo/{handle}").read_text(), re.MULTILINE)
    return int(found[1]) if found else -1

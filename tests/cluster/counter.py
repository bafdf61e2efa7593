"""Small classes for workers to host, which stand for an episode where no sandbox is needed."""

import os
import threading
import time
from pathlib import Path

from minisandbox_ray.cluster import HostContext
from minisandbox_ray.errors import SandboxError, TaskError


class Counter:
    """Counts its calls."""

    def __init__(self, context: HostContext, start: int = 0, notes: Path | None = None) -> None:
        self.count = start
        self.ended = False
        self._notes = notes
        self._closed = threading.Event()

    def add(self) -> tuple[int, int]:
        self.count += 1
        return self.count, os.getpid()

    def fail(self) -> None:
        raise TaskError("the task is broken")

    def finish(self) -> str:
        self.ended = True
        return "done"

    def wait(self, seconds: float) -> float:
        started = time.monotonic()
        if self._closed.wait(seconds):
            raise SandboxError("closed while waiting")
        return time.monotonic() - started

    def die(self) -> None:
        os._exit(3)

    def close(self) -> None:
        self._closed.set()
        if self._notes is not None:
            with self._notes.open("a") as file:
                file.write("closed\n")


class Unprepared:
    """Finds out that its node cannot host it."""

    @staticmethod
    def prepare(context: HostContext) -> None:
        raise SandboxError("no sandbox on this machine")


class Deadly:
    """Takes its worker down."""

    def __init__(self, context: HostContext) -> None:
        os._exit(3)

"""The process that builds one environment."""

import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict

from minisandbox_ray.environments import EnvSpec, NodeStore, Source, build_environment, read_manifest
from minisandbox_ray.errors import ConfigError, MiniSandboxError
from minisandbox_ray.sandbox import Isolation
from minisandbox_ray.tasks.building.causes import cause_of


class Order(BaseModel):
    """What a worker is to build, and where."""

    model_config = ConfigDict(frozen=True)

    spec: EnvSpec | None
    """The recipe; none to find one automatically."""
    source: Source | None
    """What becomes /testbed of a recipe that is to be found."""
    notes: list[str]
    """For the log."""
    archives: Path
    store: Path
    isolation: Isolation
    repo_mirror: Path | None
    log: Path
    """Where all that is printed goes."""


class Result(BaseModel):
    """What became of it."""

    model_config = ConfigDict(frozen=True)

    digest: str = ""
    """The environment's; empty if it failed."""
    archive_bytes: int = 0
    unpacked_bytes: int = 0
    test_command: list[str] = []
    """Of an automatically found recipe."""
    cause: str = ""
    """Class of the failure, see `causes`."""
    message: str = ""
    """What the error says, with the last lines of the failed command."""
    bad_input: bool = False
    """Whether nothing can be built here until a person changes something."""


def work(connection: Connection, order: Order) -> None:
    """Build, send a line (str) per step and a `Result` at the end. SIGTERM and the parent's death end it in order."""
    # Ctrl-C reaches the whole foreground group: it is the parent that tells us, once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_watch, args=(connection,), daemon=True).start()
    try:
        with order.log.open("w", encoding="utf-8", errors="replace") as log:
            connection.send(_build(connection, order, log))
    except (KeyboardInterrupt, BrokenPipeError):
        pass


def _build(connection: Connection, order: Order, log: IO[str]) -> Result:
    def step(line: str) -> None:
        print(f"# {line}", file=log, flush=True)
        connection.send(line)

    for note in order.notes:
        print(f"# note: {note}", file=log, flush=True)
    store = NodeStore(order.store, isolation=order.isolation)
    try:
        if order.spec is None:
            assert order.source is not None
            from minisandbox_ray.tasks.automatic import find_environment

            found = find_environment(
                order.source, archives=order.archives, store=store, repo_mirror=order.repo_mirror, log=step
            )
            manifest = read_manifest(order.archives, found.digest)
            command = found.test_command
        else:
            manifest = build_environment(
                order.spec,
                order.archives,
                store,
                step,
                order.repo_mirror,
                lambda text: print(text, file=log, flush=True),
            )
            command = []
    except MiniSandboxError as error:
        print(error, file=log, flush=True)
        return Result(cause=cause_of(error), message=str(error), bad_input=isinstance(error, ConfigError))
    return Result(
        digest=manifest.digest,
        archive_bytes=manifest.archive_bytes,
        unpacked_bytes=manifest.unpacked_bytes,
        test_command=command,
    )


def _interrupt(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _watch(connection: Connection) -> None:
    """The parent sends nothing; its end of the pipe closes when it dies."""
    try:
        connection.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)

"""Builds side by side, each in a process of its own; one that fails is tried once more."""

import multiprocessing
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Protocol

from minisandbox_ray.environments import NodeStore, cache_root, read_manifest
from minisandbox_ray.environments.room import writable_directory
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks.building.causes import FINAL, KILLED
from minisandbox_ray.tasks.building.jobs import Job
from minisandbox_ray.tasks.building.worker import Order, Result, work

ATTEMPTS = 2
"""What fails is tried once more: an index or a line may have been down."""
STOP_SECONDS = 60.0
"""How long builds may take to end when asked to."""


@dataclass
class Outcome:
    """What became of a job."""

    job: Job
    result: Result
    attempts: int = 0
    """Builds; 0 if its archive was there."""
    seconds: float = 0.0
    """Of the last attempt."""
    log: Path | None = None
    """All that the last attempt printed."""


class Watcher(Protocol):
    """Who wants to see what happens."""

    def step(self, job: Job, line: str) -> None:
        """A build under way comes to a step."""

    def done(self, outcome: Outcome) -> None:
        """A job is over."""


@dataclass
class _Running:
    job: Job
    attempt: int
    process: SpawnProcess
    connection: Connection
    log: Path
    since: float = field(default_factory=time.monotonic)


class Builder:
    """Builds jobs into `archives`, and leaves the environments unpacked in `store` as far as its budget goes."""

    def __init__(self, archives: Path, store: NodeStore, repo_mirror: Path | None = None) -> None:
        self._archives, self._store, self._mirror = archives, store, repo_mirror
        self._logs = cache_root() / "logs"

    def run(self, jobs: list[Job], workers: int, progress: Watcher | None = None) -> list[Outcome]:
        """Build all; what is there already is found. Outcomes are in the order of `jobs`.

        On KeyboardInterrupt the builds under way end first and leave nothing. Raises ConfigError where nothing can be
        built until a person changes something, such as archives that cannot be written.
        """
        writable_directory(self._logs)
        outcomes: dict[str, Outcome] = {}

        def over(outcome: Outcome) -> None:
            outcomes[outcome.job.key] = outcome
            if progress:
                progress.done(outcome)

        waiting: deque[tuple[Job, int]] = deque()
        for job in jobs:
            if job.built(self._archives):
                over(Outcome(job, self._found(job)))
            else:
                waiting.append((job, 1))
        running: list[_Running] = []
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.append(self._start(*waiting.popleft()))
                ready = wait([each.connection for each in running])
                for each in [each for each in running if each.connection in ready]:
                    message = _receive(each)
                    if isinstance(message, str):
                        if progress:
                            progress.step(each.job, message)
                        continue
                    each.process.join()
                    each.connection.close()
                    running.remove(each)
                    if message.bad_input:
                        raise ConfigError(message.message)
                    if not message.digest and message.cause not in FINAL and each.attempt < ATTEMPTS:
                        waiting.append((each.job, each.attempt + 1))
                        continue
                    seconds = time.monotonic() - each.since
                    over(Outcome(each.job, message, each.attempt, seconds, each.log))
        finally:
            _stop(running)
        return [outcomes[job.key] for job in jobs]

    def _found(self, job: Job) -> Result:
        manifest = read_manifest(self._archives, job.key)
        return Result(digest=job.key, archive_bytes=manifest.archive_bytes, unpacked_bytes=manifest.unpacked_bytes)

    def _start(self, job: Job, attempt: int) -> _Running:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", job.key if job.automatic else job.key[:16])
        log = self._logs / f"build-{name}.log"
        order = Order(
            spec=next(iter(job.recipes.values())).spec if job.recipes else None,
            source=job.source,
            notes=job.notes,
            archives=self._archives,
            store=self._store.root,
            isolation=self._store.isolation,
            repo_mirror=self._mirror,
            log=log,
        )
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, order), daemon=True)
        process.start()
        theirs.close()
        return _Running(job, attempt, process, ours, log)


def _receive(running: _Running) -> str | Result:
    try:
        message: str | Result = running.connection.recv()
        return message
    except (EOFError, OSError):
        running.process.join()
        status = running.process.exitcode
        return Result(cause=KILLED, message=f"the process that built {running.job.key[:12]} ended with status {status}")


def _stop(running: list[_Running]) -> None:
    for each in running:
        each.process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for each in running:
        each.process.join(max(0.0, deadline - time.monotonic()))
        if each.process.is_alive():
            each.process.kill()
            each.process.join()
        with suppress(OSError):
            each.connection.close()


def outcomes_by_task(outcomes: list[Outcome]) -> Iterator[tuple[str, Outcome]]:
    """Each task's id with what became of its environment."""
    for outcome in outcomes:
        for task in outcome.job.tasks:
            yield task.instance_id, outcome

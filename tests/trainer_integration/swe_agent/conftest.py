"""Real sandboxes, called as SWE-agent calls them: an event loop per call."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("swerex", reason="SWE-ReX is not installed")

from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from trainer_integration.swe_agent import MiniSandboxDeployment

HANG = 60.0  # seconds


@pytest.fixture(scope="session", autouse=True)
def _supported(sandboxes: None) -> None:
    pass


class Rex:
    """A started deployment; every method is a call with a loop of its own."""

    def __init__(self, **fields: Any) -> None:
        self.deployment = MiniSandboxDeployment(**fields)
        asyncio.run(self.deployment.start())
        self.runtime = self.deployment.runtime

    def open(self, session: str = "default", **fields: Any) -> str:
        return asyncio.run(self.runtime.create_session(CreateBashSessionRequest(session=session, **fields))).output

    def run(self, command: str, **fields: Any) -> BashObservation:
        action = BashAction(command=command, **{"timeout": HANG, **fields})
        return asyncio.run(self.runtime.run_in_session(action))

    def interrupt(self, **fields: Any) -> BashObservation:
        return asyncio.run(self.runtime.run_in_session(BashInterruptAction(**fields)))

    def close_session(self, session: str = "default") -> None:
        asyncio.run(self.runtime.close_session(CloseBashSessionRequest(session=session)))

    def execute(self, command: str | list[str], **fields: Any) -> CommandResponse:
        return asyncio.run(self.runtime.execute(Command(command=command, **{"timeout": HANG, **fields})))

    def read(self, path: str, **fields: Any) -> str:
        return asyncio.run(self.runtime.read_file(ReadFileRequest(path=path, **fields))).content

    def write(self, path: str, content: str) -> None:
        asyncio.run(self.runtime.write_file(WriteFileRequest(path=path, content=content)))

    def upload(self, source: object, target: str) -> None:
        asyncio.run(self.runtime.upload(UploadRequest(source_path=str(source), target_path=target)))

    def stop(self) -> None:
        asyncio.run(self.deployment.stop())


@pytest.fixture
def start_rex() -> Iterator[Callable[..., Rex]]:
    """Starts deployments with these fields, and stops them in the end."""
    with ExitStack() as stack:

        def start(**fields: Any) -> Rex:
            rex = Rex(**fields)
            stack.callback(rex.stop)
            return rex

        yield start


@pytest.fixture
def rex() -> Iterator[Rex]:
    """With no session yet."""
    rex = Rex()
    yield rex
    rex.stop()


@pytest.fixture
def shell(rex: Rex) -> Rex:
    """With the default session."""
    rex.open()
    return rex

"""One place for the temporary files of a test session, those of killed subprocesses included; it goes at the end."""

import os
import shutil
import tempfile

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import check_supported

_DIRECTORY = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    # Short: Ray's sockets lie below it, and their paths must fit sockaddr_un.
    config.stash[_DIRECTORY] = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="mst-")
    tempfile.tempdir = None


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_DIRECTORY], ignore_errors=True)


@pytest.fixture(scope="session")
def sandboxes() -> None:
    """For tests that start sandboxes: skips them, with the reason, where that is not possible."""
    try:
        check_supported()
    except SandboxError as error:
        pytest.skip(str(error))

"""One place for the temporary files of a test session, those of killed subprocesses included; it goes at the end."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import check_supported

_TESTS = Path(__file__).parent
_DIRECTORY = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    # Short: Ray's sockets lie below it, and their paths must fit sockaddr_un. So a worker's of pytest-xdist lies beside
    # its session's.
    beside = Path(os.environ["TMPDIR"]).parent if hasattr(config, "workerinput") else None
    config.stash[_DIRECTORY] = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="mst-", dir=beside)
    tempfile.tempdir = None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run side by side (`pytest -n 2 --dist loadgroup`), what shares a cluster or an environment stays together."""
    for item in items:
        package = item.path.parent.relative_to(_TESTS).parts[:1]
        shared = package and package[0] in {"cli", "cluster", "operations", "rollout"}
        item.add_marker(pytest.mark.xdist_group(package[0] if shared else item.path.stem))


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_DIRECTORY], ignore_errors=True)


@pytest.fixture(scope="session")
def sandboxes() -> None:
    """For tests that start sandboxes: skips them, with the reason, where that is not possible."""
    try:
        check_supported()
    except SandboxError as error:
        pytest.skip(str(error))

"""SWE-agent's own tests of its environment (tests/test_env.py of the checkout $SWE_AGENT), in sandboxes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, os.environ["SWE_AGENT"])

from sweagent.environment.repo import LocalRepoConfig
from tests.test_env import *  # noqa: F403

from trainer_integration.swe_agent.instances import SandboxEnvironmentConfig


@pytest.fixture(scope="module")
def test_env_args(tmp_path_factory: pytest.TempPathFactory) -> SandboxEnvironmentConfig:
    """In the place of its own fixture, which clones a repository and asks for a container."""
    repository: Path = tmp_path_factory.mktemp("clone") / "test-repo"
    (repository / "tests").mkdir(parents=True)
    (repository / "tests" / "filetoread.txt").write_text("SWEEnv.read_file\n")
    for words in (
        "init -q",
        "add .",
        "-c user.name=t -c user.email=t@example.org commit -qm one",
        "remote add origin .",
    ):
        subprocess.run(["git", *words.split()], cwd=repository, check=True)
    return SandboxEnvironmentConfig(repo=LocalRepoConfig(path=repository))

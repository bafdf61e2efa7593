"""mini-swe-agent's own tests of its bubblewrap, Docker and local environments (of the checkout $MINI_SWE_AGENT), in
sandboxes.

Left out is what asks for more than an environment: options of those programs, host variables that are handed on, the
host's directories and processes.
"""

import os
import sys
from typing import Any

import pytest

sys.path.insert(0, os.environ["MINI_SWE_AGENT"])

from tests.environments.extra import test_bubblewrap

from tests.environments import test_docker, test_local
from trainer_integration.mini_swe_agent import MiniSandboxEnvironment

_OPTIONS = (
    "config_defaults",
    "custom_executable",
    "custom_wrapper_args",
    "container_timeout",
    "interpreter",
    "run_args",
)
_HOST = ("forward", "existing_env", "shutdown", "wait", "environment_cleanup", "child_process")
_DIRECTORIES = ("custom_cwd", "cwd_parameter", "default_cwd", "directory_creation", "file_operations")
LEFT_OUT = (*_OPTIONS, *_HOST, *_DIRECTORIES)
KEPT = ("docker_environment_custom_cwd", "docker_environment_cwd_parameter")


class Ours(MiniSandboxEnvironment):
    """Takes what names a container, and does without."""

    def __init__(self, *, image: str = "", executable: str = "", **fields: Any) -> None:
        super().__init__(**fields)


test_bubblewrap.BubblewrapEnvironment = test_docker.DockerEnvironment = test_local.LocalEnvironment = Ours
for module in (test_bubblewrap, test_docker, test_local):
    for name, test in vars(module).items():
        if name.startswith("test_") and (
            any(word in name for word in KEPT) or not any(word in name for word in LEFT_OUT)
        ):
            # Not skipped where there is no bubblewrap or Docker.
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            test.pytestmark = [mark for mark in marks if mark.args[0] != "executable"]
            if len(marks) > len(test.pytestmark):
                test = pytest.mark.parametrize("executable", [""])(test)
            globals()[name] = test

"""Tests that name their files from another directory than the root of the tree."""

import shlex

OPTION = "testbed_directory"
"""Name of a pytest plugin, in the venv's site-packages, that changes into it before anything is collected."""

_PLUGIN = """import os
from pathlib import Path


def pytest_sessionstart(session):
    os.chdir(Path("/testbed") / {folder!r})
"""


def install_command(folder: str) -> str:
    """A shell command of a build that writes the plugin for a directory below the root."""
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return f'printf %s {shlex.quote(_PLUGIN.format(folder=folder))} > "$(python -c "{find}")/{OPTION}.py"'

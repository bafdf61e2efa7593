"""mini-swe-agent's local environment: a new shell for each command, outside any sandbox and without a session."""

import os
from collections.abc import Callable
from pathlib import Path

NAME = "mini-swe-agent local environment: a shell per command"


def environment(scratch: Path) -> Callable[[], None] | None:
    """One command with its exit code; None: not installed. Its configuration directory goes to `scratch`."""
    os.environ |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": str(scratch)}
    try:
        from minisweagent.environments.local import LocalEnvironment
    except ImportError:
        return None
    local = LocalEnvironment()

    def command() -> None:
        observed = local.execute({"command": "echo hi"})
        assert observed["returncode"] == 0 and observed["output"] == "hi\n", observed

    return command

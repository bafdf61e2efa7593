"""SWE-ReX's local runtime, the terminal layer of SWE-agent: pexpect on a bash outside any sandbox."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NAME = "SWE-ReX local runtime, with exit code"


@contextmanager
def session() -> Iterator[Callable[[], None] | None]:
    """One command with its exit code in a session that is open; None: not installed."""
    try:
        from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
        from swerex.runtime.local import LocalRuntime
    except ImportError:
        yield None
        return
    runtime = LocalRuntime()
    action = BashAction(command="echo hi", check="silent", timeout=10)
    with asyncio.Runner() as runner:

        def command() -> None:
            observed = runner.run(runtime.run_in_session(action))
            assert observed.exit_code == 0 and observed.output.strip() == "hi", observed

        runner.run(runtime.create_session(CreateBashSessionRequest(startup_timeout=10)))
        try:
            yield command
        finally:
            runner.run(runtime.close())

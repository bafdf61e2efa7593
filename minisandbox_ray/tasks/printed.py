"""Tests of a runner that we have no plugin for: what became of them is read from what it printed.

This can be trusted less than a report of ours: the tests' process, which runs the agent's code, prints it. What is
checked is that the run came to its end by itself, and that its exit status fits what it says.
"""

from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.tasks.parsers import parse_untrusted
from minisandbox_ray.tasks.testrun import VARIABLES, Case, Tail, TestRun

_BOTH = 'exec "$@" 2>&1'


def run_printed(
    sandbox: Sandbox,
    test_command: list[str],
    targets: list[str],
    parser: str,
    *,
    timeout: float,
    log_chars: int,
    longest: int,
) -> TestRun:
    """Run a command at /testbed and parse what it prints. A log of more than `longest` bytes tells nothing.

    Nor does a run that a signal or a limit ended, or whose exit status says otherwise than the statuses. Raises
    SandboxError if the sandbox fails; ConfigError and TaskError as `load_parser`.
    """
    log = Tail(longest)
    result = sandbox.execute(
        ["/bin/sh", "-c", _BOTH, "sh", *test_command, *targets],
        cwd="/testbed",
        env=VARIABLES,
        timeout=timeout,
        max_output=1 << 16,
        on_output=lambda stream, data: log.add(data),
    )
    limit = None if result.limit == "output" else result.limit
    has_ended = not result.timed_out and limit is None and result.exit_code < 126 and log.size <= longest
    text = log.text()
    statuses = parse_untrusted(parser, text) if has_ended else {}
    has_failures = any(status in {"failed", "error"} for status in statuses.values())
    if has_failures != (result.exit_code != 0):
        statuses = {}
    return TestRun(
        cases={test: Case(status) for test, status in statuses.items()},
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        limit=limit,
        log=text[-log_chars:],
        seconds=result.seconds,
    )

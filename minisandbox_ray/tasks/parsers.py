"""What the public data sets call a test: as the log parsers of the packages `swebench` and `swesmith` name it.

Their ids are cut out of what a runner prints (at the first space, for instance), so that several tests may share one.
As a program, this module is the parser of a log that nobody here has written: it has a process and a time of its own,
since no regular expression of theirs was made for hostile text.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from minisandbox_ray.errors import ConfigError, TaskError
from minisandbox_ray.tasks.testrun import Status

Parser = Callable[[str], Mapping[str, str]]
"""What is printed → status by test id."""

_STATUSES: dict[str, Status] = {
    "PASSED": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
}
_SEVERITY: list[Status] = ["skipped", "xfailed", "passed", "failed", "error"]
_LINES = ("PASSED {}", "{} PASSED", "{} ... ok", "{} ok")
"""How a runner tells that a test has passed; each parser knows one of them."""
_SECONDS = 120.0
_LONGEST_LINE = 4000
"""Characters of a line that a parser sees."""


@lru_cache(maxsize=64)
def load_parser(name: str) -> Parser:
    """The parser of "swebench:OWNER/NAME" or "swesmith:OWNER/NAME".

    Raises ConfigError where the package is not installed, TaskError if it does not know the repository.
    """
    package, _, repository = name.partition(":")
    try:
        found = _swebench(repository) if package == "swebench" else _swesmith(repository)
    except ImportError as error:
        raise ConfigError(
            f"test ids of {repository} are those of the package {package}, which cannot be imported ({error}): "
            f"pip install 'minisandbox-ray[{package}]' on every node"
        )
    if found is None:
        raise TaskError(f"the package {package} has no log parser for the repository {repository}")
    return found


def _swebench(repository: str) -> Parser | None:
    from swebench.harness.log_parsers import MAP_REPO_TO_PARSER

    parser = MAP_REPO_TO_PARSER.get(repository)
    # Of its second argument, the instance's specification, parsers for Python make no use.
    return None if parser is None else lambda log: parser(log, None)


def _swesmith(repository: str) -> Parser | None:
    from swesmith.profiles import registry

    for profile in registry.values():
        if f"{profile.owner}/{profile.repo}".lower() == repository.lower():
            return profile.log_parser  # type: ignore[no-any-return]
    return None


def public_names(parser: Parser, tests: Iterable[str]) -> dict[str, str]:
    """What the data set calls each test; a test that its parser cannot name is left out."""
    names = {}
    for test in tests:
        for line in _LINES:
            found = list(parser(line.format(test)))
            if len(found) == 1:
                names[test] = found[0]
                break
    return names


def worst(statuses: Iterable[Status]) -> Status:
    """Of several tests that share an id. Skipped ones do not count beside others: what is printed never names them."""
    return max(statuses, key=_SEVERITY.index, default="missing")


def parse_untrusted(name: str, log: str, environment: Mapping[str, str] | None = None) -> dict[str, Status]:
    """Statuses from a log that a stranger may have printed; an id that is told to pass and to fail has failed.

    Raises ConfigError and TaskError as `load_parser` does. A log that the parser does not get through has no tests.
    """
    load_parser(name)
    environment = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "minisandbox_ray.tasks.parsers", name],
            input=log.encode("utf-8", "surrogateescape"),
            capture_output=True,
            env=environment,
            timeout=_SECONDS,
            check=True,
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError):
        return {}
    return {str(test): status for test, status in told.items()}


def parse(parser: Parser, log: str) -> dict[str, Status]:
    """Statuses from a log, each line looked at alone besides, so that none is hidden by a later one."""
    lines = [line[:_LONGEST_LINE] for line in log.split("\n")]
    found = dict(parser("\n".join(lines)))
    statuses = {test: _STATUSES[status] for test, status in found.items() if status in _STATUSES}
    for line in lines:
        for test, status in parser(line).items():
            if test in statuses and status in _STATUSES:
                statuses[test] = worst([statuses[test], _STATUSES[status]])
    return statuses


def main(arguments: list[str]) -> int:
    """Parse standard input; print JSON."""
    log = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    print("\n" + json.dumps(parse(load_parser(arguments[0]), log)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

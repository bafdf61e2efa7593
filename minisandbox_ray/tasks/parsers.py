"""What the public data sets call a test: as the log parsers of the packages `swebench` and `swesmith` name it.

Their ids are cut out of what a runner prints (at the first space, for instance), so that several tests may share one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from minisandbox_ray.errors import ConfigError, TaskError
from minisandbox_ray.tasks.parse_log import Parser, find_parser
from minisandbox_ray.tasks.testrun import Status

_PROGRAM = Path(__file__).with_name("parse_log.py")
_SEVERITY: list[Status] = ["skipped", "xfailed", "passed", "failed", "error"]
_LINES = ("PASSED {}", "{} PASSED", "{} ... ok", "{} ok")
"""How a runner tells that a test has passed; each parser knows one of them."""
_SECONDS = 120.0


@lru_cache(maxsize=64)
def load_parser(name: str) -> Parser:
    """The parser of "swebench:OWNER/NAME" or "swesmith:OWNER/NAME".

    Raises ConfigError where the package is not installed, TaskError if it does not know the repository.
    """
    package, _, repository = name.partition(":")
    try:
        parser = find_parser(name)
    except ImportError as error:
        raise ConfigError(
            f"test ids of {repository} are those of the package {package}, which cannot be imported ({error}): "
            f"pip install 'minisandbox-ray[{package}]' on every node"
        )
    if parser is None:
        raise TaskError(f"the package {package} has no log parser for the repository {repository}")
    return parser


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


def parse_untrusted(name: str, log: str) -> dict[str, Status]:
    """Statuses from a log that a stranger may have printed; an id that is told to pass and to fail has failed.

    A log that the parser does not get through has no tests.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_PROGRAM), name],
            input=log.encode("utf-8", "surrogateescape"),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=_SECONDS,
            check=True,
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError):
        return {}
    return {str(test): status for test, status in told.items()}

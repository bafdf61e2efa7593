"""The log parsers of the packages `swebench` and `swesmith`; a program, too, that parses standard input with one.

As a program it has a process and a time of its own, for a log that nobody here has written: no regular expression of
theirs was made for hostile text. It starts by its path and imports nothing of this package, which takes longer.
"""

import enum
import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

Parser = Callable[[str], Mapping[str, str]]
"""What is printed → status by test id."""

_STATUSES = {"PASSED": "passed", "FAILED": "failed", "ERROR": "error", "SKIPPED": "skipped", "XFAIL": "xfailed"}
_FAILING = ("failed", "error")
_LONGEST_LINE = 4000
"""Characters of a line that a parser sees."""
_importing = threading.Lock()


def find_parser(name: str) -> Parser | None:
    """The parser of "swebench:OWNER/NAME" or "swesmith:OWNER/NAME"; None if the package does not know the repository.

    Raises ImportError where the package is not installed.
    """
    package, _, repository = name.partition(":")
    return _swebench(repository) if package == "swebench" else _swesmith(repository)


def _swebench(repository: str) -> Parser | None:
    with _importing:
        parsers = _parsers_alone()
    if parsers is None:
        from swebench.harness.log_parsers import MAP_REPO_TO_PARSER

        parsers = MAP_REPO_TO_PARSER
    parser = parsers.get(repository)
    # Of its second argument, the instance's specification, parsers for Python make no use.
    return None if parser is None else lambda log: parser(log, None)


def _parsers_alone() -> dict[str, Any] | None:
    """Those for Python, from their own file: importing the package imports clients of Docker and Modal as well, which
    takes seconds and 100 MB in every worker. None if the file is not as in 4.1."""
    spec = importlib.util.find_spec("swebench")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'swebench'")
    path = Path(next(iter(spec.submodule_search_locations)), "harness", "log_parsers", "python.py")
    needed: dict[str, dict[str, Any]] = {
        "swebench.harness.constants": {"TestStatus": enum.Enum("TestStatus", [(each, each) for each in _STATUSES])},
        "swebench.harness.test_spec.test_spec": {"TestSpec": object},
    }
    if any(name in sys.modules for name in needed):
        return None
    module = ModuleType("swebench_log_parsers")
    try:
        for name, content in needed.items():
            stand_in = ModuleType(name)
            vars(stand_in).update(content)
            sys.modules[name] = stand_in
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
        return vars(module)["MAP_REPO_TO_PARSER_PY"]  # type: ignore[no-any-return]
    except (OSError, ImportError, KeyError):
        return None
    finally:
        for name in needed:
            sys.modules.pop(name, None)


def _swesmith(repository: str) -> Parser | None:
    from swesmith.profiles import registry

    for profile in registry.values():
        if f"{profile.owner}/{profile.repo}".lower() == repository.lower():
            return profile.log_parser  # type: ignore[no-any-return]
    return None


def parse(parser: Parser, log: str) -> dict[str, str]:
    """Statuses from a log. Each line is looked at alone besides: a failure is not hidden by what is printed later."""
    lines = [line[:_LONGEST_LINE] for line in log.split("\n")]
    found = parser("\n".join(lines))
    statuses = {test: _STATUSES[status] for test, status in found.items() if status in _STATUSES}
    for line in lines:
        for test, status in parser(line).items():
            if test in statuses and _STATUSES.get(status) in _FAILING and statuses[test] not in _FAILING:
                statuses[test] = _STATUSES[status]
    return statuses


def main(arguments: list[str]) -> int:
    """Print JSON of the statuses."""
    parser = find_parser(arguments[0])
    log = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    print("\n" + json.dumps(parse(parser, log) if parser else {}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The problem statement of a made task: which tests fail and how, as a person would report it, the same each time."""

import re

from minisandbox_ray.tasks.testrun import TestRun

_SHOWN_TESTS = 8
_SHOWN_FAILURES = 2
_SHOWN_LINES = 14
_WIDTH = 200

_VOLATILE = [
    (re.compile(r"\b0x[0-9a-fA-F]{6,}"), "0x..."),
    (re.compile(r"/tmp/[\w./-]+"), "/tmp/..."),
    (re.compile(r"\b\d+\.\d+ ?(?:s|ms|seconds?)\b"), "some time"),
    (re.compile(r"\bline \d+"), "line N"),
    (re.compile(r"\b\d+ lines? hidden\b|\b\d+ identical leading"), "some lines hidden"),
]


def write_statement(package: str, version: str, run: TestRun, failing: list[str], secret: str) -> str:
    """What is wrong with `package`: its `failing` tests by name, and the assertions of the first few of them.

    `run` is a run with the bug. Output that quotes `secret` (the mutated line) is left out.
    """
    shown = failing[:_SHOWN_TESTS]
    names = "\n".join(f"    {test}" for test in shown)
    more = f"\n    ... and {len(failing) - len(shown)} more" if len(failing) > len(shown) else ""
    tests = "a test fails" if len(failing) == 1 else f"{len(failing)} tests fail"
    parts = [f"In {package} {version} {tests} that passed before:\n\n{names}{more}\n"]
    for test in failing[:_SHOWN_FAILURES]:
        output = _output(run.cases[test].traceback or run.cases[test].message, test.split("::")[0])
        if output and not quotes(output, secret):
            parts.append(f"{test.split('::', 1)[1]}:\n\n{output}\n")
    parts.append("The tests are right. Find the fault in the package's code and fix it there.\n")
    return "\n".join(parts)


def quotes(text: str, secret: str) -> bool:
    """Whether `text` holds the lines of `secret`, spacing aside."""
    squeezed = re.sub(r"\s+", "", secret)
    # A short line, such as "pass", says nothing and would be found everywhere.
    return len(squeezed) >= 8 and squeezed in re.sub(r"\s+", "", text)


def _output(traceback: str, test_file: str) -> str:
    """The test's own statement and pytest's explanation; frames inside the package would give the place away."""
    lines: list[str] = []
    in_test = False
    for line in traceback.splitlines():
        frame = re.match(r"(\S+?):\d+: (?:in |[A-Za-z])", line)
        if frame:
            in_test = frame[1] == test_file
        elif line.startswith("E ") or (in_test and line.startswith("    ")):
            lines.append(normalise(line)[:_WIDTH])
    if len(lines) > _SHOWN_LINES:
        lines = [*lines[:_SHOWN_LINES], "..."]
    return "\n".join(f"    {line.rstrip()}" for line in lines)


def normalise(text: str) -> str:
    """Replaces what differs from run to run: addresses, temporary paths, durations, line numbers and counts."""
    for pattern, replacement in _VOLATILE:
        text = pattern.sub(replacement, text)
    return text

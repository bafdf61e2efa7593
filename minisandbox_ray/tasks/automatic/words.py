"""What a log or a run of tests says about its failure, in a line."""

import re
from collections import Counter

from minisandbox_ray.tasks.testrun import TestRun

_NOISE = re.compile(
    r"^(note:|hint:|\[notice\]|=+|-+|_+|╰─>|│|× |!+|.*\[end of output\]|.*See above for output|.*This error originates"
    r"|WARNING:|error: subprocess-exited|(ERROR: )*Failed (to build|building)|(ERROR: )*Could not build|ERROR test"
    r"|.*warnings? summary|.*\d+ (error|failed|warning|passed).* in [\d.]+s)"
)
_ERROR = re.compile(
    r"\b\w*(Error|Exception|Failed|Exit|Impossible)\b|^ERROR|^error|fatal error|No module named|Could not"
)


def last_word(log: str) -> str:
    """The line that says most about a failure."""
    raised = [line for line in re.findall(r"^E\s{2,}(\S.*)", log, re.MULTILINE) if _ERROR.search(line)]
    if raised:
        return str(Counter(raised).most_common(1)[0][0])[:300]
    lines = [line.strip().removeprefix("E ").strip() for line in log.splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    errors = [line for line in lines if _ERROR.search(line)]
    return next(reversed(errors or lines), "it printed nothing")[:300]


def counts(run: TestRun) -> str:
    counts = Counter(case.status for case in run.cases.values())
    return ", ".join(f"{number} {status}" for status, number in counts.most_common()) or "none was run"


def commonest(run: TestRun) -> str:
    """What most failures say."""
    said = Counter(
        " ".join(case.message.split())[:200] for case in run.cases.values() if case.status in {"failed", "error"}
    )
    return said.most_common(1)[0][0] if said else "flaky"

"""What an agent's shell must survive: session_cases.yaml says what each step must give."""

import os
import re
import time
from pathlib import Path

import pytest
import yaml

from minisandbox_ray.sandbox import CommandResult

from .conftest import Factory, guard, namespace_of, processes_in, still_alive

CASES = [
    case
    for name in ("session_cases.yaml", "hostile_cases.yaml")
    for case in yaml.safe_load((Path(__file__).parent / name).read_text())["cases"]
]
LIMITS = {
    "fills-the-disk": {"disk_mib": 64},
    "eats-memory": {"memory_mib": 256},
    "fork-bomb": {"pids": 128, "memory_mib": 1024},
}
REPEAT = {"timeout-keeps-output-every-time": 30}
LIMIT_NAMES = {"fills-the-disk": "disk", "eats-memory": "memory", "fork-bomb": "pids"}
_JOB_REPORT = re.compile(r"^(\[\d+\][+-]?\s.*|Terminated.*|Killed.*|.*: line \d+: +\d+ (Killed|Terminated).*)\n?", re.M)


def _text(step: dict) -> str:
    if step["run"].startswith("@generate"):
        return "cat > big <<'EOF'\n" + ("x" * 63 + "\n") * 32768 + "EOF\nwc -c < big"
    return step["run"]


def _check(step: dict, result: CommandResult) -> None:
    output = result.output.rstrip()
    wanted = step.get("exit_code", "any")
    if wanted == "nonzero":
        assert result.exit_code != 0
    elif wanted != "any":
        assert result.exit_code == wanted
    if "output" in step:
        assert _JOB_REPORT.sub("", result.output).rstrip() == step["output"].rstrip()
    for text in step.get("contains", []):
        assert text in output
    for text in step.get("lacks", []):
        assert text not in output
    if step.get("timed_out") != "any":
        assert result.timed_out == bool(step.get("timed_out"))
    if "within" in step:
        assert result.seconds <= 5 * step["within"]  # it hangs or it does not: how fast it is, a loaded machine hides
    if step.get("truncated"):
        assert result.truncated
        assert "bytes left out" in output
    if "max_output" in step:
        assert len(result.output) <= step["max_output"]
    if step.get("restarted") is False:
        assert not result.restarted


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict, start: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", "PLANTED-SECRET-ENV")
    sandbox = start(**LIMITS.get(case["id"], {}))
    guard(sandbox)
    namespace = namespace_of(sandbox)
    resident = _resident()
    limits = set()
    for _ in range(REPEAT.get(case["id"], 1)):
        for step in case["steps"]:
            time.sleep(step.get("pause", 0))
            result = sandbox.run(_text(step), timeout=step.get("timeout", 10))
            limits.add(result.limit)
            if "fork: " in result.output:  # without control groups it may be over before anybody looks: as good
                limits.add("pids")
            _check(step, result)
    assert _resident() - resident < 32 << 20
    assert LIMIT_NAMES.get(case["id"]) in {None, *limits}
    if case["id"] == "host-is-invisible":
        assert int(sandbox.run("ls /proc | grep -c '^[0-9]'").output) < 12
    if case["id"] == "history-holds-no-answer":
        assert sandbox.run(case["steps"][0]["run"]).output.split() == ["1", "0", "1", "0"]
    processes = processes_in(namespace)
    sandbox.close()
    assert not still_alive(processes)

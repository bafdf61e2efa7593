import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox_ray.environments import NodeStore
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks.building import Builder, Job, Outcome, Plan, make_report
from minisandbox_ray.tasks.building.report import built_tasks

from .conftest import job, task


class _Watcher:
    def __init__(self) -> None:
        self.steps: list[str] = []
        self.over: list[str] = []

    def step(self, job: Job, line: str) -> None:
        self.steps.append(line)

    def done(self, outcome: Outcome) -> None:
        self.over.append(outcome.job.tasks[0].instance_id)


def test_failures_are_tried_twice_and_told_with_their_logs(store: NodeStore, archives: Path, tmp_path: Path) -> None:
    good, bad = job(store, tmp_path / "a", "echo fine > made"), job(store, tmp_path / "a", "seq 3000; exit 3")
    watcher = _Watcher()
    outcomes = Builder(archives, store).run([bad, good], 2, watcher)
    assert [bool(outcome.result.digest) for outcome in outcomes] == [False, True]
    failed, built = outcomes
    assert (failed.attempts, failed.result.cause, built.attempts) == (2, "install command", 1)
    assert failed.result.message.endswith("\n    3000")
    assert failed.log and {"1", "3000", "# seq 3000; exit 3"} <= set(failed.log.read_text().splitlines())
    assert watcher.steps.count("seq 3000; exit 3") == 2
    assert sorted(watcher.over) == ["echo fine > made", "seq 3000; exit 3"]

    again = Builder(archives, store).run([bad, good], 1)
    assert [outcome.attempts for outcome in again] == [2, 0]
    plan = Plan([bad, good], {"c-1": "no table has it"})
    report = make_report("data.jsonl", "swe-bench", [], plan, again)
    assert (report.ready, report.tasks, report.complete) == (1, 3, False)
    assert [row.status for row in report.environments] == ["failed", "found"]
    assert report.environments[0].log == str(again[0].log)
    ready = built_tasks([task("c-1"), *bad.tasks, *good.tasks], again)
    assert [(each.instance_id, each.environment) for each in ready] == [("echo fine > made", good.key)]
    assert ready[0].test_command == ["/venv/bin/pytest", "-x"]


def test_a_worker_that_is_killed_is_a_failure_of_its_own(store: NodeStore, archives: Path, tmp_path: Path) -> None:
    class Killer(_Watcher):
        def step(self, job: Job, line: str) -> None:
            if line.startswith("sleep"):
                children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
                workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
                for pid in workers:
                    os.kill(int(pid), signal.SIGKILL)

    outcomes = Builder(archives, store).run([job(store, tmp_path / "a", "sleep 86397")], 1, Killer())
    assert (outcomes[0].result.cause, outcomes[0].attempts) == ("killed", 2)
    assert "ended with status -9" in outcomes[0].result.message


def test_what_a_person_must_change_ends_everything(store: NodeStore, tmp_path: Path) -> None:
    (tmp_path / "archives").write_text("a file")
    with pytest.raises(ConfigError, match="archives"):
        Builder(tmp_path / "archives", store).run([job(store, tmp_path / "a", "true")], 1)


STOPPED = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from minisandbox_ray.environments import NodeStore
from minisandbox_ray.tasks.building import Builder
from tasks.building.conftest import job
if __name__ == "__main__":
    store = NodeStore(Path(sys.argv[1]))
    jobs = [job(store, Path(sys.argv[2]), f"touch here && exec sleep 8639{{n}}") for n in (4, 5)]
    Builder(Path(sys.argv[3]), store).run(jobs, 2)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_builds_leave_nothing(number: int, store: NodeStore, archives: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED, str(store.root), str(tmp_path / "a"), str(archives)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        _until(lambda: process.poll() is not None or len(_sleepers()) == 2)
        assert process.poll() is None, "it ended by itself"
        process.send_signal(number)
    assert process.returncode != 0
    _until(lambda: not _sleepers() and not any((store.root / "scratch").iterdir()))
    assert not list(archives.glob("*.tar.zst"))


def _sleepers() -> list[Path]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if command in {b"sleep\x0086394\0", b"sleep\x0086395\0"}:
            found.append(path)
    return found


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)

"""The benchmarks' cheap parts, on an empty sandbox: they run and give figures. No figure is judged here."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox_ray.sandbox import Sandbox, SandboxSpec

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _supported(sandboxes: None) -> None:
    pass


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As they are for `python benchmarks/sandbox.py`, also where a package of tests has the same name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = [each.stem if each.suffix == ".py" else each.name for each in BENCHMARKS.iterdir()]
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]
    sys.modules.update(hidden)


def test_starts_are_measured_in_turns() -> None:
    import starts
    from measure import starts_in_turns

    timings = starts_in_turns({"a": (lambda: starts.start(SandboxSpec()), 4), "b": (_Nothing, 2)})
    assert len(timings["a"].start) == 4 and min(timings["a"].start + timings["a"].close) > 0
    assert len(timings["b"].start) == 2


class _Nothing:
    def close(self) -> None:
        pass


def test_a_burst_lives_until_all_have_answered() -> None:
    import starts
    from measure import Timings, burst

    timings = Timings()
    burst(lambda: starts.start(SandboxSpec()), 4, timings)
    assert len(timings.start) == 4
    assert timings.ready[0] >= max(timings.start)


def test_parts_fill_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import upkeep
    from report import Report

    for name in ("MSWEA_SILENT_STARTUP", "MSWEA_GLOBAL_CONFIG_DIR"):
        monkeypatch.setenv(name, "")  # so that what is set goes away again
    report = Report(["roundtrip_vs_swerex", "roundtrip_vs_mini", "stop_dirty_ms"])
    upkeep.round_trips(report, SandboxSpec(), tmp_path, quick=True)
    upkeep.dirty_stop(report, SandboxSpec(), quick=True)
    measured = {name: value for name, value in report.figures.items() if value is not None}
    assert {"roundtrip_ms", "stop_dirty_ms"} <= measured.keys()
    assert all(isinstance(value, float) and value > 0 for value in measured.values())


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees what is mounted in a sandbox")
def test_bubblewrap_gets_the_same_mounts() -> None:
    from peers import bubblewrap

    with Sandbox(SandboxSpec()) as box:
        starter = bubblewrap.starter(box)
        assert starter is not None
        mounts = bubblewrap.mounts(box)
    assert mounts.count("--ro-bind") >= 1 and "--proc" in mounts and "--dev" in mounts
    starter().close()


def test_soak_tells_what_is_left(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARKS / "soak.py", "--cycles", "20", "--concurrency", "4"]
    command += ["--json", tmp_path / "soak.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    figures = json.loads((tmp_path / "soak.json").read_text())
    assert set(figures["missed"]) <= {"latency", "directories"}, done.stderr  # others work on this machine too
    assert done.returncode == bool(figures["missed"])

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    """What raylets.py saw on two raylets."""
    directory = Path(tempfile.mkdtemp(prefix="msr-test-"))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "RAY_TMPDIR": str(directory)}
    command = [sys.executable, str(Path(__file__).with_name("raylets.py"))]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        assert run.returncode == 0, run.stderr[-3000:]
        yield json.loads(run.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_node_without_unpack_slots_stops_with_one_line(results: dict[str, Any]) -> None:
    assert """ray start --resources='{"unpack_slots": 2}'""" in results["without_slots"]


def test_leases_differ_by_at_most_one_between_nodes(results: dict[str, Any]) -> None:
    assert results["capacity"] == 16
    assert all(more - less <= 1 for less, more in results["spread"])
    assert results["spread"][-1] == [8, 8]


def test_lost_node_costs_its_leases_and_no_others(results: dict[str, Any]) -> None:
    assert results["after_loss"].count("ClusterError") == 8
    assert results["after_loss"].count("SandboxError") == 8  # released in the middle of their calls
    assert [node["used"] for node in results["left"]["nodes"].values()] == [0]
    assert results["again"] == [1] * 8

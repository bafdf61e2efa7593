"""The batch script as Slurm runs it, on two nodes that are both this machine: only `srun` is not Slurm's."""

import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from minisandbox_ray.tasks import Task

from .head import BIN, processes_of, wait_until
from .test_jobs import record

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

SCRIPT = Path(__file__).parents[2] / "configs" / "cluster" / "slurm.sbatch"
NODES = 2
# Runs the command once per node, and hands SIGTERM on to all of them, as srun does.
SRUN = """\
#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
trap 'kill "${tasks[@]}"' TERM
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
    SLURM_NODEID=$node "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || wait "$task"; done
"""


def start(directory: Path, cache: Path, *command: object) -> tuple[subprocess.Popen, Path]:
    """The script, and the directory of its Ray."""
    (directory / ".venv").symlink_to(sys.prefix)
    (directory / "bin").mkdir()
    srun = directory / "bin" / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    job = random.randrange(1_000_000)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
    environment |= {
        "PATH": f"{srun.parent}:{BIN}:{os.environ['PATH']}",
        "MINISANDBOX_CACHE": str(cache),
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "180",
        "SLURM_CPUS_ON_NODE": "1",
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NUM_NODES": str(NODES),
        "SLURM_SUBMIT_DIR": str(directory),
    }
    with (directory / "slurm.log").open("w") as log:
        argv = ["bash", str(SCRIPT), *map(str, command)]
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=subprocess.STDOUT)
    return process, Path(f"/tmp/r{job}")


def is_gone(ray: Path) -> bool:
    return wait_until(lambda: not processes_of(ray) and not ray.exists(), 60)


def test_a_batch_on_all_nodes_of_the_job(cache: Path, tasks: list[Task], file: Path, tmp_path: Path) -> None:
    def stores() -> set[Path]:
        return set((cache / "nodes").glob("*"))

    before = stores()
    rollout = ["python", "-m", "minisandbox_ray", "rollout", file, "--policy", "gold", "--samples", "2"]
    process, ray = start(tmp_path, cache, *rollout, "--output", tmp_path / "out")
    said = tmp_path / "slurm.log"
    assert process.wait(500) == 0, said.read_text()
    assert "4 episodes: 4 resolved" in said.read_text()
    assert len(stores() - before) == NODES, "nodes of one machine have a store each"
    assert is_gone(ray), processes_of(ray)


def test_the_time_limit_ends_it_cleanly(cache: Path, tasks: list[Task], file: Path, tmp_path: Path) -> None:
    slow = record(tasks, ["```bash\nsleep 600\n```", "submit"], tmp_path / "slow.jsonl")
    rollout = ["python", "-m", "minisandbox_ray", "rollout", file, "--policy", slow, "--output", tmp_path / "out"]
    process, ray = start(tmp_path, cache, *rollout)
    said = tmp_path / "slurm.log"
    assert wait_until(lambda: "sleep 600" in processes_of(ray).values() or process.poll() is not None, 400)
    assert process.poll() is None, said.read_text()
    before = set(Path(tempfile.gettempdir()).iterdir())
    process.send_signal(signal.SIGTERM)  # to the script alone, as --signal=B:TERM@120 says
    assert process.wait(120) == 143, said.read_text()
    assert f"go on with --output {tmp_path / 'out'}" in said.read_text()
    assert is_gone(ray), processes_of(ray)
    assert set(Path(tempfile.gettempdir()).iterdir()) <= before

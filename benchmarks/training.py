"""Whole trainings on a CPU, by their command: what is learnt, in which time, and what disturbances change.

    python benchmarks/training.py [--json FILE] [--only PART,...] [--seeds 0,1] [--quick]

Each part (curves, agreement, overhead, async, async_shared, resume, faults) runs `python -m minisandbox_ray.train` on
files of configs/cpu/, which are made for two cores; a run takes one to five minutes there, all parts over an hour.
A reward is the mean of a step's episodes, "first" that of the first two steps, "final" that of the last five.

- final_CONFIGURATION: by the worst of the seeds (at least 0.8). All curves, steps and seconds are in the table.
- logprob_max_diff: of all tokens sampled, how far the sampler's log-probability was from the trainer's (at most 1e-4);
  for the asynchronous configuration, whose weights differ on purpose, there is none.
- overhead_share: of the time that an episode holds a sandbox, what is neither model, nor its commands, nor the tests;
  without the cache of grades. See environment/overhead_share.
- async_vs_sync_time: seconds of training until the mean reward of three steps is 0.9, by async_grpo over those by grpo
  (at most 1), where there is something to gain: the trainer has half of the processors and the node with the sandboxes
  has the other half, as if they were machines of their own, and the policy is large enough (14 million weights) for the
  trainer to take about as long as the rollouts do. Curves over seconds are in the JSON.
- async_vs_sync_time_shared: seconds of as many steps of both with the small policy, all on the same processors, in
  turns, three seeds. Two cores are busy with the rollouts alone, and there is nothing to gain; no bar.
- resume_gap: a run is killed (SIGKILL) in its sixth step and resumed; the greatest difference between its rewards and
  those of the run that was left alone (none).
- fault_gap: a tenth of all sandboxes that are seen in use, agents' and graders', is killed; final reward of the run
  that was left alone minus that of the disturbed one (at most 0.05). Episodes are played again elsewhere
  (fault_replays), as is the default.
- fault_gap_masked: the same where they are not (episode.replays=0), but fail and are masked (fault_share of them).
  There is no bar: a diff that is graded for the first time takes several sandboxes more, so that what is new fails more
  often than what is known.

--quick: six steps and one seed, to see that it works; bars are then missed. What did not run is a null. Exit status 1
if a bar is missed.
"""

import argparse
import ctypes
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import procs
from report import print_bars
from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).parent.parent
CONFIGS = sorted(path.stem for path in (REPOSITORY / "configs/cpu").glob("*.yaml"))
BARS = {
    **{f"final_{name}": (">=", 0.8) for name in CONFIGS},
    "logprob_max_diff": ("<=", 1e-4),
    "async_vs_sync_time": ("<=", 1.0),
    "resume_gap": ("<=", 0.0),
    "fault_gap": ("<=", 0.05),
}
DIFFERENCE = "policy/rollout_train_logprobs_abs_diff_max"
FAULT_SHARE = 0.1
RESUMED = ("skyrl.trainer.max_training_steps=8", "skyrl.trainer.ckpt_interval=2")
KILLED_AFTER = 5
"""Steps in the record when the run is killed: one more than its last checkpoint's."""
OVERHEAD_STEPS = 4
LARGER = (
    *("policy.width=512", "policy.layers=4", "skyrl.trainer.policy.optimizer_config.lr=1.5e-3"),
    "skyrl.trainer.max_training_steps=30",
)
REACHED = 0.9

Rows = list[dict[str, Any]]


class Runs:
    """Trainings in a directory; each is made once, however many parts ask for it."""

    def __init__(self, directory: Path, is_quick: bool) -> None:
        self._directory, self._is_quick = directory, is_quick
        self._done: dict[tuple[str, ...], Rows] = {}

    def rows(self, config: str, seed: int, *overrides: str) -> Rows:
        """Metrics of its steps. Raises CalledProcessError."""
        key = (config, str(seed), *overrides)
        if key not in self._done:
            self._done[key] = self.finish(self.start(config, seed, *overrides))
        return self._done[key]

    def start(self, config: str, seed: int, *overrides: str, run_dir: Path | None = None) -> subprocess.Popen[bytes]:
        """The process of a training; it goes on with the one in ``run_dir``."""
        resumed = [] if run_dir is None else ["resume=true"]
        run_dir = run_dir or Path(tempfile.mkdtemp(prefix=f"{config}-{seed}-", dir=self._directory))
        quick = ["skyrl.trainer.max_training_steps=6"] if self._is_quick else []
        command = [sys.executable, "-m", "minisandbox_ray.train", f"config=configs/cpu/{config}.yaml", f"seed={seed}"]
        command += ["tracking=console", f"run_dir={run_dir}", *quick, *overrides, *resumed]
        log(" ".join(command[2:]))
        with (run_dir / "output.txt").open("ab") as output:
            process = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT)
        process.run_dir = run_dir  # type: ignore[attr-defined]
        return process

    def finish(self, process: subprocess.Popen[bytes]) -> Rows:
        """Its metrics when it has ended. Raises CalledProcessError."""
        if process.wait():
            log(output_of(process)[-2000:])
            raise subprocess.CalledProcessError(process.returncode, process.args)
        return recorded(process)


def output_of(process: Any) -> str:
    """What a training said."""
    return (process.run_dir / "output.txt").read_text(errors="replace")


def recorded(process: Any) -> Rows:
    """Metrics of the steps of a training, which may still run."""
    from minisandbox_ray.telemetry import read_metrics

    path = process.run_dir / "metrics.jsonl"
    return read_metrics(path) if path.exists() else []


def curve(rows: Rows) -> list[float]:
    """Rewards by step."""
    return [row["reward/avg_raw_reward"] for row in rows]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def summary(rows: Rows) -> dict[str, Any]:
    """Of one training."""
    rewards = curve(rows)
    return {
        "first": mean(rewards[:2]),
        "final": mean(rewards[-5:]),
        "steps": len(rows),
        "episodes": int(sum(row["environment/episodes"] for row in rows)),
        "failures": int(sum(row["environment/failures"] for row in rows)),
        "seconds": sum(row["timing/step"] for row in rows),
        "curve": rewards,
    }


def gap(one: list[float], other: list[float]) -> float:
    """The greatest difference between two curves of the same length."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def keep_orphans() -> None:
    """Whatever detaches itself, as the starter of sandboxes does, stays in this process's tree."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


class Killer:
    """Kills a share of the sandboxes below this process (see ``keep_orphans``), each when it is first seen in use."""

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._random = share, random.Random(seed)
        self._seen: set[tuple[int, str]] = set()
        self.killed = 0

    def once(self) -> None:
        """Look at those that are there."""
        from chaos import is_init

        for pid in procs.tree(os.getpid()):
            with suppress(OSError):
                identity = procs.identity(pid)
                if identity in self._seen or not is_init(pid):
                    continue
                self._seen.add(identity)
                if self._random.random() < self._share:
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Until the end of the block, twenty times a second."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(0.05):
                self.once()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def part_curves(runs: Runs, seeds: list[int]) -> dict[str, Any]:
    """Every configuration with every seed."""
    found = {name: {seed: summary(runs.rows(name, seed)) for seed in seeds} for name in CONFIGS}
    worst = {f"final_{name}": min(each["final"] for each in by_seed.values()) for name, by_seed in found.items()}
    return worst | {"curves": found}


def part_agreement(runs: Runs, seeds: list[int]) -> dict[str, Any]:
    """Over what curves has run as well."""
    rows = [row for name in CONFIGS for row in runs.rows(name, seeds[0]) if DIFFERENCE in row]
    return {"logprob_max_diff": max(row[DIFFERENCE] for row in rows)}


def part_overhead(runs: Runs, seeds: list[int]) -> dict[str, Any]:
    """A few steps; the first one, which also starts the workers, does not count."""
    steps = f"skyrl.trainer.max_training_steps={OVERHEAD_STEPS}"
    rows = runs.rows("grpo", seeds[0], "grading.cache=false", steps)
    return {"overhead_share": mean([row["environment/overhead_share"] for row in rows[1:]])}


ASYNC_AND_SYNC = ("async_grpo", "grpo")


def part_async(runs: Runs, seeds: list[int]) -> dict[str, Any]:
    """The trainer and the node with the sandboxes on processors of their own."""
    with a_node_apart() as (address, trainer_cpus), on_processors(trainer_cpus):
        overrides = (*LARGER, f"cluster.address={address}")
        found = {seed: {name: timed(runs.rows(name, seed, *overrides)) for name in ASYNC_AND_SYNC} for seed in seeds}
    times = [sum(reached(by_name[name]) for by_name in found.values()) for name in ASYNC_AND_SYNC]
    ratio = times[0] / times[1] if math.isfinite(sum(times)) else None
    return {"async_vs_sync_time": ratio, "async_and_sync": found}


def part_async_shared(runs: Runs, seeds: list[int]) -> dict[str, Any]:
    """All on the same processors; in turns, as the machine may be busier at one time than at another."""
    seeds = seeds if len(seeds) == 1 else [0, 1, 2]
    found = {seed: {name: timed(runs.rows(name, seed)) for name in ASYNC_AND_SYNC} for seed in seeds}
    steps = min(len(each) for by_name in found.values() for each in by_name.values())
    lasted = [sum(by_name[name][steps - 1][0] for by_name in found.values()) for name in ASYNC_AND_SYNC]
    return {"async_vs_sync_time_shared": lasted[0] / lasted[1], "async_and_sync_shared": found}


def timed(rows: Rows) -> list[tuple[float, float]]:
    """(seconds of training until then, reward) after each step."""
    ends = accumulate(row["timing/step"] for row in rows)
    return list(zip(ends, curve(rows), strict=True))


def reached(timed_curve: list[tuple[float, float]]) -> float:
    """Seconds after which the mean reward of three steps was REACHED; infinite if it never was."""
    threes = zip(timed_curve, timed_curve[1:], timed_curve[2:], strict=False)
    return next((three[-1][0] for three in threes if mean([reward for _, reward in three]) >= REACHED), math.inf)


@contextmanager
def a_node_apart() -> Iterator[tuple[str, set[int]]]:
    """A Ray node on half of the processors: its address, and the processors that are left."""
    from ray.cluster_utils import Cluster

    every = sorted(os.sched_getaffinity(0))
    its = set(every[len(every) // 2 :])
    directory = tempfile.mkdtemp(prefix="mb-", dir="/tmp")  # Ray's sockets want a short name
    node = {
        "num_cpus": len(its),
        "resources": {"unpack_slots": 2 * len(its), "sandbox": 4 * len(its)},
        "include_dashboard": False,
    }
    with on_processors(its), mock.patch.dict(os.environ, RAY_TMPDIR=directory):
        cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        yield cluster.address, set(every) - its or its
    finally:
        cluster.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def on_processors(which: set[int]) -> Iterator[None]:
    """What is started in the block runs on these alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, which)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def part_resume(runs: Runs, seeds: list[int]) -> dict[str, Any]:
    """Against the run that was left alone."""
    alone = curve(runs.rows("grpo", seeds[0], *RESUMED))
    process = runs.start("grpo", seeds[0], *RESUMED)
    while process.poll() is None and len(recorded(process)) < KILLED_AFTER:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert len(recorded(process)) < len(alone), f"it ended before it was killed: {output_of(process)[-500:]}"
    again = runs.start("grpo", seeds[0], *RESUMED, run_dir=process.run_dir)  # type: ignore[attr-defined]
    resumed = curve(runs.finish(again))
    return {"resume_gap": gap(alone, resumed), "resume_curves": {"alone": alone, "resumed": resumed}}


def part_faults(runs: Runs, seeds: list[int]) -> dict[str, Any]:
    """With and without playing again."""
    alone = summary(runs.rows("grpo", seeds[0]))
    curves, kills, rows = {"alone": alone["curve"]}, {}, {}
    for name, overrides in (("replayed", ()), ("masked", ("episode.replays=0",))):
        process = runs.start("grpo", seeds[0], *overrides)
        killer = Killer(FAULT_SHARE, seeds[0])
        with killer.at_work():
            rows[name] = runs.finish(process)
        curves[name], kills[name] = curve(rows[name]), killer.killed
    final = {name: summary(each)["final"] for name, each in rows.items()}
    masked = summary(rows["masked"])
    return {
        "fault_gap": alone["final"] - final["replayed"],
        "fault_gap_masked": alone["final"] - final["masked"],
        "fault_replays": sum(row["environment/replays"] for row in rows["replayed"]),
        "fault_share": masked["failures"] / masked["episodes"],
        "fault_kills": kills,
        "fault_curves": curves,
    }


PARTS = {
    "curves": part_curves,
    "agreement": part_agreement,
    "overhead": part_overhead,
    "async": part_async,
    "async_shared": part_async_shared,
    "resume": part_resume,
    "faults": part_faults,
}


def show(curves: dict[str, dict[int, dict[str, Any]]]) -> None:
    """A line for each training."""
    table = Table("", "seed", "first", "final", "steps", "episodes", "minutes", title="mean rewards")
    for name, by_seed in curves.items():
        for seed, each in by_seed.items():
            rewards = (f"{each['first']:.3f}", f"{each['final']:.3f}")
            counts = (str(each["steps"]), str(each["episodes"]), f"{each['seconds'] / 60:.1f}")
            table.add_row(name, str(seed), *rewards, *counts)
    Console().print(table)


def log(line: str) -> None:
    """For who waits."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Print the figures; -> exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures by name to this file")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, separated by commas")
    parser.add_argument("--seeds", default="0,1", help="of curves, separated by commas; other parts use the first")
    parser.add_argument("--quick", action="store_true", help="six steps and one seed")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := sorted(set(wanted) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    seeds = [int(seed) for seed in arguments.seeds.split(",")][: 1 if arguments.quick else None]
    figures: dict[str, Any] = dict.fromkeys([*BARS, "overhead_share", "async_vs_sync_time_shared", "fault_gap_masked"])
    keep_orphans()
    with tempfile.TemporaryDirectory(prefix="training-", ignore_cleanup_errors=True) as place:
        runs = Runs(Path(place), arguments.quick)
        for part in wanted:
            figures |= PARTS[part](runs, seeds)
            short = {name: value for name, value in figures.items() if isinstance(value, float)}
            log(f"{part} {json.dumps(short)}")
            if arguments.json:  # what was measured is there, whatever comes next
                arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if "curves" in figures:
        show(figures["curves"])
    return int(print_bars(figures, BARS))


if __name__ == "__main__":
    sys.exit(main())

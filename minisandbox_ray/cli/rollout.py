"""Play episodes of tasks with a policy, and keep their trajectories."""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import ValidationError
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from minisandbox_ray.cli.inputs import add_isolation, read_tasks
from minisandbox_ray.cli.terminal import plain
from minisandbox_ray.environments.cache import write_atomically
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task, require_environments
from minisandbox_ray.tasks.validation import is_validated

if TYPE_CHECKING:
    from minisandbox_ray.cluster import ClusterConfig
    from minisandbox_ray.rollout import EpisodeConfig
    from minisandbox_ray.rollout.policies import Policy
    from minisandbox_ray.rollout.trajectory import Trajectory, TrajectoryFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``TASKS`` as for validate; of a training configuration, the bounds of episodes and the cluster are taken, too."""
    parser.add_argument("tasks", metavar="TASKS", help="tasks.jsonl, or a training configuration (YAML)")
    parser.add_argument(
        "--policy",
        required=True,
        metavar="gold|empty|random|FILE.jsonl|FILE.yaml",
        help="the gold fix; submit at once; a few harmless commands; the actions of earlier trajectories; or a model "
        "to ask (rollout/chat.py)",
    )
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="episodes per task (default: 1)")
    parser.add_argument("--limit", type=int, metavar="N", help="play the first N tasks only")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="sample k of a task has seed S + k")
    parser.add_argument(
        "--action-format",
        choices=("bash", "tools"),
        help="one fenced block per action, or one call of a tool (default: the configuration's, else bash)",
    )
    add_batch_arguments(parser)


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """Of every verb that plays a batch of episodes."""
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="trajectories.jsonl and report.json are written there; what it holds already is not played again "
        "(default: a new directory in runs/)",
    )
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="episodes at a time (default: the cluster's slots)"
    )
    add_isolation(parser)
    parser.add_argument("--address", help="Ray cluster to run on; default: RAY_ADDRESS, else a local one")
    parser.add_argument("--pool", metavar="NAME", help="pool to share with other drivers; default: one of its own")


def run(arguments: argparse.Namespace) -> int:
    """Play what is not there yet, and print a summary; 0 also where episodes failed: a rerun tries them again."""
    from minisandbox_ray.rollout.policies import choose_policy
    from minisandbox_ray.rollout.results import make_report

    check_positive(arguments, "samples", "concurrency", "limit")
    if not 0 <= arguments.seed < 2**32:
        raise ConfigError(f"--seed must be from 0 to 2**32 - 1, not {arguments.seed}")
    tasks = read_tasks(arguments.tasks, arguments.isolation)[: arguments.limit]
    if not tasks:
        raise ConfigError(f"{arguments.tasks} holds no tasks")
    require_environments(tasks)
    policy = choose_policy(arguments.policy, tasks, arguments.samples)
    wanted = [(task, sample) for task in tasks for sample in range(arguments.samples)]
    rows, path = play_batch(arguments, wanted, policy, arguments.seed)
    write_report(path.parent, make_report([task.instance_id for task in tasks], rows))
    return 0


def check_positive(arguments: argparse.Namespace, *names: str) -> None:
    """Raise ConfigError for an option below 1."""
    for name in names:
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(arguments, name)}")


def write_report(directory: Path, report: dict[str, Any]) -> Path:
    """DIRECTORY/report.json. Raises ConfigError if it cannot be written."""
    path = directory / "report.json"
    try:
        write_atomically(path, json.dumps(report, indent=2).encode() + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    return path


def play_batch(
    arguments: argparse.Namespace,
    wanted: list[tuple[Task, int]],
    chosen: "tuple[str, Callable[[], Policy], int]",
    seed: int,
) -> "tuple[list[Trajectory], Path]":
    """Play what is not in the output yet, and print a summary -> (a row for each of `wanted`, the file)."""
    from minisandbox_ray.rollout.trajectory import TrajectoryFile, task_digest

    episode, cluster, archives = _settings(arguments)
    if chosen_format := getattr(arguments, "action_format", None):
        episode = episode.model_copy(update={"action_format": chosen_format})
    policy, make_policy, turns = chosen
    episode = episode.model_copy(update={"max_turns": max(episode.max_turns, turns)})
    output = arguments.output or Path("runs") / time.strftime(f"{arguments.verb}-%Y%m%d-%H%M%S")
    started = time.monotonic()
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with TrajectoryFile(output) as file:
            _check_same(file, policy, seed)
            finished = {pair: row.task_digest for pair, row in file.last.items() if row.is_finished}
            episodes = [pair for pair in wanted if finished.get((pair[0].instance_id, pair[1])) != task_digest(pair[0])]
            try:
                if episodes:
                    _warn_of_unknown({task.instance_id: task for task, _ in episodes})
                    _play(episodes, file, policy, make_policy, seed, arguments.concurrency, episode, cluster, archives)
            except (KeyboardInterrupt, SystemExit):
                done = sum((task.instance_id, sample) in file.last for task, sample in wanted)
                text = f"{done} of {len(wanted)} trajectories are in {file.path}; go on with --output {output}"
                print(text, file=sys.stderr)
                raise
            rows = [file.last[task.instance_id, sample] for task, sample in wanted]
            print(summary(rows, len(episodes), time.monotonic() - started, file.path))
            for owner, row in {row.failure_owner: row for row in rows if not row.is_finished}.items():
                print(plain(f"{row.instance_id} ({owner}): {row.failure}"), file=sys.stderr)
            return rows, file.path
    finally:
        signal.signal(signal.SIGTERM, before)


def _warn_of_unknown(tasks: dict[str, Task]) -> None:
    if unknown := sum(not is_validated(task) for task in tasks.values()):
        print(f"warning: {unknown} of {len(tasks)} tasks never proved valid; `validate` tells", file=sys.stderr)


def _settings(arguments: argparse.Namespace) -> "tuple[EpisodeConfig, ClusterConfig, str | None]":
    from minisandbox_ray.cluster import ClusterConfig
    from minisandbox_ray.config import load_config
    from minisandbox_ray.rollout import EpisodeConfig

    if Path(arguments.tasks).suffix not in {".yaml", ".yml"}:
        return EpisodeConfig(), _with_options(ClusterConfig(), arguments), None
    config = load_config([f"config={arguments.tasks}"])
    return config.episode_config(), _with_options(config.cluster, arguments), config.archives


def _with_options(cluster: "ClusterConfig", arguments: argparse.Namespace) -> "ClusterConfig":
    update = {"isolation": arguments.isolation} if arguments.isolation != "strict" else {}
    update |= {name: value for name in ("address", "pool") if (value := getattr(arguments, name))}
    try:
        return cluster.model_validate(cluster.model_dump() | update)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"--{first['loc'][0]}: {first['msg']}, got {first['input']!r}") from error


def _check_same(file: "TrajectoryFile", policy: str, seed: int) -> None:
    """Raise ConfigError for a file that another batch began."""
    for trajectory in file.last.values():
        if (trajectory.policy, trajectory.seed - trajectory.sample) != (policy, seed):
            raise ConfigError(
                f"{file.path} holds trajectories of policy {trajectory.policy} with seed "
                f"{trajectory.seed - trajectory.sample}, not of {policy} with seed {seed}: choose another --output"
            )


def _play(
    episodes: list[tuple[Task, int]],
    file: "TrajectoryFile",
    policy: str,
    make_policy: "Callable[[], Policy]",
    seed: int,
    concurrency: int | None,
    episode: "EpisodeConfig",
    cluster: "ClusterConfig",
    archives: str | None,
) -> None:
    from minisandbox_ray.cluster import connect
    from minisandbox_ray.rollout import EpisodePool
    from minisandbox_ray.rollout.batch import play
    from minisandbox_ray.telemetry.pool_log import PoolLog

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    counts = Counter[str]()

    def on_trajectory(trajectory: "Trajectory") -> None:
        file.append(trajectory)
        counts[_outcome(trajectory)] += 1
        text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        progress.update(bar, advance=1, description=text)

    # Not in the output's directory: who goes on after a SIGKILL need not wait until the old cluster is gone.
    log = file.path.with_name("pool.jsonl")
    with connect(cluster), EpisodePool(cluster, archives) as pool, PoolLog(pool, log), progress:
        bar = progress.add_task("playing", total=len(episodes))
        work = play(
            episodes,
            pool,
            make_policy,
            policy=policy,
            seed=seed,
            config=episode,
            concurrency=concurrency,
            on_trajectory=on_trajectory,
        )
        _run_until_told(work)


def _run_until_told(work: Coroutine[Any, Any, None]) -> None:
    """asyncio.run that SIGTERM cancels, as SIGINT does: an exception out of a signal handler hits tasks anywhere.

    Raises SystemExit then.
    """
    is_told = False

    async def main() -> None:
        nonlocal is_told
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            nonlocal is_told
            is_told = True
            if task:
                task.cancel()

        loop.add_signal_handler(signal.SIGTERM, stop)
        try:
            await work
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, _terminate)

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        if is_told:
            raise SystemExit(143) from None
        raise


def _outcome(trajectory: "Trajectory") -> str:
    if trajectory.failure_owner is not None:
        return "failed"
    return "resolved" if trajectory.resolved else "unresolved"


def summary(rows: "list[Trajectory]", played: int, seconds: float, path: Path) -> str:
    """One line about a batch."""
    counts = Counter(_outcome(row) for row in rows)
    owners = Counter(row.failure_owner for row in rows if row.failure_owner)
    parts = [f"{len(rows)} episodes: {counts['resolved']} resolved, {counts['unresolved']} unresolved"]
    if owners:
        again = "" if all(row.is_finished for row in rows) else "; run it again to try those again"
        parts.append(f"{counts['failed']} failed ({', '.join(f'{n} {o}' for o, n in sorted(owners.items()))}{again})")
    parts.append(f"{played} played in {seconds:.1f} s")
    return f"{', '.join(parts)} | {path}"


def _terminate(*_: object) -> NoReturn:
    # The same clean end as for Ctrl-C.
    raise SystemExit(143)

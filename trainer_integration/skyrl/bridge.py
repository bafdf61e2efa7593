"""A training run with SkyRL from start to end: tasks, policy, cluster, training, report."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from minisandbox_ray.cluster import connect
from minisandbox_ray.config import TrainConfig
from minisandbox_ray.environments import NodeStore, cache_root
from minisandbox_ray.environments.cache import locked
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout import EpisodePool, SandboxEnv
from minisandbox_ray.tasks import Task, load_tasks, require_environments, save_tasks
from minisandbox_ray.tasks.quickstart import QuickstartConfig, make_quickstart
from minisandbox_ray.tasks.validation import require_validated
from minisandbox_ray.telemetry import (
    ConsoleTracker,
    JsonlTracker,
    Tracker,
    WandbTracker,
    final_line,
    read_metrics,
    write_report,
)
from minisandbox_ray.telemetry.pool_log import PoolLog
from minisandbox_ray.telemetry.progress import task_progress
from minisandbox_ray.telemetry.temporary import temporary_files_in
from trainer_integration.skyrl.process import check_gpu_software, check_model, log_to, quieten

LOCK = ".lock"
"""In the run directory: held by the process that trains there."""


def run(config: TrainConfig) -> None:
    """Train as configured; everything is written to the run directory, and nothing runs on when this returns.

    Raises MiniSandboxError; ConfigError before anything is built or started.
    """
    _check_installed()
    if config.resume:
        return _resume(config)
    run_dir, is_new = _claim_run_dir(config)
    try:
        with _alone(run_dir), temporary_files_in(run_dir / "tmp"):
            _run(config, run_dir)
    except ConfigError:  # nothing was trained
        for name in ("metrics.jsonl", LOCK):
            (run_dir / name).unlink(missing_ok=True)
        if is_new:
            shutil.rmtree(run_dir)
        raise


def _resume(config: TrainConfig) -> None:
    if config.run_dir is None:
        raise ConfigError("resume needs run_dir: the directory of the run that is to go on")
    run_dir = config.run_dir.expanduser().absolute()
    from trainer_integration.skyrl.resume import check_resume

    check_resume(config, run_dir)  # before anything is touched, and before tasks are made
    with _alone(run_dir), temporary_files_in(run_dir / "tmp"):
        _run(config, run_dir)


@contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Raises ConfigError while another process trains there."""
    with locked(run_dir / LOCK, wait=False) as is_ours:
        if not is_ours:
            raise ConfigError(f"run_dir {run_dir}: another process trains there just now")
        yield


def _run(config: TrainConfig, run_dir: Path) -> None:
    if config.backend == "gpu":
        check_gpu_software()
    quieten()
    from trainer_integration.skyrl import seams
    from trainer_integration.skyrl.config import skyrl_config
    from trainer_integration.skyrl.resume import prepare_resume, save_config

    seams.check_version()
    skyrl_config(config, run_dir)  # before the tasks are made, which may take minutes
    log_to(run_dir)
    tasks, commands = _tasks(config)
    skyrl = skyrl_config(config, run_dir, task_count=len(tasks))
    _check_tasks(tasks, skyrl)
    evaluated = _evaluated(config, tasks)
    step = None
    if config.resume:
        step = prepare_resume(config, run_dir, tasks)
    else:
        save_tasks(tasks, run_dir / "tasks.jsonl")
        save_config(config, run_dir)
    if config.run_dir is None:
        _link_latest(run_dir)
    if not config.policy:
        check_model(skyrl.trainer.policy.model.path)
    elif not config.resume:
        from trainer_integration.skyrl.policy import build_policy

        build_policy(
            config.policy,
            prompts=[config.prompt.messages(task.problem_statement) for task in tasks],
            commands=commands,
            context=skyrl.generator.max_input_length + skyrl.generator.sampling_params.max_generate_length,
            seed=config.seed,
            path=Path(skyrl.trainer.policy.model.path),
        )
    with ExitStack() as stack:
        tracker = stack.enter_context(_Trackers(config, skyrl, run_dir, step))
        stack.enter_context(connect(config.cluster, run_dir))
        pool = EpisodePool(config.cluster, config.archives)
        stack.enter_context(pool)
        stack.enter_context(PoolLog(pool, run_dir / "pool.jsonl"))
        print(f"{len(tasks)} tasks, {pool.capacity} sandboxes at a time; everything goes to {run_dir}", flush=True)
        _train(config, skyrl, tasks, evaluated, pool, tracker)
    rows = read_metrics(run_dir / "metrics.jsonl")
    write_report(rows, run_dir / "report.png")
    print(final_line(rows))
    print(f"curve: {run_dir / 'report.png'}   metrics: {run_dir / 'metrics.jsonl'}")
    if tracker.hint:
        print(tracker.hint)


def _claim_run_dir(config: TrainConfig) -> tuple[Path, bool]:
    """Where the run is written, and whether that was made just now. Raises ConfigError if it holds a run already."""
    run_dir = config.run_dir or Path("runs") / f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    run_dir = run_dir.expanduser().absolute()
    is_new = not run_dir.exists()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "metrics.jsonl").touch(exist_ok=False)
    except FileExistsError as error:
        what = "holds a run already" if run_dir.is_dir() else "is not a directory"
        raise ConfigError(f"run_dir {run_dir} {what}: choose another, or remove it") from error
    except OSError as error:
        raise ConfigError(f"run_dir {run_dir} cannot be written: {error.strerror}") from error
    return run_dir, is_new


def _link_latest(run_dir: Path) -> None:
    """``runs/latest`` is the last run that chose no directory of its own."""
    latest = run_dir.parent / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(run_dir.name)


def _train(
    config: TrainConfig,
    skyrl: Any,
    tasks: list[Task],
    evaluated: list[Task] | None,
    pool: EpisodePool,
    tracker: Tracker,
) -> None:
    from trainer_integration.skyrl import seams
    from trainer_integration.skyrl.evaluations import Evaluations
    from trainer_integration.skyrl.experiment import CPUExperiment, GPUExperiment, Inputs

    episode = config.episode_config()
    inputs = Inputs(
        tasks=tasks,
        prompts=[config.prompt.messages(task.problem_statement) for task in tasks],
        make_env=lambda: SandboxEnv(pool, episode),
        prefetch=pool.prefetch,
        tracker=tracker,
        constant_reward=config.debug.constant_reward,
        max_failed_share=config.max_failed_share,
        evaluated=evaluated,
        evaluated_prompts=[config.prompt.messages(task.problem_statement) for task in evaluated or []],
        on_evaluation=Evaluations(Path(skyrl.trainer.log_path).parent / "evaluations", config.name, tracker),
        after_setup=lambda: log_to(Path(skyrl.trainer.log_path).parent),
    )
    if config.backend == "gpu":
        seams.check_gpus(skyrl)
        GPUExperiment(skyrl, inputs).run()
    else:
        with seams.in_process(side_by_side=skyrl.trainer.fully_async.enabled):
            CPUExperiment(skyrl, inputs).run()


def _tasks(config: TrainConfig) -> tuple[list[Task], list[str]]:
    """The tasks, and the commands that a policy from scratch may choose from."""
    if not isinstance(config.tasks, QuickstartConfig):
        if config.policy:
            raise ConfigError(
                "a policy from scratch acts by the quickstart's commands: set tasks to a quickstart section, or "
                "policy=null and skyrl.trainer.policy.model.path"
            )
        return _read_tasks(config.tasks, config), []
    is_directory = config.archives is not None and "://" not in config.archives
    archives = Path(config.archives) if config.archives and is_directory else cache_root() / "archives"
    store = NodeStore(cache_root() / "store", isolation=config.cluster.isolation)
    with task_progress() as report:
        quickstart = make_quickstart(config.tasks, archives, store, report)
    return quickstart.tasks, quickstart.commands


def _evaluated(config: TrainConfig, tasks: list[Task]) -> list[Task] | None:
    """The tasks of evaluations, None where there are none. Raises ConfigError."""
    if config.evaluation is None:
        return None
    if config.evaluation.tasks is None:
        return tasks
    held_out = _read_tasks(config.evaluation.tasks, config)
    if not held_out:
        raise ConfigError(f"evaluation.tasks {config.evaluation.tasks} holds no tasks")
    if both := {task.instance_id for task in tasks} & {task.instance_id for task in held_out}:
        raise ConfigError(f"task {min(both)} is in evaluation.tasks, and trained on: it is not held out")
    return held_out


def _read_tasks(path: Path, config: TrainConfig) -> list[Task]:
    """A file of tasks that can be played, and were found valid unless the user waives that. Raises ConfigError."""
    tasks = load_tasks(path)
    require_environments(tasks)
    if not config.allow_unvalidated:
        require_validated(tasks, f"run `python -m minisandbox_ray validate {path}`, or set allow_unvalidated=true")
    return tasks


def _check_tasks(tasks: list[Task], skyrl: Any) -> None:
    require_environments(tasks)
    if len(tasks) < skyrl.trainer.train_batch_size:
        raise ConfigError(
            f"skyrl.trainer.train_batch_size={skyrl.trainer.train_batch_size} needs as many tasks, "
            f"there are {len(tasks)}"
        )


class _Trackers:
    """All of a run's trackers as one; they are finished when the run ends, however it ends."""

    def __init__(self, config: TrainConfig, skyrl: Any, run_dir: Path, resumed_step: int | None) -> None:
        steps = skyrl.trainer.max_training_steps or skyrl.trainer.epochs
        self.hint = ""
        self._trackers: list[Tracker] = [JsonlTracker(run_dir / "metrics.jsonl"), ConsoleTracker(steps)]
        if config.tracking == "wandb":
            content = config.model_dump(mode="json")
            wandb = WandbTracker(run_dir, skyrl.trainer.project_name, config.name, content, resumed_step)
            self.hint = wandb.hint
            self._trackers.append(wandb)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        for tracker in self._trackers:
            tracker.log(metrics, step)

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        for tracker in self._trackers:
            tracker.log_table(name, columns, rows, step)

    def finish(self) -> None:
        for tracker in self._trackers:
            tracker.finish()

    def __enter__(self) -> "_Trackers":
        return self

    def __exit__(self, *exc: object) -> None:
        self.finish()


def _check_installed() -> None:
    try:
        metadata.version("skyrl")
    except metadata.PackageNotFoundError as error:
        raise ConfigError("SkyRL is not installed: pip install 'minisandbox-ray[skyrl]'") from error

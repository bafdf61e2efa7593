"""What SWE-agent's verbs do, with our deployment."""

from typing import Any

from pydantic import Field
from sweagent.run import run_batch, run_replay, run_single
from sweagent.run.common import BasicCLI, ConfigHelper

from .config import MiniSandboxDeploymentConfig
from .instances import BatchConfig, SingleConfig


class ReplayConfig(run_replay.RunReplayConfig):
    """``run-replay``'s. SWE-agent records no deployment of others: it is given anew, but for its `task`."""

    deployment: MiniSandboxDeploymentConfig = Field(  # type: ignore[assignment]
        default_factory=MiniSandboxDeploymentConfig, description="The sandbox."
    )


def single(arguments: list[str]) -> None:
    """``sweagent run``."""
    run_single.RunSingle.from_config(_read(SingleConfig, run_single, arguments)).run()


def batch(arguments: list[str]) -> None:
    """``sweagent run-batch`` on tasks of a file."""
    run_batch.RunBatch.from_config(_read(BatchConfig, run_batch, arguments)).main()


def replay(arguments: list[str]) -> None:
    """``sweagent run-replay``: the actions of a trajectory or demonstration again, in a sandbox."""
    config: ReplayConfig = _read(ReplayConfig, run_replay, arguments, default_settings=False)
    replayed = run_replay.RunReplay(
        traj_path=config.traj_path,
        deployment=config.deployment.get_deployment(),
        output_dir=config.output_dir,
        update_config=config.update_config,
    )
    if config.deployment.tasks and not config.deployment.task:
        task = replayed.config.problem_statement.id
        replayed.deployment = config.deployment.model_copy(update={"task": task}).get_deployment()
    replayed.main()


def _read(kind: type, module: Any, arguments: list[str], **options: Any) -> Any:
    """SWE-agent's own reading of arguments and files, into our kind of its configuration."""
    help_text = f"{module.__doc__}\n[bold]=== ALL THE OPTIONS ===[/bold]\n\n{ConfigHelper().get_help(kind)}"
    return BasicCLI(kind, help_text=help_text, **options).get_config(arguments)

"""SkyRL's own trainer on small tables: an environment in memory that knows which command is right for which task."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is not installed")

from loguru import logger

from minisandbox_ray.config import PolicyConfig
from minisandbox_ray.errors import MiniSandboxError, SandboxError
from trainer_integration.skyrl import seams
from trainer_integration.skyrl.config import CPU
from trainer_integration.skyrl.experiment import CPUExperiment, Inputs
from trainer_integration.skyrl.policy import action_text, build_policy

COMMANDS = [f"sed -i '{line}s/</<=/' src/module.py" for line in range(12)]
WORDS = ("plural", "roman", "slug", "table")


@dataclass
class TableTask:
    instance_id: str
    repo: str
    problem_statement: str
    right: str
    fails: int = 0
    """How many of its next episodes fail by the sandbox's fault."""
    environment: str = "table"


class TableEnv:
    """The interface of SandboxEnv. Resolved if the right command was among an episode's ``turns`` actions."""

    def __init__(self, turns: int = 1, error: type[MiniSandboxError] = SandboxError) -> None:
        self.turns, self.error = turns, error
        self.actions: list[str] = []
        self.closed = False

    async def areset(self, task: TableTask, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.task = task
        if task.fails:
            task.fails -= 1
            raise self.error(f"no sandbox for {task.instance_id}")
        return task.problem_statement, {"seconds": {"wait": 0.0}}

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        await asyncio.sleep(0)
        submitted = "submit" in action
        if not submitted and len(self.actions) < self.turns:
            return f"exit code 0 after {len(self.actions)}", 0.0, False, False, {"seconds": {"command": 0.0}}
        reward = float(action_text(self.task.right) in self.actions)
        info = {"seconds": {"diff": 0.0, "grade": 0.0}, "grade_cached": False, "trainable": True}
        return "", reward, submitted, not submitted, info

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class Recorder:
    rows: list[dict[str, Any]] = field(default_factory=list)

    def log(self, metrics: Any, step: int) -> None:
        self.rows.append(dict(metrics))

    def finish(self) -> None:
        pass

    def curve(self, key: str = "reward/avg_raw_reward") -> list[float]:
        return [row[key] for row in self.rows]


def table_tasks() -> list[TableTask]:
    return [
        TableTask(f"task-{word}", "table", f"A test of {word} fails in {word}_module", COMMANDS[3 * i])
        for i, word in enumerate(WORDS)
    ]


def prompts_of(tasks: list[TableTask]) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": task.problem_statement}] for task in tasks]


@pytest.fixture(autouse=True)
def quiet() -> None:
    logger.remove()


@pytest.fixture
def tasks() -> list[TableTask]:
    return table_tasks()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy from scratch for the table's tasks."""
    path = tmp_path / "policy"
    build_policy(
        PolicyConfig(width=64, words=20),
        prompts=prompts_of(table_tasks()),
        commands=COMMANDS,
        context=256,
        seed=0,
        path=path,
    )
    return path


@pytest.fixture
def skyrl_cfg(policy: Path, tmp_path: Path) -> Any:
    """Makes a SkyRL configuration for the table, with overrides by dotted key."""
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    def make(**overrides: Any) -> SkyRLTrainConfig:
        values = {
            **CPU,
            "trainer.algorithm.entropy_loss_coef": 0.02,
            "trainer.algorithm.use_entropy_loss": True,
            "trainer.algorithm.use_kl_loss": False,
            "trainer.ckpt_interval": -1,
            "trainer.ckpt_path": str(tmp_path / "checkpoints"),
            "trainer.critic_mini_batch_size": 4,
            "trainer.epochs": 100,
            "trainer.eval_interval": -1,
            "trainer.export_path": str(tmp_path / "export"),
            "trainer.logger": "console",
            "trainer.max_prompt_length": 128,
            "trainer.max_training_steps": 20,
            "trainer.micro_forward_batch_size_per_gpu": 32,
            "trainer.micro_train_batch_size_per_gpu": 32,
            "trainer.policy.model.path": str(policy),
            "trainer.policy.optimizer_config.lr": 2e-3,
            "trainer.critic.optimizer_config.lr": 2e-3,
            "trainer.policy_mini_batch_size": 4,
            "trainer.print_example_interval": 0,
            "trainer.resume_mode": "none",
            "trainer.seed": 0,
            "trainer.train_batch_size": 4,
            "generator.max_input_length": 128,
            "generator.n_samples_per_prompt": 8,
            "generator.sampling_params.max_generate_length": 1,
            **overrides,
        }
        cfg = SkyRLTrainConfig.from_cli_overrides(values)
        validate_cfg(cfg)
        return cfg

    return make


@pytest.fixture
def train(tasks: list[TableTask]) -> Any:
    """Runs SkyRL's trainer to the end in this process; returns the recorded metrics and the experiment."""

    def run(
        cfg: Any,
        turns: int = 1,
        constant_reward: float | None = None,
        error: type[MiniSandboxError] = SandboxError,
        **more: Any,
    ) -> tuple[Recorder, CPUExperiment]:
        recorder = Recorder()
        inputs = Inputs(
            tasks,
            prompts_of(tasks),
            lambda: TableEnv(turns, error),
            lambda demand: None,
            recorder,
            constant_reward,
            **more,
        )
        with seams.in_process():
            experiment = CPUExperiment(cfg, inputs)
            experiment.run()
        return recorder, experiment

    return run


@pytest.fixture
def table_env() -> type[TableEnv]:
    return TableEnv

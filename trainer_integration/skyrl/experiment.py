"""SkyRL's experiment over our tasks, episodes and trackers: on a CPU in this process, or as SkyRL runs on GPUs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loguru import logger
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.telemetry import Tracker
from trainer_integration.skyrl.asynchronous import AsynchronousTrainer, GroupGenerator, LocalAsynchronousTrainer
from trainer_integration.skyrl.generator import EpisodeGenerator, Episodes, OnEpisodes
from trainer_integration.skyrl.gym import ENVIRONMENT, GymGenerator
from trainer_integration.skyrl.rollout import EpisodeEnv
from trainer_integration.skyrl.sampler import CPUInferenceClient
from trainer_integration.skyrl.seams import LocalExperiment, LocalTrainer, MaskedTrainer


@dataclass
class Inputs:
    """What a training run is made of, beside SkyRL's own configuration."""

    tasks: list[Any]
    prompts: list[list[dict[str, str]]]
    make_env: Callable[[], EpisodeEnv]
    prefetch: Callable[[dict[str, int]], None]
    """Told how many episodes of each environment come next."""
    tracker: Tracker
    constant_reward: float | None = None
    max_failed_share: float = 1.0
    evaluated: list[Any] | None = None
    """Tasks of evaluations; None: there are none."""
    evaluated_prompts: list[list[dict[str, str]]] = field(default_factory=list)
    on_evaluation: OnEpisodes | None = None
    after_setup: Callable[[], object] = lambda: None
    """Called when SkyRL's trainer is made: its constructor sends the log to the terminal again."""


class TaskDataset:
    """One row per task, in the shape of SkyRL's PromptDataset; the group of a task is named by its instance_id."""

    def __init__(self, tasks: list[Any], prompts: list[list[dict[str, str]]]) -> None:
        self._rows = [
            {
                "prompt": prompt,
                "env_class": ENVIRONMENT,
                "env_extras": {"instance_id": task.instance_id, "data_source": task.repo},
                "uid": task.instance_id,
            }
            for task, prompt in zip(tasks, prompts, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]

    def collate_fn(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows


class SkyRLTracker:
    """Our trackers behind the interface of SkyRL's Tracking."""

    backend = "minisandbox_ray"

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._parts: dict[str, Any] = {}

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        """A step's metrics may come in parts, the last of them with ``commit``."""
        self._parts |= data
        if commit:
            parts, self._parts = self._parts, {}
            self._tracker.log(parts, step)

    def finish(self) -> None:
        """Whoever made the trackers finishes them, also when training fails."""

    def log_exception(self, error: BaseException, step: int = 0) -> None:
        logger.opt(exception=error).error(f"training failed at step {step}")


class _Episodes(BasePPOExp):
    """The public hooks of SkyRL's experiment, filled with ours."""

    def __init__(self, cfg: SkyRLTrainConfig, inputs: Inputs) -> None:
        self._inputs = inputs
        super().__init__(cfg)

    def get_train_dataset(self) -> Any:
        return self._dataset(self._inputs.tasks, self._inputs.prompts)

    def get_eval_dataset(self) -> Any:
        if self._inputs.evaluated is None:
            return None
        return self._dataset(self._inputs.evaluated, self._inputs.evaluated_prompts)

    def _dataset(self, tasks: list[Any], prompts: list[list[dict[str, str]]]) -> TaskDataset:
        limit = self.cfg.trainer.max_prompt_length
        kwargs = self.cfg.generator.chat_template_kwargs
        for task, prompt in zip(tasks, prompts, strict=True):
            ids = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False, **kwargs)
            if len(ids) > limit:
                raise ConfigError(
                    f"the prompt of task {task.instance_id} has {len(ids)} tokens, more than "
                    f"skyrl.trainer.max_prompt_length={limit}"
                )
        return TaskDataset(tasks, prompts)

    def get_generator(
        self, cfg: SkyRLTrainConfig, tokenizer: Any, inference_engine_client: Any
    ) -> EpisodeGenerator | GymGenerator:
        inputs = self._inputs
        episodes = Episodes(
            tasks={task.instance_id: task for task in [*inputs.tasks, *(inputs.evaluated or [])]},
            make_env=inputs.make_env,
            demand=inputs.prefetch,
            seed=cfg.trainer.seed,
            constant_reward=inputs.constant_reward,
            max_failed_share=inputs.max_failed_share,
            on_evaluation=inputs.on_evaluation,
        )
        if cfg.environment.env_class == ENVIRONMENT:
            return GymGenerator(
                cfg.generator, cfg.environment.skyrl_gym, inference_engine_client, tokenizer, episodes=episodes
            )
        generator = GroupGenerator if cfg.trainer.fully_async.enabled else EpisodeGenerator
        return generator(cfg.generator, tokenizer, inference_engine_client, episodes)

    def get_tracker(self) -> Any:
        return SkyRLTracker(self._inputs.tracker)

    def _setup_trainer(self) -> Any:
        trainer = super()._setup_trainer()
        self._inputs.after_setup()
        return trainer


class CPUExperiment(_Episodes, LocalExperiment):
    """Policy, critic, reference and sampler in this process; run it inside ``seams.in_process()``."""

    def get_inference_client(self) -> CPUInferenceClient:
        return CPUInferenceClient(self.cfg.trainer.policy.model.path, self.tokenizer, self.cfg.trainer.seed)

    def get_trainer(self, **parts: Any) -> LocalTrainer | LocalAsynchronousTrainer:
        return (LocalAsynchronousTrainer if self.cfg.trainer.fully_async.enabled else LocalTrainer)(**parts)


class GPUExperiment(_Episodes):
    """SkyRL's own FSDP workers and vLLM servers, with our episodes and the masking of failed ones."""

    def get_trainer(self, **parts: Any) -> MaskedTrainer | AsynchronousTrainer:
        return (AsynchronousTrainer if self.cfg.trainer.fully_async.enabled else MaskedTrainer)(**parts)

"""SkyRL's configuration for a run: ours fills in what follows from the run, the user's ``skyrl:`` section the rest."""

import dataclasses
import traceback
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from skyrl.backends.skyrl_train.utils.ppo_utils import LOSSES_WITHOUT_OLD_LOGPROBS, PolicyLossType
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.utils import validate_cfg

from minisandbox_ray.config import EvaluationConfig, TrainConfig, suggestion
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks.quickstart import QuickstartConfig
from trainer_integration.skyrl import smollm
from trainer_integration.skyrl.gym import ENVIRONMENT

# SkyRL's keys that another key of ours sets.
SET_BY_OURS = {
    "trainer.seed": "seed",
    "trainer.logger": "tracking",
    "trainer.run_name": "name",
    "trainer.ckpt_path": "run_dir",
    "trainer.export_path": "run_dir",
    "trainer.log_path": "run_dir",
    "generator.max_turns": "episode.max_turns",
    "data.train_data": "tasks",
    "trainer.resume_mode": "resume",
    "trainer.resume_path": "resume",
    "data.val_data": "evaluation.tasks",
    "trainer.eval_interval": "evaluation.every",
    "generator.eval_n_samples_per_prompt": "evaluation.samples",
    "generator.eval_sampling_params.temperature": "evaluation.temperature",
}
# SkyRL's keys that our generator does not follow: better refused than ignored.
NOT_SUPPORTED = (
    "environment.skyrl_gym.llm_as_a_judge",
    "environment.skyrl_gym.search",
    "environment.skyrl_gym.text2sql",
    "generator.batched",
    "generator.chat_template",
    "generator.merge_stepwise_output",
    "generator.use_conversation_multi_turn",
    "generator.vision_language_generator",
    "trainer.fully_async.simulate_training",
    "trainer.fully_async.simulate_training_step_seconds",
    "trainer.fully_async.simulate_weight_sync_seconds",
)
CPU_SAMPLES_ALL = ("top_p", "top_k", "min_p", "stop", "repetition_penalty", "additional_kwargs")
# What SkyRL needs to be told so that it asks for nothing that a CPU lacks.
CPU: dict[str, Any] = {
    "data.dataloader.num_workers": 0,
    "generator.inference_engine.enable_ray_prometheus_stats": False,
    "generator.inference_engine.num_engines": 1,
    "trainer.bf16": False,
    "trainer.enable_ray_gpu_monitor": False,
    "trainer.flash_attn": False,
    "trainer.placement.colocate_all": False,
    "trainer.placement.colocate_policy_ref": False,
    "trainer.placement.critic_num_gpus_per_node": 1,
    "trainer.placement.policy_num_gpus_per_node": 1,
    "trainer.placement.ref_num_gpus_per_node": 1,
    "trainer.remove_microbatch_padding": False,
}


def skyrl_config(config: TrainConfig, run_dir: Path, task_count: int | None = None) -> SkyRLTrainConfig:
    """SkyRL's configuration, validated by SkyRL as well. Raises ConfigError: one line that names the key.

    A policy from scratch trains on all tasks in each step, unless the user says otherwise; ``task_count`` (default: as
    many as are asked for) is how many there are.
    """
    given = flatten(SkyRLTrainConfig, config.skyrl, "")
    if config.policy and isinstance(config.tasks, QuickstartConfig):
        given.setdefault("trainer.train_batch_size", task_count or config.tasks.tasks)
    for key in given:
        if key in SET_BY_OURS:
            raise ConfigError(f"skyrl.{key} follows from {SET_BY_OURS[key]}: set that")
        if any(key == refused or key.startswith(f"{refused}.") for refused in NOT_SUPPORTED):
            raise ConfigError(f"skyrl.{key} is not supported here")
        if config.backend == "cpu" and key.rpartition(".")[2] in CPU_SAMPLES_ALL:
            raise ConfigError(f"skyrl.{key} is not supported with backend=cpu, which samples from all tokens")
    _check_given(config, given, task_count)
    model = given.get("trainer.policy.model.path")
    if (model is None) == (config.policy is None):
        raise ConfigError("set exactly one of policy (a model from scratch) and skyrl.trainer.policy.model.path")
    model = str(smollm.checkpoint()) if model == smollm.NAME else model or str(run_dir / "policy")
    values = {
        **(CPU | _whole_batches(given) if config.backend == "cpu" else {}),
        "trainer.ckpt_interval": -1,
        "trainer.epochs": _epochs(given),
        "trainer.print_example_interval": 0,
        "trainer.project_name": "minisandbox_ray",
        **given,
        "trainer.resume_mode": "latest" if config.resume else "none",
        "generator.max_turns": config.episode.max_turns,
        "trainer.ckpt_path": str(run_dir / "checkpoints"),
        **_evaluation(config.evaluation, given),
        **_threads(given, config.evaluation),
        # The evaluation of the step that it goes on from is there.
        **({"trainer.eval_before_train": False} if config.resume else {}),
        "trainer.export_path": str(run_dir / "export"),
        "trainer.log_path": str(run_dir / "logs"),
        # Our own trackers do the logging; SkyRL's would demand a W&B key and hand it to every Ray worker.
        "trainer.logger": "console",
        "trainer.policy.model.path": model,
        "trainer.run_name": config.name,
        "trainer.seed": config.seed,
    }
    if values.get("trainer.algorithm.advantage_estimator") == "gae":
        values.setdefault("trainer.critic.model.path", model)
    if values.get("trainer.fully_async.enabled"):
        values = _asynchronous(values) | values
    try:
        result = SkyRLTrainConfig.from_cli_overrides(values)
        validate_cfg(result)
        if result.trainer.fully_async.enabled:
            _check_asynchronous(result)
    except (AssertionError, ValueError, NotImplementedError) as error:
        # Some of SkyRL's assertions say nothing but their condition.
        reason = str(error) or traceback.extract_tb(error.__traceback__)[-1].line
        raise ConfigError(f"SkyRL refuses the configuration: {' '.join(str(reason).split())}") from error
    return result


def _check_given(config: TrainConfig, given: dict[str, Any], task_count: int | None) -> None:
    """Raise ConfigError for what SkyRL would accept and then not do, or not survive."""
    sampling = given.get("trainer.algorithm.dynamic_sampling.type")
    key = f"skyrl.trainer.algorithm.dynamic_sampling.type={sampling}"
    if sampling == "replace":
        raise ConfigError(f"{key} makes batches that SkyRL itself refuses, with a task in them twice: take filter")
    if sampling and given.get("generator.step_wise_trajectories"):
        raise ConfigError(f"{key} and skyrl.generator.step_wise_trajectories do not go together in SkyRL: choose one")
    batch = given.get("trainer.train_batch_size", SkyRLTrainConfig().trainer.train_batch_size)
    count = task_count or (config.tasks.tasks if isinstance(config.tasks, QuickstartConfig) else None)
    is_asynchronous = given.get("trainer.fully_async.enabled", False)  # has another key for it, see _check_asynchronous
    if sampling and not is_asynchronous and count is not None and batch >= count:
        raise ConfigError(
            f"{key} fills a step from one pass over the tasks: skyrl.trainer.train_batch_size={batch} must be less "
            f"than their number, {count}"
        )
    if config.backend == "cpu":
        for model in ("policy", "critic"):
            if given.get(f"trainer.{model}.model.lora.rank"):
                raise ConfigError(
                    f"skyrl.trainer.{model}.model.lora is not there with backend=cpu: it trains all weights"
                )
    if config.resume:  # what SkyRL's checkpoints leave out
        if given.get("trainer.algorithm.use_kl_in_reward") and (
            given.get("trainer.algorithm.kl_ctrl.type") == "adaptive"
        ):
            raise ConfigError("resume: the state of skyrl.trainer.algorithm.kl_ctrl.type=adaptive is in no checkpoint")
        if given.get("trainer.update_ref_every_epoch"):
            raise ConfigError("resume: the reference of skyrl.trainer.update_ref_every_epoch is in no checkpoint")
    if given.get("environment.env_class", ENVIRONMENT) != ENVIRONMENT:
        raise ConfigError(
            f"skyrl.environment.env_class can only be {ENVIRONMENT}: episodes played by SkyRL's generator"
        )
    if "environment.env_class" in given and is_asynchronous:
        raise ConfigError("skyrl.environment.env_class is not there with skyrl.trainer.fully_async.enabled")


def _epochs(given: dict[str, Any]) -> int:
    """Enough for the steps: an epoch has at least one, unless groups are left out."""
    algorithm = "trainer.algorithm.dynamic_sampling"
    passes = 1
    if given.get(f"{algorithm}.type"):
        passes = max(
            1,
            given.get(
                f"{algorithm}.max_sample_batches",
                SkyRLTrainConfig().trainer.algorithm.dynamic_sampling.max_sample_batches,
            ),
        )
    return passes * given.get("trainer.max_training_steps", 1)


def _threads(given: dict[str, Any], evaluation: EvaluationConfig | None) -> dict[str, Any]:
    """A thread for each trajectory that SkyRL's own generator plays at a time: one that waits for a sandbox would else
    keep the thread from an episode that has one, and a full pool would wait for ever."""
    if "environment.env_class" not in given:
        return {}
    default, key = SkyRLTrainConfig(), "environment.skyrl_gym.max_env_workers"
    samples = given.get("generator.n_samples_per_prompt", default.generator.n_samples_per_prompt)
    needed = samples * given.get("trainer.train_batch_size", default.trainer.train_batch_size)
    if evaluation:
        needed = max(needed, evaluation.samples * given.get("trainer.eval_batch_size", default.trainer.eval_batch_size))
    if given.get(key, needed) < needed:
        raise ConfigError(
            f"skyrl.{key}={given[key]} must be at least {needed}, the episodes at a time: else they may wait for ever"
        )
    return {key: given.get(key, needed)}


def _evaluation(config: EvaluationConfig | None, given: dict[str, Any]) -> dict[str, Any]:
    if config is None:
        return {"trainer.eval_interval": -1}
    length = given.get("generator.sampling_params.max_generate_length")
    return {
        **({} if length is None else {"generator.eval_sampling_params.max_generate_length": length}),
        "generator.eval_n_samples_per_prompt": config.samples,
        "generator.eval_sampling_params.temperature": config.temperature,
        "trainer.dump_eval_results": False,  # ours are kept
        "trainer.eval_interval": config.every,
    }


def _whole_batches(given: dict[str, Any]) -> dict[str, Any]:
    """One optimiser step and one forward pass per batch, unless the user says otherwise."""
    tasks = given.get("trainer.train_batch_size", SkyRLTrainConfig().trainer.train_batch_size)
    mini = given.get("trainer.policy_mini_batch_size", tasks)
    samples = given.get("generator.n_samples_per_prompt", SkyRLTrainConfig().generator.n_samples_per_prompt)
    return {
        "trainer.policy_mini_batch_size": mini,
        "trainer.critic_mini_batch_size": mini,
        "trainer.micro_forward_batch_size_per_gpu": mini * samples,
        "trainer.micro_train_batch_size_per_gpu": mini * samples,
    }


def _asynchronous(values: dict[str, Any]) -> dict[str, Any]:
    """What fully asynchronous training needs, unless the user says otherwise: a step's groups at a time (more of them
    would only wait for sandboxes, and age), and a loss over the log-probabilities of the policy that sampled. Unlike
    SkyRL's ``rollout_is`` it keeps a gradient where that policy differs from the trained one."""
    default = SkyRLTrainConfig().trainer
    tasks = values.get("trainer.train_batch_size", default.train_batch_size)
    loss = {"trainer.algorithm.policy_loss_type": "cispo", "trainer.algorithm.cispo.cispo_anchor": "rollout"}
    return {
        **({} if "trainer.algorithm.policy_loss_type" in values else loss),
        "trainer.fully_async.num_parallel_generation_workers": tasks,
        "trainer.placement.colocate_all": False,
        "trainer.policy_mini_batch_size": tasks,
    }


def _check_asynchronous(cfg: SkyRLTrainConfig) -> None:
    """Raise AssertionError for what SkyRL's asynchronous trainer would refuse when everything has been started."""
    trainer, mode, algorithm = cfg.trainer, cfg.trainer.fully_async, cfg.trainer.algorithm
    mini = trainer.policy_mini_batch_size
    key = "with trainer.fully_async.enabled"
    assert not trainer.placement.colocate_all, f"trainer.placement.colocate_all must be false {key}"
    assert trainer.train_batch_size == mini, f"trainer.policy_mini_batch_size must be trainer.train_batch_size {key}"
    assert mini <= mode.num_parallel_generation_workers <= mini * (mode.max_staleness_steps + 1), (
        "trainer.fully_async.num_parallel_generation_workers must lie between trainer.train_batch_size and "
        "trainer.train_batch_size * (trainer.fully_async.max_staleness_steps + 1)"
    )
    assert algorithm.dynamic_sampling.type is None, (
        f"trainer.algorithm.dynamic_sampling is not there {key}: trainer.fully_async.sample_full_batch is"
    )
    assert algorithm.zero_variance_filter or not mode.sample_full_batch, (
        "trainer.fully_async.sample_full_batch needs trainer.algorithm.zero_variance_filter"
    )
    is_cispo = algorithm.policy_loss_type == PolicyLossType.CISPO and algorithm.cispo.cispo_anchor == "rollout"
    assert is_cispo or algorithm.policy_loss_type in LOSSES_WITHOUT_OLD_LOGPROBS, (
        f"trainer.algorithm.policy_loss_type={algorithm.policy_loss_type} compares with log-probabilities that are not "
        f"kept {key}: take rollout_is, dppo, or cispo with cispo.cispo_anchor=rollout"
    )
    assert not trainer.update_ref_every_epoch, f"trainer.update_ref_every_epoch is not there {key}"


def flatten(schema: Any, values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Dotted keys and values, each checked against the type in SkyRL's dataclasses."""
    hints = get_type_hints(schema)
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in hints:
            hint = suggestion(["skyrl", *key.split(".")], _known_keys(SkyRLTrainConfig, "skyrl."))
            raise ConfigError(f"unknown key skyrl.{key}{hint}")
        if dataclasses.is_dataclass(hints[name]) and isinstance(value, dict):
            flat |= flatten(hints[name], value, f"{key}.")
            continue
        try:
            flat[key] = TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise ConfigError(f"bad value for skyrl.{key}: {reason}, got {value!r}") from error
    return flat


def _known_keys(schema: Any, prefix: str) -> list[str]:
    keys = []
    for name, hint in get_type_hints(schema).items():
        keys.append(prefix + name)
        if dataclasses.is_dataclass(hint):
            keys += _known_keys(hint, f"{prefix}{name}.")
    return keys

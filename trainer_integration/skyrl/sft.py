"""Fine-tuning by SkyRL's SFT trainer on chats that solved their tasks, in the tokens that rollouts will have."""

import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import datasets
import ray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from skyrl.backends.skyrl_train.distributed.dispatch import WorkerOutput
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.train.config.sft_config import SFTConfig, build_skyrl_config_for_sft
from skyrl.train.main_sft import sft_entrypoint
from skyrl.train.sft_trainer import SFTTrainer
from skyrl.train.utils.utils import initialize_ray
from transformers import AutoTokenizer

from minisandbox_ray.config import known_keys, one_line, read_arguments
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout.export import chat, choose, read_trajectories
from minisandbox_ray.telemetry import JsonlTracker
from trainer_integration.skyrl import smollm
from trainer_integration.skyrl.config import flatten
from trainer_integration.skyrl.conversation import Conversation, after_turn, end_of_turn
from trainer_integration.skyrl.process import check_gpu_software, check_model, log_to
from trainer_integration.skyrl.seams import LocalDispatch, LocalPolicyWorker, check_version, in_process, local_worker

NEVER = 10**9
# SkyRL's keys that follow from ours, or that only its own way of reading data has.
REFUSED = {
    *("model.path", "seed", "logger", "run_name", "ckpt_path", "ckpt_interval", "export_path", "hf_save_interval"),
    *("pretokenized_dataset_paths", "train_datasets", "train_dataset_splits", "dataset_name", "max_length"),
}


class SftConfig(BaseModel):
    """One fine-tuning."""

    model_config = ConfigDict(extra="forbid")

    name: str = "sft"
    """Name of the run's directory."""
    run_dir: Path | None = None
    """Where everything is written, the model as ``model``; None: ``runs/<name>-<time>``."""
    backend: Literal["cpu", "gpu"] = "cpu"
    """``cpu``: in this process; ``gpu``: SkyRL's FSDP workers on a Ray cluster."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of the order of chats."""
    model: str
    """The checkpoint to start from: a directory, a name on the hub, or ``smollm2``."""
    data: list[Path] = Field(min_length=1)
    """Trajectories that `rollout` wrote (files or directories; only resolved ones are taken), or chats that
    `trajectories export-sft` wrote."""
    system: str = ""
    """System message before the prompts of trajectories; a training's ``prompt.system`` should be the same."""
    user: str = "{problem_statement}"
    """What becomes of the prompts of trajectories, as a training's ``prompt.user``."""
    chat_template_kwargs: dict[str, Any] = {}
    """As ``skyrl.generator.chat_template_kwargs`` of the training."""
    max_length: int = Field(16384, ge=1)
    """Tokens; longer chats are left out, never cut."""
    skyrl: dict[str, Any] = {}
    """Keys of SkyRL's SFTConfig: batch_size, num_epochs, optimizer_config.lr, placement, …"""


def load(arguments: list[str]) -> SftConfig:
    """The configuration from ``config=FILE key=value …``. Raises ConfigError: one line that names the key."""
    try:
        return SftConfig.model_validate(read_arguments(arguments, "sft"))
    except ValidationError as error:
        raise ConfigError(one_line(error, known_keys(SftConfig))) from error


def read_chats(config: SftConfig) -> Iterator[list[dict[str, str]]]:
    """The messages of every chat: of trajectories the resolved ones. Raises ConfigError that names file and line."""
    for path in config.data:
        file = path / "trajectories.jsonl" if path.is_dir() else path
        if not _holds_chats(file):
            for trajectory in choose(read_trajectories([path]), resolved=True):
                messages = chat(trajectory, config.system)["messages"]
                first = next(message for message in messages if message["role"] == "user")
                first["content"] = config.user.replace("{problem_statement}", first["content"])
                yield messages
            continue
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            if line.strip():
                yield _messages(line, f"{file}, line {number}")


def _holds_chats(file: Path) -> bool:
    try:
        with file.open("rb") as lines:
            return b'"messages"' in next((line for line in lines if line.strip()), b"")[:200]
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _messages(line: bytes, where: str) -> list[dict[str, str]]:
    try:
        messages = json.loads(line)["messages"]
        roles = [message["role"] for message in messages]
        texts = all(isinstance(message["content"], str) for message in messages)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: no chat messages") from error
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if not texts or len(turns) < 2 or turns != ["user", "assistant"] * (len(turns) // 2):
        raise ConfigError(
            f"{where}: not user and assistant in turns, the assistant last, after at most a system message"
        )
    return messages


def tokenize(tokenizer: Any, messages: list[dict[str, str]], template_kwargs: dict[str, Any]) -> dict[str, list[int]]:
    """``input_ids`` and ``loss_mask`` of a chat, token by token what a rollout of it would hold: the loss is on the
    assistant's turns and the end of each, and on nothing else."""
    first = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    conversation = Conversation(tokenizer, messages[:first], template_kwargs)
    following = after_turn(tokenizer, "", template_kwargs)
    end = end_of_turn(tokenizer, following)
    ending = [] if end is None else following[: end + 1]
    for message in messages[first:]:
        if message["role"] == "assistant":
            tokens = tokenizer(message["content"], add_special_tokens=False).input_ids + ending
            conversation.add_sampled(tokens, [0.0] * len(tokens))
        else:
            conversation.add_observation(conversation.observation_ids(message["content"]))
    return {
        "input_ids": conversation.ids,
        "loss_mask": [0] * len(conversation.prompt_ids) + conversation.loss_mask,
    }


def run(config: SftConfig) -> Path:
    """Fine-tune; returns the checkpoint, which a training takes as its model. Raises MiniSandboxError."""
    check_version()
    if config.backend == "gpu":
        check_gpu_software()
    model = str(smollm.checkpoint()) if config.model == smollm.NAME else config.model
    run_dir = (config.run_dir or Path("runs") / f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}").expanduser().absolute()
    if (run_dir / "metrics.jsonl").exists():
        raise ConfigError(f"run_dir {run_dir} holds a run already: choose another, or remove it")
    cfg, skyrl = skyrl_configs(config, model, run_dir)
    check_model(model)
    count, too_long = _prepare(config, AutoTokenizer.from_pretrained(model), run_dir)
    log_to(run_dir)
    print(f"{count} chats ({too_long} longer than {config.max_length} tokens left out); everything goes to {run_dir}")
    if config.backend == "gpu":
        initialize_ray(skyrl)
        ray.get(sft_entrypoint.remote(cfg, skyrl))
    else:
        with in_process():
            trainer = LocalSFTTrainer(cfg, skyrl_cfg=skyrl)
            trainer.setup()
            log_to(run_dir)
            trainer.train()
            trainer.shutdown()
    exported = next((run_dir / "export").glob("global_step_*/policy"))
    exported.rename(run_dir / "model")
    shutil.rmtree(run_dir / "export")
    print(f"model: {run_dir / 'model'}   metrics: {run_dir / 'metrics.jsonl'}")
    return run_dir / "model"


def skyrl_configs(config: SftConfig, model: str, run_dir: Path) -> tuple[SFTConfig, Any]:
    """SkyRL's configuration and the one that it makes for its workers. Raises ConfigError: one line."""
    given = flatten(SFTConfig, config.skyrl, "")
    for key in given:
        if key in REFUSED:
            raise ConfigError(f"skyrl.{key} follows from the keys beside skyrl: see SftConfig")
    cpu = {
        "async_batch_collation": False,
        "enable_ray_gpu_monitor": False,
        "placement.num_gpus_per_node": 1,
        "remove_microbatch_padding": False,
    }
    values = {
        "strategy": "fsdp",
        **(cpu if config.backend == "cpu" else {}),
        **given,
        "export_path": str(run_dir / "export"),
        "hf_save_interval": NEVER,  # that is, at the end
        "logger": "console",
        "max_length": config.max_length,
        "model.path": model,
        "pretokenized_dataset_paths": [str(run_dir / "data")],
        "run_name": config.name,
        "seed": config.seed,
    }
    try:
        cfg = SFTConfig.from_cli_overrides(values)
        skyrl = build_skyrl_config_for_sft(cfg)
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise ConfigError(f"SkyRL refuses the configuration: {' '.join(str(error).split())}") from error
    if config.backend == "cpu":
        skyrl.trainer.bf16 = skyrl.trainer.flash_attn = False
    return cfg, skyrl


def _prepare(config: SftConfig, tokenizer: Any, run_dir: Path) -> tuple[int, int]:
    """Write the chats in tokens to run_dir/data -> (how many, how many were too long)."""
    rows = [tokenize(tokenizer, messages, config.chat_template_kwargs) for messages in read_chats(config)]
    fitting = [row for row in rows if len(row["input_ids"]) <= config.max_length]
    if not fitting:
        why = f"all {len(rows)} chats are longer than max_length={config.max_length} tokens" if rows else "no chats"
        raise ConfigError(f"nothing to learn from in {', '.join(map(str, config.data))}: {why}")
    run_dir.mkdir(parents=True, exist_ok=True)
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(fitting).save_to_disk(run_dir / "data")
    return len(fitting), len(rows) - len(fitting)


class _Dispatch(LocalDispatch):
    """The part of SkyRL's WorkerDispatch that its SFT trainer calls besides."""

    def dp_size(self, model: str) -> int:
        return 1

    def forward_backward(self, model: str, data: TrainingInputBatch, **options: Any) -> WorkerOutput:
        return self._workers[model].forward_backward(data, **options)


class _Progress:
    """A line per step, and metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self._file = JsonlTracker(path)

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        self._file.log(data, step)
        print(f"step {step} | loss {data['train/loss']:.4f} | {data['timing/step']:.1f} s", flush=True)

    def finish(self) -> None:
        self._file.finish()


class LocalSFTTrainer(SFTTrainer):
    """SkyRL's SFT trainer over a worker in this process; used inside ``in_process()``."""

    def _init_workers(self) -> None:
        steps = self.sft_cfg.num_steps or NEVER
        path, seed = self.sft_cfg.model.path, self.sft_cfg.seed
        worker = local_worker(LocalPolicyWorker, self.cfg.trainer, path, seed, steps)
        self.dispatch: Any = _Dispatch({"policy": worker}, None, 0)

    def _init_tracker(self) -> None:
        self.tracker: Any = _Progress(Path(self.sft_cfg.export_path).parent / "metrics.jsonl")

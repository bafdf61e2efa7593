"""Everything that reaches into SkyRL beyond its public extension points, written for exactly one version of it.

SkyRL trains in Ray actors on GPUs. On a CPU its own worker classes (loss, micro-batches, metrics) run here
as plain objects in the driver, so training needs no GPU, real or pretended, and any Ray cluster will do.
``tests/trainer_integration/skyrl/test_seams_contract.py`` says what changed when another version breaks this.
"""

import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import ray
import torch
import torch.distributed as dist
from skyrl.backends.skyrl_train.distributed.dispatch import MeshRank, WorkerOutput
from skyrl.backends.skyrl_train.distributed.strategy import DistributedStrategy
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry, PolicyLossRegistry
from skyrl.backends.skyrl_train.workers.worker import CriticWorkerBase, PolicyWorkerBase, RefWorkerBase
from skyrl.train import evaluate as evaluate_module
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.generators.base import MetricsOutput
from skyrl.train.generators.utils import get_metrics_from_generator_output
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import trainer_utils
from skyrl.train.utils.trainer_utils import cleanup_old_checkpoints
from torch import nn
from transformers import get_scheduler

from minisandbox_ray.errors import ConfigError, MiniSandboxError
from trainer_integration.skyrl.lookahead import LookAhead
from trainer_integration.skyrl.models import CausalLM, Critic

SKYRL_VERSION = "0.4.0"
GROUP_ESTIMATORS = ("grpo", "rloo", "maxrl")  # those that compare a row with the others of its prompt


def check_version() -> None:
    """Raise ConfigError unless the installed SkyRL is the one this file was written for."""
    installed = metadata.version("skyrl")
    if installed != SKYRL_VERSION:
        raise ConfigError(
            f"skyrl {installed} is installed, but this version of minisandbox_ray is written for skyrl "
            f"{SKYRL_VERSION}: pip install 'minisandbox-ray[skyrl]'"
        )


def check_gpus(cfg: Any) -> None:
    """Raise ConfigError unless the connected Ray cluster has the GPUs that the policy is placed on."""
    placement = cfg.trainer.placement
    needed = placement.policy_num_nodes * placement.policy_num_gpus_per_node
    found = int(ray.cluster_resources().get("GPU", 0))
    if found < needed:
        raise ConfigError(
            f"backend=gpu: skyrl.trainer.placement asks for {needed} GPUs and the Ray cluster has {found}: connect to "
            "one with cluster.address, change the placement, or set backend=cpu"
        )


@contextmanager
def in_process(*, side_by_side: bool = False) -> Iterator[None]:
    """Let SkyRL's workers run in this process on a CPU: the device they ask for, their group of one, no Ray actors.

    ``side_by_side``: policy and sampler compute at the same time, each with half of the processors.
    """
    with ExitStack() as stack:
        if side_by_side:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(max(1, torch.get_num_threads() // 2))
        stack.enter_context(mock.patch.object(torch.cuda, "current_device", return_value=torch.device("cpu")))
        for registry in (AdvantageEstimatorRegistry, PolicyLossRegistry):
            # Else each look-up of a loss would start and ask a named actor on the user's cluster.
            stack.enter_context(mock.patch.object(registry, "sync_with_actor"))
        stack.enter_context(mock.patch.dict(os.environ))  # the workers leave their rank there
        for name in [name for name in os.environ if name.startswith("RAY_EXPERIMENTAL_NOSET_")]:
            del os.environ[name]  # set in a Ray job; SkyRL's workers then ask for the number of their GPU
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")  # torch.autocast(device_type="cuda")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        stack.callback(dist.destroy_process_group)
        yield


class LocalStrategy(DistributedStrategy):
    """One process, one device: plain backward, clipped step, one file per checkpoint."""

    world_size = 1

    def __init__(self, max_grad_norm: float) -> None:
        self._max_grad_norm = max_grad_norm if max_grad_norm > 0 else float("inf")

    def setup_distributed(self) -> None:
        """The process group exists already."""

    def backward(self, loss: Any, model: Any, optimizer: Any, **kwargs: Any) -> None:
        loss.backward()

    def optimizer_step(self, optimizer: Any, model: Any, scheduler: Any, name: str = "model", **kwargs: Any) -> Any:
        norm = nn.utils.clip_grad_norm_(model.parameters(), self._max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    def save_checkpoint(
        self, model: Any, ckpt_dir: str, node_local_rank: int, *, optimizer: Any, scheduler: Any, tokenizer: Any
    ) -> None:
        Path(ckpt_dir).mkdir(parents=True, exist_ok=True)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": self.get_rng_state(),
        }
        torch.save(state, Path(ckpt_dir) / "state.pt")

    def load_checkpoint(
        self, model: Any, ckpt_dir: str, optimizer: Any, scheduler: Any, *args: Any, **kwargs: Any
    ) -> tuple[str, Any]:
        state = torch.load(Path(ckpt_dir) / "state.pt", weights_only=False)
        model.load_state_dict(state["model"])
        for part, name in ((optimizer, "optimizer"), (scheduler, "scheduler")):
            if part is not None:
                part.load_state_dict(state[name])
        self.load_rng_state(state["rng"])
        return ckpt_dir, state

    def save_hf_model(self, model: Any, output_dir: str, tokenizer: Any = None, **kwargs: Any) -> None:
        model.model.save_pretrained(output_dir)
        tokenizer.save_pretrained(output_dir)


class _LocalWorker:
    """What SkyRL's worker bases leave to a backend, for one CPU process."""

    def init_worker_process_group(self: Any) -> None:
        self.device_mesh = dist.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "sp"))
        self.mesh_rank = MeshRank(dp=0, sp=0, tp=0, pp=0, world_size=1, dp_size=1, pp_size=1)

    def _init(self: Any, model: nn.Module, optimizer_config: Any, num_training_steps: int) -> None:
        self.model = model
        self.strategy = LocalStrategy(optimizer_config.max_grad_norm)
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=optimizer_config.lr,
            betas=tuple(optimizer_config.adam_betas),
            weight_decay=optimizer_config.weight_decay,
        )
        self.scheduler = get_scheduler(
            optimizer_config.scheduler,
            self.optimizer,
            num_warmup_steps=optimizer_config.num_warmup_steps,
            num_training_steps=num_training_steps,
        )


class LocalPolicyWorker(_LocalWorker, PolicyWorkerBase):
    def init_model(self, model_path: str, num_training_steps: int) -> None:
        self._init(CausalLM(model_path), self.cfg.policy.optimizer_config, num_training_steps)


class LocalCriticWorker(_LocalWorker, CriticWorkerBase):
    def init_model(self, model_path: str, num_training_steps: int) -> None:
        self._init(Critic(model_path), self.cfg.critic.optimizer_config, num_training_steps)


class LocalRefWorker(_LocalWorker, RefWorkerBase):
    def init_model(self, model_path: str, num_training_steps: int) -> None:
        self.model = CausalLM(model_path)


def local_worker(worker_class: Any, config: Any, path: str, seed: int, num_training_steps: int) -> Any:
    """A worker in this process, with the checkpoint at ``path`` loaded; ``config`` is SkyRL's ``trainer`` section."""
    worker = worker_class(
        cfg=config,
        world_size=1,
        rank=0,
        local_rank=0,
        master_addr="127.0.0.1",
        master_port=1,  # only kept in the environment: the process group exists already
        sequence_parallel_size=1,
    )
    torch.manual_seed(seed)
    worker.init_worker_process_group()
    worker.init_model(path, num_training_steps=num_training_steps)
    return worker


LOCAL_WORKERS = {"policy": LocalPolicyWorker, "critic": LocalCriticWorker, "ref": LocalRefWorker}


class LocalDispatch:
    """The part of SkyRL's WorkerDispatch that its trainer calls, over one worker object per model."""

    def __init__(self, workers: dict[str, Any], client: Any, num_training_steps: int) -> None:
        self._workers = workers
        self._client = client
        self._num_training_steps = num_training_steps
        self._sync_seconds = 0.0

    def get_lcm_dp_size(self) -> int:
        return 1

    def stage_data(self, model: str, data: TrainingInputBatch, boundaries: list[tuple[int, int]]) -> list[Any]:
        return [data[start:end] for start, end in boundaries]

    def forward(self, model: str, data: TrainingInputBatch) -> WorkerOutput:
        return self._workers[model].forward(data)

    def forward_from_staged(self, model: str, chunk: TrainingInputBatch) -> WorkerOutput:
        return self._workers[model].forward(chunk)

    def forward_backward_from_staged(self, model: str, chunk: TrainingInputBatch) -> WorkerOutput:
        return self._workers[model].forward_backward(chunk)

    def optim_step(self, model: str) -> float | None:
        return self._workers[model].optim_step()

    def init_weight_sync_state(self, client: Any) -> None:
        self._client = client

    async def save_weights_for_sampler(self) -> None:
        started = time.perf_counter()
        await self._client.update_named_weights({"state_dict": self._workers["policy"].model.model.state_dict()})
        self._client.increment_weight_version()
        self._sync_seconds = time.perf_counter() - started

    def get_timing_metrics(self) -> dict[str, float]:
        return {"sync_weights_only_transfer": self._sync_seconds}

    def save_checkpoint(self, model: str, ckpt_dir: str, tokenizer: Any) -> None:
        self._workers[model].save_checkpoint(ckpt_dir, tokenizer)

    def load_checkpoint(
        self, model: str, ckpt_dir: str, load_optimizer_states: bool, load_lr_scheduler_states: bool
    ) -> None:
        self._workers[model].load_checkpoint(ckpt_dir, load_optimizer_states, load_lr_scheduler_states)

    def save_hf_model(self, model: str, export_dir: str, tokenizer: Any) -> None:
        self._workers[model].save_hf_model(export_dir, tokenizer)

    def init_model(self, model: str, path: str) -> None:
        self._workers[model].init_model(path, self._num_training_steps)

    def empty_cache(self, model: str | None = None) -> None:
        """There is no device cache."""

    def finalize_pending_saves(self, model: str) -> None:
        """Saves are synchronous."""


FAILED = "error"
"""Stop reason of a row that is an episode that failed through no fault of the agent."""


class MaskedRows:
    """For SkyRL's trainers, before them among the bases: batches in which some rows have the stop reason ``error``.

    Such a row is an episode that failed through no fault of the agent. Its loss mask, all zeros, keeps it out of the
    loss, but not out of what is computed from the others. Here it also counts neither in its group's
    baseline, nor in whitening, nor in the metrics of rewards and evaluations, nor in which groups are left out: the
    group is as if the row had never been sampled. Where a group shrinks to one row there is nothing to compare it with,
    and its advantage is 0. A row that is masked for another reason, as by overlong filtering, is SkyRL's matter.
    """

    cfg: Any
    _batches = 0  # that were rolled out for the step that is being filled

    async def eval(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        base: Any = super()
        with ExitStack() as stack:
            for module in (evaluate_module, trainer_utils):
                stack.enter_context(
                    mock.patch.object(module, "get_metrics_from_generator_output", _metrics_without_failures)
                )
            metrics = await base.eval(*args, **kwargs)
        return {key: value for key, value in metrics.items() if value is not None}

    def handle_dynamic_sampling(self, generator_output: Any, uids: list[str]) -> tuple[Any, list[str], bool]:
        base: Any = super()
        totals = [sum(each) if isinstance(each, list) else each for each in generator_output["rewards"]]
        failed = [reason == FAILED for reason in generator_output["stop_reasons"]]
        played = {uid: total for uid, total, out in zip(uids, totals, failed, strict=True) if not out}
        for i, uid in enumerate(uids):
            if failed[i] and uid in played:  # the reward of another of its group, where it then makes no difference
                totals[i] = played[uid]
                is_list = isinstance(generator_output["rewards"][i], list)
                zeros = [0.0] * (len(generator_output["response_ids"][i]) - 1)
                generator_output["rewards"][i] = [*zeros, totals[i]] if is_list else totals[i]
        self._batches += 1
        limit = self.cfg.trainer.algorithm.dynamic_sampling.max_sample_batches
        goes_on = len(set(zip(uids, totals, strict=True))) == len(set(uids)) < len(uids)
        if goes_on:  # no group is kept, at which SkyRL would stop
            output = generator_output
        else:
            output, uids, goes_on = base.handle_dynamic_sampling(generator_output, uids)
        if goes_on and 0 < limit <= self._batches:  # SkyRL begins to count anew with each pass over the tasks
            raise MiniSandboxError(
                f"{limit} batches did not fill one training step: in nearly all groups all episodes are solved or "
                "none (skyrl.trainer.algorithm.dynamic_sampling.max_sample_batches)"
            )
        self._batches *= goes_on
        return output, uids, goes_on

    def postprocess_generator_output(
        self,
        generator_output: Any,
        uids: list[str],
        metrics_generator_output: Any = None,
        metrics_uids: list[str] | None = None,
    ) -> Any:
        if metrics_generator_output is None:
            metrics_generator_output, metrics_uids = generator_output, uids
        assert metrics_uids is not None
        kept, kept_uids = _without_failures(metrics_generator_output, metrics_uids)
        if kept_uids:
            metrics_generator_output, metrics_uids = kept, kept_uids
        base: Any = super()
        return base.postprocess_generator_output(generator_output, uids, metrics_generator_output, metrics_uids)

    def convert_to_training_input(self, generator_output: Any, uids: list[str]) -> TrainingInputBatch:
        base: Any = super()
        batch = base.convert_to_training_input(generator_output, uids)
        failed = [reason == FAILED for reason in generator_output["stop_reasons"]]
        batch.metadata["failed"] = failed + [False] * batch.metadata["pad_size"]
        return batch

    def compute_advantages_and_returns(self, data: TrainingInputBatch) -> TrainingInputBatch:
        base: Any = super()
        failed = torch.tensor(data.metadata.pop("failed"))
        if not failed.any():
            return base.compute_advantages_and_returns(data)
        response_mask = data["response_mask"]
        data["response_mask"] = response_mask * ~failed[:, None]
        uids = [
            f"{uid}/masked-{i}" if out else uid
            for i, (uid, out) in enumerate(zip(data.metadata["uids"], failed.tolist(), strict=True))
        ]
        data.metadata["uids"] = uids
        data = base.compute_advantages_and_returns(data)
        data["response_mask"] = response_mask
        if self.cfg.trainer.algorithm.advantage_estimator in GROUP_ESTIMATORS:
            # Of a trajectory in steps only the last one's reward is compared with the others'.
            last = data.metadata.get("is_last_step") or [True] * len(uids)
            sizes = Counter(uid for uid, is_last in zip(uids, last, strict=True) if is_last)
            data["advantages"][[i for i, uid in enumerate(uids) if sizes[uid] == 1]] = 0.0
        return data


def _without_failures(output: Any, uids: list[str]) -> tuple[Any, list[str]]:
    kept = [i for i, reason in enumerate(output["stop_reasons"]) if reason != FAILED]
    if len(kept) == len(uids):
        return output, uids
    columns = {key: value for key, value in output.items() if isinstance(value, list) and len(value) == len(uids)}
    return {key: [value[i] for i in kept] for key, value in columns.items()}, [uids[i] for i in kept]


def _metrics_without_failures(output: Any, uids: list[str]) -> Any:
    """SkyRL's function of this kind; no number where all episodes failed."""
    output, uids = _without_failures(output, uids)
    if not uids:
        return dict.fromkeys(MetricsOutput.__annotations__)
    return get_metrics_from_generator_output(output, uids)


class MaskedTrainer(MaskedRows, RayPPOTrainer):
    """SkyRL's trainer with failed rows masked.

    Once a batch has been rolled out, the environments of the next one are asked for: they are unpacked during the
    optimiser step.
    """

    train_dataloader: Any

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        super()._build_train_dataloader_and_compute_training_steps()
        if self.train_dataloader is not None:
            self.train_dataloader = LookAhead(self.train_dataloader, self.cfg.trainer.seed)

    async def generate(self, input_batch: Any) -> Any:
        output = await super().generate(input_batch)
        if self.train_dataloader is not None and self.train_dataloader.upcoming:
            self.generator.episodes.prefetch(self.train_dataloader.upcoming, self.cfg.generator.n_samples_per_prompt)
        return output


class LocalModels:
    """For SkyRL's trainers, before them among the bases: workers in this process; used inside ``in_process()``."""

    cfg: Any
    has_critic: bool
    inference_engine_client: Any
    total_training_steps: int

    def load_checkpoints(self) -> Any:
        base: Any = super()
        loaded = base.load_checkpoints()
        # The sampler's random numbers are named by the version of its weights, one for each step.
        self.inference_engine_client.weight_version = loaded[0]
        return loaded

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:
        config = self.cfg.trainer
        steps_per_batch = config.train_batch_size // config.policy_mini_batch_size * config.update_epochs_per_batch
        steps = self.total_training_steps * steps_per_batch
        wanted = {"policy": (PolicyWorker, config.policy.model.path)}
        if self.has_critic:
            wanted["critic"] = (CriticWorker, config.critic.model.path)
        if config.algorithm.use_kl_loss or config.algorithm.use_kl_in_reward:
            wanted["ref"] = (RefWorker, config.ref.model.path)
        workers = {}
        for name, (worker_class, path) in wanted.items():
            workers[name] = local_worker(worker_class, config, path, config.seed, steps)
        self.policy_model, self.critic_model, self.ref_model = (workers.get(n) for n in ("policy", "critic", "ref"))
        self.dispatch = LocalDispatch(workers, self.inference_engine_client, steps)

    def _cleanup_old_checkpoints(self) -> None:
        # The base class runs this as a Ray task on every node; all checkpoints are on this one.
        cleanup_old_checkpoints(self.cfg.trainer.ckpt_path, self.cfg.trainer.max_ckpts_to_keep)


class LocalTrainer(LocalModels, MaskedTrainer):
    """SkyRL's trainer over workers in this process."""


class LocalExperiment(BasePPOExp):
    """SkyRL's experiment with local workers, where the base class imports FSDP's."""

    def _setup_trainer(self) -> RayPPOTrainer:
        for path in (self.cfg.trainer.export_path, self.cfg.trainer.ckpt_path):
            Path(path).mkdir(parents=True, exist_ok=True)
        client = self.get_inference_client()
        self.trainer = self.get_trainer(
            cfg=self.cfg,
            tracker=self.get_tracker(),
            tokenizer=self.tokenizer,
            train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset,
            inference_engine_client=client,
            generator=self.get_generator(self.cfg, self.tokenizer, client),
            colocate_pg=None,
        )
        self.trainer.build_models(*LOCAL_WORKERS.values())
        return self.trainer

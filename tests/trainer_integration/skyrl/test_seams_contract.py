"""What seams.py takes for granted about SkyRL. A failure here names the part of another SkyRL version that changed."""

import ast
import inspect
import os
from importlib import metadata

import pytest
import skyrl.train.fully_async_trainer as asynchronous_module
import skyrl.train.trainer as trainer_module
from skyrl.backends.skyrl_train.distributed.strategy import DistributedStrategy
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.backends.skyrl_train.workers import worker
from skyrl.train import evaluate as evaluate_module
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import trainer_utils

from minisandbox_ray.errors import ConfigError
from trainer_integration.skyrl import seams
from trainer_integration.skyrl.experiment import SkyRLTracker

# Owner, name, parameters that we override it with or call it by.
SIGNATURES = [
    (BasePPOExp, "_setup_trainer", "self"),
    (BasePPOExp, "get_inference_client", "self"),
    (BasePPOExp, "get_generator", "self, cfg, tokenizer, inference_engine_client"),
    (BasePPOExp, "get_tracker", "self"),
    (BasePPOExp, "get_train_dataset", "self"),
    (RayPPOTrainer, "build_models", "self, PolicyWorker, CriticWorker, RefWorker"),
    (RayPPOTrainer, "_cleanup_old_checkpoints", "self"),
    (RayPPOTrainer, "compute_advantages_and_returns", "self, data"),
    (RayPPOTrainer, "convert_to_training_input", "self, generator_output, uids"),
    (RayPPOTrainer, "eval", "self, vllm_metrics_scraper"),
    (RayPPOTrainer, "handle_dynamic_sampling", "self, generator_output, uids"),
    (evaluate_module, "get_metrics_from_generator_output", "generator_output, uids"),
    (trainer_utils, "get_metrics_from_generator_output", "generator_output, uids"),
    (
        asynchronous_module._AsyncStalenessManager,
        "__init__",
        "self, max_concurrent_generation_groups, mini_batch_size, max_staleness_steps",
    ),
    (asynchronous_module._AsyncStalenessManager, "acquire_submission_slot", "self"),
    (
        SkyRLGymGenerator,
        "_setup_env_extras",
        "self, _env_class, env_extras, _sampling_params, _trajectory_id",
    ),
    (
        SkyRLGymGenerator,
        "_post_process_agent_loop_output",
        "self, agent_loop_output, _env_extras, _trajectory_id",
    ),
    (SkyRLGymGenerator, "generate", "self, input_batch, disable_tqdm"),
    (
        RayPPOTrainer,
        "postprocess_generator_output",
        "self, generator_output, uids, metrics_generator_output, metrics_uids",
    ),
    (FullyAsyncRayPPOTrainer, "train", "self"),
    (FullyAsyncRayPPOTrainer, "save_checkpoints", "self"),
    (FullyAsyncRayPPOTrainer, "_build_train_dataloader_and_compute_training_steps", "self"),
    (
        FullyAsyncRayPPOTrainer,
        "_collect_generation_mini_batch",
        "self, generation_output_group_buffer, all_generators_done",
    ),
    (
        FullyAsyncRayPPOTrainer,
        "convert_generation_group_mini_batch_to_training_input",
        "self, cur_generation_group_mini_batch, dropped_groups",
    ),
    (
        worker.DistributedTorchRayActor,
        "__init__",
        "self, world_size, rank, local_rank, master_addr, master_port, sequence_parallel_size, record_memory",
    ),
    (worker.DistributedTorchRayActor, "init_worker_process_group", "self"),
    (worker.PolicyWorkerBase, "forward", "self, data, loss_fn, loss_fn_config, return_per_token_outputs"),
    (worker.PolicyWorkerBase, "forward_backward", "self, data, loss_fn, loss_fn_config, return_per_token_outputs"),
    (worker.PolicyWorkerBase, "optim_step", "self"),
    (worker.CriticWorkerBase, "forward", "self, data"),
    (worker.CriticWorkerBase, "forward_backward", "self, data"),
    (worker.CriticWorkerBase, "optim_step", "self"),
    (worker.RefWorkerBase, "forward", "self, data"),
    (worker.Worker, "save_checkpoint", "self, ckpt_dir, tokenizer"),
    (worker.Worker, "load_checkpoint", "self, ckpt_dir, load_optimizer_states, load_lr_scheduler_states"),
    (worker.Worker, "save_hf_model", "self, export_dir, tokenizer"),
    (DistributedStrategy, "backward", "self, loss, model, optimizer, kwargs"),
    (DistributedStrategy, "optimizer_step", "self, optimizer, model, scheduler, name, kwargs"),
    (ppo_utils.AdvantageEstimatorRegistry, "sync_with_actor", ""),
    (ppo_utils.PolicyLossRegistry, "sync_with_actor", ""),
]


@pytest.mark.parametrize(("owner", "name", "expected"), SIGNATURES, ids=lambda part: getattr(part, "__name__", part))
def test_signatures(owner, name, expected):
    assert hasattr(owner, name), f"{owner.__name__}.{name} is gone: seams.py overrides or calls it"
    found = ", ".join(inspect.signature(getattr(owner, name)).parameters)
    assert found == expected, f"{owner.__name__}.{name} now takes ({found}): adapt seams.py"


def _calls_on(source: str, attribute: str) -> set[str]:
    """Names ``x`` in ``self.<attribute>.x``."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == attribute
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id == "self"
    }


def test_the_dispatch_has_all_that_the_trainer_calls():
    modules = trainer_module, asynchronous_module
    called = set().union(*(_calls_on(inspect.getsource(module), "dispatch") for module in modules))
    # In methods that LocalTrainer overrides, for colocated GPUs, or for the CUDA profiler.
    not_here = {"get_node_ids", "mark_all_offloaded", "start_profile", "profile_step", "stop_profile"}
    missing = called - not_here - set(dir(seams.LocalDispatch))
    assert not missing, f"RayPPOTrainer now calls dispatch.{missing}: add it to LocalDispatch in seams.py"


def test_the_tracker_has_all_that_trainer_and_experiment_call():
    called = _calls_on(inspect.getsource(trainer_module), "tracker")
    missing = called - set(dir(SkyRLTracker))
    assert not missing, f"RayPPOTrainer now calls tracker.{missing}: add it to SkyRLTracker"


def test_the_client_and_the_strategy_are_complete():
    from trainer_integration.skyrl.sampler import CPUInferenceClient

    assert issubclass(CPUInferenceClient, InferenceEngineInterface)
    assert not CPUInferenceClient.__abstractmethods__, f"new in SkyRL: {CPUInferenceClient.__abstractmethods__}"
    assert not seams.LocalStrategy.__abstractmethods__, f"new in SkyRL: {seams.LocalStrategy.__abstractmethods__}"


def test_another_version_is_refused_in_one_line(monkeypatch):
    seams.check_version()
    monkeypatch.setattr(metadata, "version", lambda name: "0.5.0")
    with pytest.raises(ConfigError, match=r"skyrl 0\.5\.0 is installed.*written for skyrl 0\.4\.0.*pip install"):
        seams.check_version()


def test_a_ray_jobs_device_settings_do_not_reach_the_workers(monkeypatch):
    name = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"  # what `ray job submit` sets for its entry point
    monkeypatch.setenv(name, "1")
    with seams.in_process():
        assert name not in os.environ
    assert os.environ[name] == "1"

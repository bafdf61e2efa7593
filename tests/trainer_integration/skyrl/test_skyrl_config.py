"""SkyRL's own keys: checked as strictly as ours, and by SkyRL."""

import re
from pathlib import Path

import pytest

from minisandbox_ray.config import load_config
from minisandbox_ray.errors import ConfigError
from trainer_integration.skyrl.config import skyrl_config

CONFIGS = Path(__file__).parents[3] / "configs"


def _config(*overrides: str, name: str = "quickstart"):
    return skyrl_config(load_config([f"config={CONFIGS / name}.yaml", *overrides]), Path("/run"))


def test_what_follows_from_our_keys():
    cfg = _config("seed=5", "episode.max_turns=3", "name=mine")
    assert (cfg.trainer.seed, cfg.generator.max_turns, cfg.trainer.run_name) == (5, 3, "mine")
    assert cfg.trainer.policy.model.path == "/run/policy"
    assert cfg.trainer.epochs >= cfg.trainer.max_training_steps
    assert (
        cfg.trainer.micro_train_batch_size_per_gpu == cfg.trainer.train_batch_size * cfg.generator.n_samples_per_prompt
    )


def test_a_smaller_batch_is_one_key():
    assert _config("skyrl.trainer.train_batch_size=4").trainer.policy_mini_batch_size == 4


def test_ppo_is_one_key():
    cfg = _config("skyrl.trainer.algorithm.advantage_estimator=gae")
    assert cfg.trainer.critic.model.path == cfg.trainer.policy.model.path


def test_asynchronous_training_is_one_key():
    cfg = _config("skyrl.trainer.fully_async.enabled=true", "skyrl.trainer.fully_async.max_staleness_steps=2")
    assert (cfg.trainer.algorithm.policy_loss_type, cfg.trainer.algorithm.cispo.cispo_anchor) == ("cispo", "rollout")
    assert cfg.trainer.fully_async.num_parallel_generation_workers == cfg.trainer.train_batch_size


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.algorithm.policy_loss_type=regular", ".*policy_loss_type=regular compares .* take rollout_is.*"),
        ("trainer.policy_mini_batch_size=4", ".*policy_mini_batch_size must be trainer.train_batch_size.*"),
        (
            "trainer.fully_async.num_parallel_generation_workers=1",
            ".*num_parallel_generation_workers must lie between.*",
        ),
        ("trainer.algorithm.dynamic_sampling.type=filter", ".*fully_async.sample_full_batch is"),
        ("trainer.fully_async.sample_full_batch=true", ".*needs trainer.algorithm.zero_variance_filter"),
        ("trainer.update_ref_every_epoch=true", ".*update_ref_every_epoch is not there.*"),
        ("trainer.placement.colocate_all=true", ".*colocate_all must be false.*"),
    ],
)
def test_what_asynchronous_training_cannot_do_is_said_before_anything_starts(override, message):
    with pytest.raises(ConfigError) as error:
        _config("skyrl.trainer.fully_async.enabled=true", f"skyrl.{override}")
    assert re.fullmatch(f"SkyRL refuses the configuration: {message}", str(error.value)), str(error.value)


@pytest.mark.parametrize("name", ["gpu_grpo", "cluster/one_node", "cluster/nodes_alike", "cluster/several_nodes"])
def test_gpu_configurations_pass_skyrls_own_validation(monkeypatch, name):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    cfg = _config("skyrl.trainer.policy.model.path=/models/mine", name=name)
    assert cfg.trainer.strategy == "fsdp"
    assert cfg.trainer.placement.colocate_all
    assert cfg.generator.inference_engine.backend == "vllm"
    assert cfg.trainer.ref.model.path == "/models/mine"
    placement = cfg.trainer.placement
    assert cfg.generator.inference_engine.num_engines == placement.policy_num_nodes * placement.policy_num_gpus_per_node


@pytest.mark.parametrize("name", ["gpu_grpo", "cluster/nodes_alike"])
def test_the_published_settings(name):
    config = load_config([f"config={CONFIGS / name}.yaml"])
    cfg = _config(name=name)
    nodes = cfg.trainer.placement.policy_num_nodes
    episodes = cfg.trainer.train_batch_size * cfg.generator.n_samples_per_prompt
    assert (cfg.trainer.train_batch_size, episodes) == (16 * nodes, 128 * nodes)
    assert config.cluster.workers_per_node * config.cluster.sandboxes_per_worker == 128
    assert (cfg.generator.max_input_length, cfg.generator.sampling_params.max_generate_length) == (16384, 4096)
    assert (cfg.trainer.policy.optimizer_config.lr, cfg.trainer.algorithm.use_kl_loss) == (1e-6, True)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "trainer.algorithm.entropy_coef=1",
            "unknown key .*; did you mean skyrl.trainer.algorithm.entropy_loss_coef.?",
        ),
        ("algorithm.gamma=1", "unknown key skyrl.algorithm; did you mean skyrl.trainer.algorithm.?"),
        ("trainer.policy.optimizer_config.lr=abc", "bad value for skyrl.trainer.policy.optimizer_config.lr: .*'abc'"),
        ("trainer.policy=3", "bad value for skyrl.trainer.policy: .*"),
        ("trainer.seed=1", "skyrl.trainer.seed follows from seed: set that"),
        ("trainer.logger=wandb", "skyrl.trainer.logger follows from tracking: set that"),
        ("generator.batched=true", "skyrl.generator.batched is not supported here"),
        ("trainer.fully_async.simulate_training=true", "skyrl.trainer.fully_async.simulate_training is not sup.* here"),
        ("generator.sampling_params.top_p=0.9", "skyrl.generator.sampling_params.top_p .*backend=cpu.*"),
        ("trainer.max_ckpts_to_keep=0", "SkyRL refuses the configuration: .*max_ckpts_to_keep.*"),
        (
            "trainer.algorithm.advantage_estimator=x",
            "SkyRL refuses the configuration: invalid advantage_estimator: x.*",
        ),
        (
            "trainer.algorithm.dynamic_sampling.type=replace",
            "skyrl.trainer.algorithm.dynamic_sampling.type=replace makes batches that SkyRL itself refuses.*",
        ),
        (
            "trainer.algorithm.dynamic_sampling.type=filter",
            ".*=filter fills a step .* skyrl.trainer.train_batch_size=16 must be less than their number, 16",
        ),
        ("trainer.policy.model.lora.rank=8", "skyrl.trainer.policy.model.lora is not there with backend=cpu.*"),
        ("environment.env_class=gsm8k", "skyrl.environment.env_class can only be minisandbox.*"),
        ("environment.skyrl_gym.search.topk=3", "skyrl.environment.skyrl_gym.search.topk is not supported here"),
        ("trainer.policy.model.path=x", "set exactly one of policy .* and skyrl.trainer.policy.model.path"),
    ],
)
def test_mistakes(override, message):
    with pytest.raises(ConfigError) as error:
        _config(f"skyrl.{override}")
    assert re.fullmatch(message, str(error.value)), str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.fully_async.enabled=true"], "skyrl.environment.env_class is not there with .*fully_async.enabled"),
        (["environment.skyrl_gym.max_env_workers=8"], ".*max_env_workers=8 must be at least 256, the episodes at a .*"),
    ],
)
def test_what_skyrls_own_generator_cannot_do_here(overrides, message):
    with pytest.raises(ConfigError) as error:
        _config("skyrl.environment.env_class=minisandbox", *(f"skyrl.{override}" for override in overrides))
    assert re.fullmatch(message, str(error.value)), str(error.value)


def test_skyrls_own_generator_has_a_thread_for_each_episode():
    gym = "skyrl.environment.env_class=minisandbox"
    assert _config(gym).environment.skyrl_gym.max_env_workers == 16 * 16
    more = _config(gym, "evaluation.samples=3", "skyrl.trainer.eval_batch_size=100")
    assert more.environment.skyrl_gym.max_env_workers == 300


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["trainer.algorithm.use_kl_in_reward=true", "trainer.algorithm.kl_ctrl.type=adaptive"],
            "resume: the state of .*kl_ctrl.type=adaptive is in no checkpoint",
        ),
        (["trainer.update_ref_every_epoch=true"], "resume: the reference of .*update_ref_every_epoch is in no check.*"),
    ],
)
def test_what_no_checkpoint_holds_is_not_resumed(overrides, message):
    keys = [f"skyrl.{override}" for override in overrides]
    _config(*keys)
    with pytest.raises(ConfigError, match=message):
        _config("resume=true", *keys)


def test_filtered_groups_and_steps_as_rows_are_refused_together():
    keys = ["skyrl.trainer.algorithm.dynamic_sampling.type=filter", "skyrl.trainer.train_batch_size=4"]
    assert _config(*keys).trainer.epochs == 30 * _config(*keys).trainer.max_training_steps
    with pytest.raises(ConfigError, match=r"=filter and .*step_wise_trajectories do not go together"):
        _config(*keys, "skyrl.generator.step_wise_trajectories=true")


def test_a_policy_is_needed():
    with pytest.raises(ConfigError, match="set exactly one of policy"):
        _config("policy=null")

"""SkyRL's own generator over the table: what it gives the trainer is what ours does, failures are as masked."""

import pytest
import skyrl_gym
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator

from minisandbox_ray.errors import ConfigError, MiniSandboxError

GYM = {"environment.env_class": "minisandbox", "environment.skyrl_gym.max_env_workers": 32}
STEP_WISE = {"generator.step_wise_trajectories": True}
TWO_STEPS = {"trainer.max_training_steps": 2}


def test_it_is_skyrls_generator_and_environment(skyrl_cfg, train):
    _, experiment = train(skyrl_cfg(**GYM, **TWO_STEPS))
    assert type(experiment.trainer.generator).agent_loop is SkyRLGymGenerator.agent_loop
    assert "minisandbox" in skyrl_gym.envs.registration.registry


@pytest.mark.parametrize("more", [{}, {"trainer.algorithm.advantage_estimator": "rloo"}], ids=["grpo", "rloo"])
def test_one_turn_gives_the_same_curve_as_our_generator(skyrl_cfg, train, more):
    curves = [train(skyrl_cfg(**settings, **more, **TWO_STEPS))[0] for settings in ({}, GYM)]
    for key in ("reward/avg_raw_reward", "environment/resolved_mean", "generate/batch_num_seq"):
        assert curves[0].curve(key) == curves[1].curve(key)
    for key in ("policy/policy_entropy", "policy/final_loss"):
        assert curves[0].curve(key) == pytest.approx(curves[1].curve(key), abs=1e-5)


@pytest.mark.parametrize("more", [{}, STEP_WISE], ids=["whole", "step-wise"])
def test_turns_are_skyrls_and_failed_episodes_are_masked(skyrl_cfg, train, tasks, more):
    tasks[1].fails = 3
    recorder, _ = train(skyrl_cfg(**GYM, **more, **TWO_STEPS), turns=2)
    assert recorder.curve("environment/failures_sandbox") == [3, 0]
    assert recorder.curve("environment/turns_mean") == [2.0, 2.0]
    assert recorder.curve("generate/batch_num_seq") == ([2 * 32 - 3, 64] if more else [32, 32])
    assert max(recorder.curve("policy/rollout_train_logprobs_abs_diff_max")) < 1e-4


def test_failures_beyond_the_share_and_bad_input_end_the_run(skyrl_cfg, train, tasks, table_env):
    tasks[1].fails = 3
    with pytest.raises(
        MiniSandboxError, match=r"3 of 32 episodes .* max_failed_share=0.05; 3 of them through the sand"
    ):
        train(skyrl_cfg(**GYM, **TWO_STEPS), max_failed_share=0.05)
    tasks[1].fails = 1
    with pytest.raises(ConfigError, match="no sandbox for"):
        train(skyrl_cfg(**GYM, **TWO_STEPS), error=ConfigError)

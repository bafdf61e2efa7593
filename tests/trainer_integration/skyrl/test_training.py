"""SkyRL's own trainer, end to end in this process."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from minisandbox_ray.errors import MiniSandboxError

GYM = {"environment.env_class": "minisandbox", "environment.skyrl_gym.max_env_workers": 32}


def _last(curve: list[float]) -> float:
    return sum(curve[-3:]) / 3


def test_the_reward_rises_and_sampler_and_trainer_agree(skyrl_cfg, train):
    recorder, _ = train(skyrl_cfg(**{"trainer.max_training_steps": 40}))
    curve = recorder.curve()
    assert sum(curve[:2]) / 2 <= 0.35
    assert _last(curve) >= 0.7
    assert max(recorder.curve("policy/rollout_train_logprobs_abs_diff_max")) < 1e-4


def test_a_constant_reward_leaves_the_policy_at_chance(skyrl_cfg, train):
    recorder, _ = train(skyrl_cfg(**{"trainer.max_training_steps": 30}), constant_reward=1.0)
    assert set(recorder.curve()) == {1.0}
    assert _last(recorder.curve("environment/resolved_mean")) <= 0.25


def test_one_seed_gives_one_curve_and_another_seed_another(skyrl_cfg, train):
    curves = [
        train(skyrl_cfg(**{"trainer.max_training_steps": 8, "trainer.seed": seed}), turns=2)[0].curve(
            "policy/policy_entropy"
        )
        for seed in (0, 0, 1)
    ]
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)
    assert curves[0] != pytest.approx(curves[2], abs=1e-5)


def test_ppo_with_a_critic_by_one_key(skyrl_cfg, train, policy: Path):
    recorder, experiment = train(
        skyrl_cfg(
            **{
                "trainer.algorithm.advantage_estimator": "gae",
                "trainer.critic.model.path": str(policy),
                "trainer.algorithm.use_kl_in_reward": True,
                "trainer.max_training_steps": 4,
            }
        ),
        turns=2,
    )
    assert experiment.trainer.ref_model is not None
    losses = recorder.curve("critic/critic_loss")
    assert len(losses) == 4
    assert all(loss >= 0 for loss in losses)


def test_three_turns(skyrl_cfg, train):
    recorder, _ = train(skyrl_cfg(**{"trainer.max_training_steps": 3}), turns=3)
    assert set(recorder.curve("environment/turns_mean")) == {3.0}
    assert set(recorder.curve("generate/avg_assistant_tokens")) == {3.0}
    assert max(recorder.curve("policy/rollout_train_logprobs_abs_diff_max")) < 1e-4


def test_failed_episodes_are_counted_and_leave_the_others_as_they_are(skyrl_cfg, train, tasks):
    tasks[1].fails = 3
    recorder, _ = train(skyrl_cfg(**{"trainer.max_training_steps": 2}))
    assert recorder.curve("environment/failures") == [3, 0]
    assert recorder.curve("environment/failures_sandbox") == [3, 0]
    assert recorder.curve("generate/batch_num_seq") == [32, 32]


def test_evaluations_have_their_own_metrics_and_episodes(skyrl_cfg, train, tasks):
    seen = []
    limits = {"trainer.max_training_steps": 4, "trainer.eval_interval": 2, "generator.eval_n_samples_per_prompt": 3}
    evaluated = [tasks[0], tasks[2]]
    prompts = [[{"role": "user", "content": task.problem_statement}] for task in evaluated]
    recorder, _ = train(
        skyrl_cfg(**limits, **{"trainer.dump_eval_results": False}),
        evaluated=evaluated,
        evaluated_prompts=prompts,
        on_evaluation=lambda step, rollouts: seen.append((step, [rollout.task for rollout in rollouts])),
    )
    assert [step for step, _ in seen] == [0, 2, 4]
    assert all(done == [tasks[0]] * 3 + [tasks[2]] * 3 for _, done in seen)
    assert all(0 <= row["eval/all/pass_at_3"] <= 1 for row in recorder.rows if "eval/all/pass_at_3" in row)
    assert sum("eval/all/pass_at_3" in row for row in recorder.rows) == 3


@pytest.mark.parametrize("generator", [{}, GYM], ids=["ours", "SkyRL's"])
def test_failed_episodes_of_an_evaluation_are_counted_apart(skyrl_cfg, train, tasks, generator):
    """All of one task, and one of the other: what is left has the scores of the episodes that were played."""
    tasks[0].repo, tasks[2].repo = "all/failed", "some"
    tasks[0].fails, tasks[2].fails = 3, 1
    seen = []
    limits = {"trainer.max_training_steps": 1, "trainer.eval_interval": 1, "generator.eval_n_samples_per_prompt": 3}
    evaluated = [tasks[0], tasks[2]]
    recorder, _ = train(
        skyrl_cfg(**limits, **generator, **{"trainer.dump_eval_results": False}),
        evaluated=evaluated,
        evaluated_prompts=[[{"role": "user", "content": task.problem_statement}] for task in evaluated],
        on_evaluation=lambda step, rollouts: seen.append([each for each in rollouts if not each.failure]),
    )
    first, last = (row for row in recorder.rows if "eval/all/avg_score" in row)
    assert first["eval/all/environment/failures_sandbox"] == 4
    assert first["eval/all/avg_score"] == first["eval/some/avg_score"] == sum(each.reward for each in seen[0]) / 2
    assert "eval/all_failed/avg_score" not in first
    assert last["eval/all/environment/failures_sandbox"] == 0
    assert last["eval/all/avg_score"] == sum(each.reward for each in seen[1]) / 6


def filtered(tasks: int) -> dict[str, object]:
    """Dynamic sampling in steps of so many tasks."""
    sizes = ("train_batch_size", "policy_mini_batch_size", "critic_mini_batch_size")
    rows = ("micro_forward_batch_size_per_gpu", "micro_train_batch_size_per_gpu")
    return {
        "trainer.algorithm.dynamic_sampling.type": "filter",
        **{f"trainer.{size}": tasks for size in sizes},
        **{f"trainer.{size}": 8 * tasks for size in rows},
    }


def test_groups_without_a_difference_are_left_out_on_demand(skyrl_cfg, train, tasks):
    """Only one task can be solved; what failed makes no difference."""
    for task in tasks[:3]:
        task.right = "none"
    tasks[0].fails, tasks[3].fails = 2, 2
    recorder, _ = train(skyrl_cfg(**filtered(1), **{"trainer.max_training_steps": 3}))
    assert recorder.curve("trainer/global_step") == [1, 2, 3]
    assert set(recorder.curve("generate/batch_num_seq")) == {8}
    assert all(0 < reward < 1 for reward in recorder.curve())


def test_groups_that_never_differ_end_the_run_in_one_line(skyrl_cfg, train, tasks):
    for task in tasks:
        task.right = "none"
    with pytest.raises(MiniSandboxError, match="5 batches did not fill one training step"):
        train(skyrl_cfg(**filtered(2), **{"trainer.algorithm.dynamic_sampling.max_sample_batches": 5}))


def test_too_many_failed_episodes_end_the_run(skyrl_cfg, train, tasks):
    tasks[1].fails = 3
    with pytest.raises(
        MiniSandboxError, match=r"3 of 32 episodes .* max_failed_share=0.05; 3 of them through the sandbox"
    ):
        train(skyrl_cfg(**{"trainer.max_training_steps": 2}), max_failed_share=0.05)


def test_steps_as_rows_learn_as_well_and_a_failed_episode_is_no_part_of_its_group(skyrl_cfg, train, tasks):
    tasks[1].fails = 3
    recorder, _ = train(
        skyrl_cfg(**{"trainer.max_training_steps": 2, "generator.step_wise_trajectories": True}), turns=2
    )
    assert recorder.curve("environment/failures") == [3, 0]
    assert recorder.curve("generate/batch_num_seq") == [2 * 32 - 3, 64]
    assert max(recorder.curve("policy/rollout_train_logprobs_abs_diff_max")) < 1e-4


def test_a_resumed_run_has_the_curve_of_one_that_was_never_stopped(skyrl_cfg, train, tmp_path: Path):
    whole, _ = train(skyrl_cfg(**{"trainer.max_training_steps": 6}))
    steps = {"trainer.ckpt_interval": 1, "trainer.epochs": 6}
    train(skyrl_cfg(**steps, **{"trainer.max_training_steps": 3}))
    rest, _ = train(skyrl_cfg(**steps, **{"trainer.max_training_steps": 6, "trainer.resume_mode": "latest"}))
    assert rest.curve("trainer/global_step") == [4, 5, 6]
    for key in ("reward/avg_raw_reward", "policy/policy_entropy"):
        assert rest.curve(key) == pytest.approx(whole.curve(key)[3:], abs=1e-5)


def test_a_checkpoint_resumes_and_the_policy_is_exported(skyrl_cfg, train, tmp_path: Path):
    half = {"trainer.max_training_steps": 2, "trainer.ckpt_interval": 1, "trainer.hf_save_interval": 100}
    train(skyrl_cfg(**half))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export" / "global_step_2" / "policy")
    started = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert not torch.equal(exported.lm_head.weight, started.lm_head.weight)
    recorder, _ = train(skyrl_cfg(**{**half, "trainer.max_training_steps": 3, "trainer.resume_mode": "latest"}))
    assert recorder.curve("trainer/global_step") == [3]

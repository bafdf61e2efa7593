"""Rows of failed episodes change nothing: not the advantages of the others, not the update, not the reward metrics."""

import asyncio

import pytest
import torch

from trainer_integration.skyrl import seams
from trainer_integration.skyrl.experiment import CPUExperiment, Inputs


def _row(reward: float, token: int = 9, stop: str = "stop") -> dict:
    return {"reward": reward, "token": token, "stop": stop}


def _failed(token: int = 9) -> dict:
    return _row(0.0, token, "error")


def _step(skyrl_cfg, tasks, groups: list[list[dict]], **overrides):
    """One training step on these rows; returns advantages and trained weights of the policy, and reward metrics."""
    size = {
        "generator.n_samples_per_prompt": len(groups[0]),
        "trainer.critic_mini_batch_size": 2,
        "trainer.max_training_steps": 1,
        "trainer.micro_train_batch_size_per_gpu": 2 * len(groups[0]),
        "trainer.policy_mini_batch_size": 2,
        "trainer.train_batch_size": 2,
    }
    cfg = skyrl_cfg(**size, **overrides)
    prompts = [[{"role": "user", "content": task.problem_statement}] for task in tasks]
    with seams.in_process():
        experiment = CPUExperiment(cfg, Inputs(tasks, prompts, None, None, None))
        trainer = experiment._setup_trainer()
        prompt = experiment.tokenizer.apply_chat_template(prompts[0], add_generation_prompt=True, return_dict=False)
        rows = [row for group in groups for row in group]
        uids = [f"task-{i}" for i, group in enumerate(groups) for _ in group]
        output = {
            "prompt_token_ids": [prompt] * len(rows),
            "response_ids": [[row["token"]] for row in rows],
            "rewards": [row["reward"] for row in rows],
            "loss_masks": [[int(row["stop"] == "stop")] for row in rows],
            "stop_reasons": [row["stop"] for row in rows],
            "rollout_logprobs": [[-1.0]] * len(rows),
        }
        trainer.global_step = 1
        output, uids = trainer.postprocess_generator_output(output, uids)
        batch = trainer.fwd_logprobs_values_reward(trainer.convert_to_training_input(output, uids))
        batch = trainer.compute_advantages_and_returns(batch)
        kept = batch["loss_mask"].sum(-1) > 0
        advantages = batch["advantages"][kept]
        trainer.train_critic_and_policy(batch)
        weights = trainer.policy_model.model.model.lm_head.weight.detach().clone()
        asyncio.run(trainer.dispatch.save_weights_for_sampler())
    return advantages, weights, trainer.all_metrics["reward/avg_raw_reward"]


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_masked_rows_change_nothing(skyrl_cfg, tasks, policy, estimator):
    groups = [[_row(1.0), _row(0.0, token=10), _row(0.0, token=11)], [_row(0.0), _row(1.0, token=12), _row(1.0)]]
    masked = [[*group, _failed(), _failed(token=13)] for group in groups]
    overrides = {"trainer.algorithm.advantage_estimator": estimator}
    if estimator == "gae":
        overrides |= {"trainer.critic.model.path": str(policy)}
    without = _step(skyrl_cfg, tasks, groups, **overrides)
    with_masked = _step(skyrl_cfg, tasks, masked, **overrides)
    torch.testing.assert_close(with_masked[0], without[0])
    torch.testing.assert_close(with_masked[1], without[1], atol=1e-5, rtol=1e-4)
    assert with_masked[2] == without[2] == 0.5


def test_a_group_of_which_one_row_is_left_has_no_advantage(skyrl_cfg, tasks):
    groups = [[_row(1.0), _failed()], [_row(1.0), _row(0.0)]]
    advantages, _, _ = _step(skyrl_cfg, tasks, groups)
    assert advantages[0].item() == 0.0
    assert advantages[1].item() > 0 > advantages[2].item()


def test_a_row_that_was_cut_is_compared_with_and_not_trained_on(skyrl_cfg, tasks):
    """Overlong filtering masks it as well, but it is an episode like any other."""
    groups = [[_row(1.0), _row(0.0), _row(0.0)], [_row(1.0), _row(0.0), _row(0.0)]]
    cut = [[*groups[0][:2], _row(0.0, stop="length")], groups[1]]
    failed = [[*groups[0][:2], _failed()], groups[1]]
    whole, others, without = (_step(skyrl_cfg, tasks, each) for each in (groups, cut, failed))
    torch.testing.assert_close(others[0][:2], whole[0][:2])
    assert others[2] == whole[2] != without[2]
    assert without[0][0] < whole[0][0]

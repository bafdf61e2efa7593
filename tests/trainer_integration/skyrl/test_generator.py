"""Token in, token out: what the trainer gets is what was sampled, however the episodes went."""

import asyncio
import random

import pytest
from skyrl.train.generators.base import BatchMetadata, TrajectoryID
from skyrl.train.utils.trainer_utils import validate_generator_output
from transformers import AutoTokenizer

from minisandbox_ray.errors import ConfigError, MiniSandboxError
from trainer_integration.skyrl.generator import EpisodeGenerator, Episodes
from trainer_integration.skyrl.metrics import environment_metrics
from trainer_integration.skyrl.rollout import Rollout
from trainer_integration.skyrl.sampler import CPUInferenceClient


class Client(CPUInferenceClient):
    """Remembers what it was asked and what it sampled."""

    def __init__(self, *args):
        super().__init__(*args)
        self.calls = {}
        self.batches = []

    async def generate(self, input_batch, model=None):
        key = input_batch["session_ids"][0], tuple(input_batch["prompt_token_ids"][0])
        output = await super().generate(input_batch, model)
        self.calls[key] = list(output["response_ids"][0]), list(output["response_logprobs"][0])
        return output

    def _sample(self, requests):
        self.batches.append(len(requests))
        super()._sample(requests)


@pytest.fixture
def tokenizer(policy):
    return AutoTokenizer.from_pretrained(policy, padding_side="left")


@pytest.fixture
def client(policy, tokenizer):
    return Client(str(policy), tokenizer, 0)


def _batch(tasks, samples, max_tokens=1):
    rows = [(task, i) for task in tasks for i in range(samples)]
    return {
        "prompts": [[{"role": "user", "content": task.problem_statement}] for task, _ in rows],
        "env_classes": ["minisandbox"] * len(rows),
        "env_extras": [{"instance_id": task.instance_id} for task, _ in rows],
        "sampling_params": {"max_tokens": max_tokens, "temperature": 1.0},
        "trajectory_ids": [TrajectoryID(task.instance_id, i) for task, i in rows],
        "batch_metadata": BatchMetadata(1, "train"),
    }


def _generate(
    skyrl_cfg, tokenizer, client, tasks, make_env, *, samples=4, max_tokens=1, max_failed_share=1.0, **overrides
):
    episodes = Episodes(
        tasks={task.instance_id: task for task in tasks},
        make_env=make_env,
        demand=lambda demand: None,
        seed=0,
        max_failed_share=max_failed_share,
    )
    generator = EpisodeGenerator(skyrl_cfg(**overrides).generator, tokenizer, client, episodes)
    batch = _batch(tasks, samples, max_tokens)
    output = asyncio.run(generator.generate(batch))
    step_wise = overrides.get("generator.step_wise_trajectories", False)
    validate_generator_output(len(batch["prompts"]), output, step_wise=step_wise)
    return output


@pytest.mark.parametrize("seed", range(5))
def test_tokens_masks_and_logprobs_are_aligned_over_turns(skyrl_cfg, tokenizer, client, tasks, table_env, seed):
    choice = random.Random(seed)
    max_tokens = choice.randint(1, 4)
    output = _generate(
        skyrl_cfg, tokenizer, client, tasks, lambda: table_env(choice.randint(1, 4)), max_tokens=max_tokens
    )
    for row, prompt in enumerate(output["prompt_token_ids"]):
        response, mask, logprobs = (output[key][row] for key in ("response_ids", "loss_masks", "rollout_logprobs"))
        session = f"train-1-{output['trajectory_ids'][row].to_string()}"
        position, turns = 0, 0
        while position < len(response):
            # A turn starts where the model was asked, with exactly these tokens before it.
            sampled, sampled_logprobs = client.calls[session, tuple(prompt + response[:position])]
            end = position + len(sampled)
            assert response[position:end] == sampled
            assert logprobs[position:end] == sampled_logprobs
            assert mask[position:end] == [1] * len(sampled)
            turns += 1
            position = end
            while position < len(response) and mask[position] == 0:
                assert logprobs[position] == 0.0
                position += 1
        assert turns >= 1
        assert mask[-1] == 1, "a row ends with what the model said last"


def test_the_tokens_are_the_rendered_conversation(skyrl_cfg, tokenizer, client, tasks, table_env):
    envs = []

    def make_env():
        envs.append(table_env(3))
        return envs[-1]

    output = _generate(skyrl_cfg, tokenizer, client, tasks[:1], make_env, samples=1)
    messages = [{"role": "user", "content": tasks[0].problem_statement}]
    for turn, action in enumerate(envs[0].actions):
        messages.append({"role": "assistant", "content": action})
        messages.append({"role": "user", "content": f"exit code 0 after {turn + 1}"})
    rendered = tokenizer.apply_chat_template(messages[:-1], tokenize=False)
    ours = output["prompt_token_ids"][0] + output["response_ids"][0]
    # Up to the end of the last turn, which the model did not write.
    assert tokenizer.apply_chat_template(messages[:-1], return_dict=False)[: len(ours)] == ours, rendered
    assert all(env.closed for env in envs)


def test_failed_episodes_keep_their_place_masked(skyrl_cfg, tokenizer, client, tasks, table_env):
    tasks[2].fails = 2
    output = _generate(skyrl_cfg, tokenizer, client, tasks, table_env)
    masked = [row for row, mask in enumerate(output["loss_masks"]) if not any(mask)]
    assert len(masked) == 2
    assert set(masked) < {8, 9, 10, 11}, "rows of the third task"
    assert all(output["rewards"][row] == 0.0 and output["stop_reasons"][row] == "error" for row in masked)
    metrics = output["rollout_metrics"]
    assert (metrics["environment/episodes"], metrics["environment/failures"]) == (16, 2)
    assert (metrics["environment/failures_sandbox"], metrics["environment/failures_cluster"]) == (2, 0)
    for part in ("wait", "reset", "model", "step", "grade"):
        for statistic in ("mean", "p50", "p90", "max"):
            assert metrics[f"environment/{part}_seconds_{statistic}"] >= 0


def test_a_step_that_says_not_trainable_is_masked(skyrl_cfg, tokenizer, client, tasks, table_env):
    class Dying(table_env):
        async def astep(self, action):
            if self.task is tasks[0]:
                return (
                    "",
                    0.0,
                    True,
                    False,
                    {"seconds": {}, "trainable": False, "failure": "lost", "failure_owner": "cluster"},
                )
            return await super().astep(action)

    output = _generate(skyrl_cfg, tokenizer, client, tasks, Dying)
    assert [any(mask) for mask in output["loss_masks"]] == [False] * 4 + [True] * 12
    assert output["rollout_metrics"]["environment/failures_cluster"] == 4


def test_a_row_per_turn(skyrl_cfg, tokenizer, client, tasks, table_env):
    tasks[1].fails = 2
    turns = [3, 1, 2, 3]
    envs = iter(turns * 4)
    output = _generate(
        skyrl_cfg,
        tokenizer,
        client,
        tasks,
        lambda: table_env(next(envs)),
        **{"generator.step_wise_trajectories": True},
    )
    names = [name.to_string() for name in output["trajectory_ids"]]
    failed = [row for row, reason in enumerate(output["stop_reasons"]) if reason == "error"]
    assert len(failed) == 2
    assert all(output["is_last_step"][row] and names.count(names[row]) == 1 for row in failed), "one row each"
    assert not any(any(output["loss_masks"][row]) for row in failed)
    for row in set(range(len(names))) - set(failed):
        prompt, response = output["prompt_token_ids"][row], output["response_ids"][row]
        # Each row is one call of the model, with exactly the tokens that it was asked with.
        sampled, logprobs = client.calls[f"train-1-{names[row]}", tuple(prompt)]
        assert (response, output["rollout_logprobs"][row]) == (sampled, logprobs)
        assert output["loss_masks"][row] == [1] * len(response)
        if not output["is_last_step"][row]:
            assert output["prompt_token_ids"][row + 1][: len(prompt) + 1] == prompt + response
    metrics = output["rollout_metrics"]
    assert metrics["environment/episodes"] == 16
    assert sum(output["is_last_step"]) == 16


def test_too_many_failures_end_the_run(skyrl_cfg, tokenizer, client, tasks, table_env):
    def generate(fails, **options):
        for task, count in zip(tasks, fails, strict=True):
            task.fails = count
        return _generate(skyrl_cfg, tokenizer, client, tasks, table_env, **options)

    message = (
        "9 of 16 episodes of a step failed through no fault of the agent, more than max_failed_share=0.5; "
        "9 of them through the sandbox: no sandbox for task-plural"
    )
    with pytest.raises(MiniSandboxError) as error:
        generate([4, 3, 2, 0], max_failed_share=0.5)
    assert (str(error.value), error.value.owner) == (message, "sandbox")
    assert generate([4, 3, 1, 0], max_failed_share=0.5)["stop_reasons"].count("error") == 8
    with pytest.raises(MiniSandboxError, match="16 of 16 episodes"):
        generate([4, 4, 4, 4])


def test_a_mistake_of_the_user_is_not_masked(skyrl_cfg, tokenizer, client, tasks, table_env):
    tasks[0].fails = 1
    with pytest.raises(ConfigError):
        _generate(skyrl_cfg, tokenizer, client, tasks, lambda: table_env(error=ConfigError))


def test_a_full_context_ends_the_episode_by_submitting(skyrl_cfg, tokenizer, client, tasks, table_env):
    envs = []

    def make_env():
        envs.append(table_env(100))
        return envs[-1]

    limits = {"generator.max_input_length": 30, "trainer.max_prompt_length": 30}
    output = _generate(skyrl_cfg, tokenizer, client, tasks, make_env, **limits)
    assert set(output["stop_reasons"]) == {"length"}
    assert all("submit" in env.actions[-1] for env in envs)
    assert max(len(prompt) for _, prompt in client.calls) <= 30
    filtered = _generate(
        skyrl_cfg, tokenizer, client, tasks, make_env, **limits, **{"generator.apply_overlong_filtering": True}
    )
    assert not any(any(mask) for mask in filtered["loss_masks"])

    class Solved(table_env):
        async def astep(self, action):
            observation, _, *over, info = await super().astep(action)
            return observation, 1.0, *over, info

    assert set(_generate(skyrl_cfg, tokenizer, client, tasks, lambda: Solved(100), **limits)["rewards"]) == {1.0}
    limits["generator.zero_reward_on_non_stop"] = True
    assert set(_generate(skyrl_cfg, tokenizer, client, tasks, lambda: Solved(100), **limits)["rewards"]) == {0.0}


def test_requests_are_sampled_in_batches(skyrl_cfg, tokenizer, client, tasks, table_env):
    _generate(skyrl_cfg, tokenizer, client, tasks, table_env, samples=16)
    assert client.batches == [64]


def test_failures_that_an_episode_survived_are_counted_apart(tasks):
    rollouts = [Rollout(tasks[0], number, number) for number in range(3)]
    rollouts[0].info = {"replay": {"count": 2, "turns": [0, 1], "diverged_turns": []}}
    rollouts[1].fail(MiniSandboxError("no sandbox"))
    metrics = environment_metrics(rollouts)
    assert (metrics["environment/replays"], metrics["environment/failures"]) == (2, 1)

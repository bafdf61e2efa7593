"""SkyRL's asynchronous trainer over the table: it learns, keeps staleness bounded, and survives what episodes do."""

import asyncio
import math

import pytest
from skyrl.train.fully_async_trainer import GeneratedOutputGroup
from transformers import AutoTokenizer

from minisandbox_ray.errors import ConfigError, SandboxError
from trainer_integration.skyrl import seams
from trainer_integration.skyrl.asynchronous import Announcing, InOrder, Passes
from trainer_integration.skyrl.experiment import CPUExperiment, Inputs, TaskDataset
from trainer_integration.skyrl.rollout import EpisodeFailure
from trainer_integration.skyrl.sampler import CPUInferenceClient


class Recorder:
    def log(self, metrics, step):
        pass


ASYNCHRONOUS = {
    "trainer.algorithm.policy_loss_type": "rollout_is",
    "trainer.fully_async.enabled": True,
    "trainer.fully_async.max_staleness_steps": 1,
    "trainer.fully_async.num_parallel_generation_workers": 8,
}


def test_the_reward_rises_while_rollouts_go_on(skyrl_cfg, train):
    recorder, experiment = train(skyrl_cfg(**ASYNCHRONOUS, **{"trainer.max_training_steps": 40}))
    curve = recorder.curve()
    assert recorder.curve("trainer/global_step") == list(range(1, 41)), "a step's metrics come in one piece"
    assert sum(curve[:2]) / 2 <= 0.35
    assert sum(curve[-3:]) / 3 >= 0.7
    staleness = recorder.curve("async/staleness_max")
    assert max(staleness) == 1, "while a step is trained on, the next one's groups are rolled out"
    assert set(recorder.curve("async/staleness_violation_count")) == {0}
    assert set(recorder.curve("environment/episodes")) == {32}
    assert experiment.trainer.inference_engine_client.weight_version == 41


def test_log_probabilities_are_those_of_the_weights_that_sampled(skyrl_cfg, train):
    """Without staleness they are the trainer's; rollouts then wait for each step."""
    settings = {"trainer.fully_async.max_staleness_steps": 0, "trainer.fully_async.num_parallel_generation_workers": 4}
    recorder, _ = train(skyrl_cfg(**{**ASYNCHRONOUS, **settings, "trainer.max_training_steps": 4}), turns=2)
    assert max(recorder.curve("async/staleness_max")) == 0
    assert max(recorder.curve("policy/minibatch_rollout_logprobs_abs_diff_max")) < 1e-4


def test_a_group_that_failed_is_masked_and_the_run_goes_on(skyrl_cfg, train, tasks):
    tasks[1].fails = 8
    recorder, _ = train(skyrl_cfg(**ASYNCHRONOUS, **{"trainer.max_training_steps": 3}))
    assert sum(recorder.curve("environment/failures_sandbox")) == 8
    assert recorder.curve("generate/batch_num_seq") == [32] * 3
    assert all(map(math.isfinite, recorder.curve("policy/final_loss")))


@pytest.mark.parametrize("owner", ["sandbox", "user"])
def test_what_ends_the_run_is_raised(skyrl_cfg, tasks, owner, table_env):
    """SkyRL itself would end the process."""
    for task in tasks:
        task.fails = 1000
    raised, error = (ConfigError, ConfigError) if owner == "user" else (SandboxError, EpisodeFailure)
    prompts = [[{"role": "user", "content": task.problem_statement}] for task in tasks]
    closed = []

    class Env(table_env):
        async def aclose(self):
            await super().aclose()
            closed.append(self)

    inputs = Inputs(tasks, prompts, lambda: Env(error=raised), lambda demand: None, Recorder())
    with seams.in_process(side_by_side=True), pytest.raises(error, match="no sandbox for"):
        CPUExperiment(skyrl_cfg(**ASYNCHRONOUS), inputs).run()
    assert closed


def test_a_checkpoint_resumes(skyrl_cfg, train):
    half = {**ASYNCHRONOUS, "trainer.max_training_steps": 2, "trainer.ckpt_interval": 1}
    train(skyrl_cfg(**half))
    recorder, _ = train(skyrl_cfg(**{**half, "trainer.max_training_steps": 4, "trainer.resume_mode": "latest"}))
    assert recorder.curve("trainer/global_step") == [3, 4]


def test_groups_without_variance_are_left_out_on_demand(skyrl_cfg, train):
    full = {"trainer.fully_async.sample_full_batch": True, "trainer.algorithm.zero_variance_filter": True}
    recorder, _ = train(skyrl_cfg(**ASYNCHRONOUS, **full, **{"trainer.max_training_steps": 4}))
    for row in recorder.rows:
        assert row["environment/episodes"] == 8 * (4 + row["async/num_groups_dropped"])


def test_a_penalty_in_the_reward(skyrl_cfg, train):
    settings = {"trainer.algorithm.use_kl_in_reward": True, "trainer.max_training_steps": 2}
    recorder, _ = train(skyrl_cfg(**ASYNCHRONOUS, **settings))
    assert len(recorder.rows) == 2


def test_each_pass_has_every_task_once_in_another_order(tasks):
    rows = Passes(TaskDataset(tasks, [[] for _ in tasks]), 3, seed=0)
    uids = [rows[index]["uid"] for index in range(len(rows))]
    assert len(set(uids)) == 12
    passes = [[uid.partition("/")[0] for uid in uids[start : start + 4]] for start in (0, 4, 8)]
    assert all(sorted(each) == sorted(task.instance_id for task in tasks) for each in passes)
    assert len({tuple(each) for each in passes}) > 1
    assert rows[0]["uid"] == uids[0], "whatever was asked for before"


def test_rows_are_announced_before_they_are_drawn(tasks):
    rows = Passes(TaskDataset(tasks, [[] for _ in tasks]), 3, seed=0)
    announced: list[str] = []
    loader = Announcing(rows, 4, lambda upcoming: announced.extend(row["uid"] for row in upcoming))
    drawn = []
    for (row,) in loader:
        drawn.append(row["uid"])
        assert len(drawn) <= 4 or row["uid"] in announced
    assert drawn == [rows[index]["uid"] for index in range(12)]
    assert announced == drawn[4:]


def test_groups_are_given_out_in_the_order_in_which_they_were_begun():
    async def given_out() -> tuple[list[str], list[bool]]:
        queue: asyncio.Queue[GeneratedOutputGroup] = asyncio.Queue()
        ordered, empty = InOrder(queue, 4), []
        for index in (6, 5):
            queue.put_nowait(GeneratedOutputGroup({}, f"a/b/{index}", 1, 0.0, []))
        empty.append(ordered.empty())
        asyncio.get_running_loop().call_soon(queue.put_nowait, GeneratedOutputGroup({}, "a/b/4", 1, 0.0, []))
        groups = [await ordered.get()]
        empty.append(ordered.empty())
        assert ordered.qsize() == 2
        groups += [ordered.get_nowait(), await ordered.get()]
        empty.append(ordered.empty())
        return [group.uid for group in groups], empty

    assert asyncio.run(given_out()) == (["a/b/4", "a/b/5", "a/b/6"], [True, False, True])


def test_each_step_has_every_task_once_however_long_episodes_take(skyrl_cfg, tasks, table_env):
    class Env(table_env):
        async def astep(self, action):
            for _ in range(200 * (self.task is tasks[0])):  # this task's groups are done last
                await asyncio.sleep(0)
            return await super().astep(action)

    uids = []

    class Experiment(CPUExperiment):
        def _setup_trainer(self):
            trainer = super()._setup_trainer()
            collect = trainer._collect_generation_mini_batch

            async def noted(*args):
                groups = await collect(*args)
                uids.append([group.uid.partition("/")[0] for group in groups[0]])
                return groups

            trainer._collect_generation_mini_batch = noted
            return trainer

    prompts = [[{"role": "user", "content": task.problem_statement}] for task in tasks]
    inputs = Inputs(tasks, prompts, Env, lambda demand: None, Recorder())
    with seams.in_process(side_by_side=True):
        Experiment(skyrl_cfg(**ASYNCHRONOUS, **{"trainer.max_training_steps": 4}), inputs).run()
    assert [sorted(step) for step in uids] == [sorted(task.instance_id for task in tasks)] * 4


def test_weights_change_between_two_forward_passes(policy):
    """A response that is being sampled goes on with new weights: nothing waits for its end."""
    tokenizer = AutoTokenizer.from_pretrained(policy, padding_side="left")
    client = CPUInferenceClient(str(policy), tokenizer, 0)
    client._stops = set()  # else chance may end the response at once
    weights = {name: weight.clone() for name, weight in client._model.state_dict().items()}
    weights["lm_head.weight"].zero_()  # all tokens alike

    async def both():
        loop, started = asyncio.get_running_loop(), asyncio.Event()
        client._model.register_forward_hook(lambda *_: loop.call_soon_threadsafe(started.set) and None)
        request = {"prompt_token_ids": [[5, 6, 7]], "sampling_params": {"max_tokens": 200, "temperature": 1.0}}
        sampling = asyncio.ensure_future(client.generate(request))
        await started.wait()
        await client.update_named_weights({"state_dict": weights})
        return (await sampling)["response_logprobs"][0]

    logprobs = asyncio.run(both())
    alike = -math.log(len(tokenizer))
    assert logprobs[-1] == pytest.approx(alike, abs=1e-5)
    assert logprobs[0] != pytest.approx(alike, abs=1e-5)

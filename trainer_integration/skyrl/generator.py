"""SkyRL asks for trajectories; this runs an episode for each, all of a batch at once, token in and token out."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from skyrl.train.generators.base import (
    BatchMetadata,
    GeneratorInput,
    GeneratorInterface,
    GeneratorOutput,
    TrajectoryID,
)
from skyrl.train.generators.utils import apply_overlong_filtering

from minisandbox_ray.errors import MiniSandboxError, ModelServiceError
from trainer_integration.skyrl.conversation import Conversation, answer
from trainer_integration.skyrl.metrics import rollout_metrics
from trainer_integration.skyrl.rollout import EpisodeEnv, EpisodeFailure, Rollout

# Ends an episode whose context is full; the environment grades what has been done so far.
SUBMIT = "```bash\nsubmit\n```"


OnEpisodes = Callable[[int, list[Rollout]], None]
"""Called with the training step and the episodes of an evaluation."""


def session_name(metadata: BatchMetadata, name: str) -> str:
    """Of a trajectory, for the inference client: the same task is sampled again in other steps and in evaluations."""
    return f"{metadata.training_phase}-{metadata.global_step}-{name}"


def check_failures(rollouts: list[Rollout], max_share: float) -> None:
    """Of all episodes of a step: raise one error, owned by who failed most, if more than ``max_share`` of them failed
    through no fault of the agent, or all did."""
    failures = [rollout.failure for rollout in rollouts if rollout.failure]
    if not failures or (len(failures) < len(rollouts) and len(failures) <= max_share * len(rollouts)):
        return
    owner, count = Counter(failure.owner for failure in failures).most_common(1)[0]
    reason, _ = Counter(str(failure) for failure in failures if failure.owner == owner).most_common(1)[0]
    raise EpisodeFailure(
        f"{len(failures)} of {len(rollouts)} episodes of a step failed through no fault of the agent, more than "
        f"max_failed_share={max_share:g}; {count} of them through the {owner}: {reason}",
        owner,
    )


@dataclass
class Episodes:
    """What is played, and what becomes of it, whichever generator asks for it."""

    tasks: dict[str, Any]
    """By instance_id."""
    make_env: Callable[[], EpisodeEnv]
    demand: Callable[[dict[str, int]], None]
    """Told how many episodes of each environment come next."""
    seed: int
    constant_reward: float | None = None
    max_failed_share: float = 1.0
    on_evaluation: OnEpisodes | None = None

    def start(self, extras: dict[str, Any], name: TrajectoryID) -> Rollout:
        """An episode of a row of the data set that nothing has happened in yet."""
        return Rollout(self.tasks[extras["instance_id"]], name.repetition_id, self.seed + name.repetition_id)

    def prefetch(self, rows: list[dict[str, Any]], samples: int) -> None:
        """Rows of the data set will be rolled out soon, so many times each."""
        environments = [self.tasks[row["env_extras"]["instance_id"]].environment for row in rows]
        self.demand({name: samples * count for name, count in Counter(environments).items()})

    def check(self, rollouts: list[Rollout]) -> None:
        """See ``check_failures``; with all episodes of a step."""
        check_failures(rollouts, self.max_failed_share)

    def ended(self, metadata: BatchMetadata, rollouts: list[Rollout]) -> None:
        """All episodes of a batch are over. Raises EpisodeFailure if too many of them failed."""
        self.check(rollouts)
        if metadata.training_phase == "eval" and self.on_evaluation:
            self.on_evaluation(metadata.global_step, rollouts)


class EpisodeGenerator(GeneratorInterface):
    """Multi-turn episodes over SkyRL's inference client; the pool behind ``make_env`` bounds how many run at once.

    Returns one row per input, in order; with ``generator.step_wise_trajectories`` one row per turn, whose prompt is all
    that came before. An episode that fails through no fault of the agent comes back as one row with a loss mask
    of zeros, reward 0 and stop reason ``error``; ``MaskedRows`` keeps such rows out of everything else.
    Raises EpisodeFailure if more than ``max_failed_share`` of a batch's episodes failed.
    """

    samples_first = True
    """Whether the first action is sampled before there is a sandbox: all of a batch together, and no sandbox waits."""

    def __init__(self, config: Any, tokenizer: Any, client: Any, episodes: Episodes) -> None:
        """``config``: SkyRL's ``generator`` section."""
        self.episodes = episodes
        self._config = config
        self._tokenizer = tokenizer
        self._client = client

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        rollouts = await self.play(input_batch)
        self.episodes.ended(input_batch["batch_metadata"], rollouts)
        return self.output(input_batch, rollouts)

    async def play(self, input_batch: GeneratorInput) -> list[Rollout]:
        """An episode for each row, those that failed through no fault of the agent masked. Raises ConfigError."""
        count = len(input_batch["prompts"])
        return await asyncio.gather(*(self._episode(input_batch, index) for index in range(count)))

    async def _episode(self, batch: GeneratorInput, index: int) -> Rollout:
        conversation = Conversation(self._tokenizer, batch["prompts"][index], self._config.chat_template_kwargs)
        rollout = self.episodes.start(batch["env_extras"][index], batch["trajectory_ids"][index])
        rollout.conversation = conversation
        started = time.perf_counter()
        env = self.episodes.make_env()
        try:
            await self._play(rollout, conversation, env, batch, index)
        except MiniSandboxError as error:
            if error.owner == "user":
                raise
            rollout.fail(error)
            # Keep the row, train on none of it. SkyRL wants at least one token in each.
            if not conversation.response_ids:
                conversation.add_observation([self._tokenizer.eos_token_id])
            conversation.loss_mask = [0] * len(conversation.loss_mask)
        finally:
            await env.aclose()
        rollout.total_seconds = time.perf_counter() - started
        return rollout

    async def _play(
        self, rollout: Rollout, conversation: Conversation, env: EpisodeEnv, batch: GeneratorInput, index: int
    ) -> None:
        """Turns until the environment ends the episode."""
        name, metadata = batch["trajectory_ids"][index], batch["batch_metadata"]
        session = session_name(metadata, name.to_string())
        constant = self.episodes.constant_reward
        done = False
        try:
            while not done:
                if rollout.turns == 0 and not self.samples_first:
                    await rollout.reset(env)
                action = await self._sample(rollout, conversation, batch["sampling_params"], session)
                if rollout.turns == 1 and self.samples_first:
                    await rollout.reset(env)
                observation, done = await rollout.step(env, action, constant)
                if not done:
                    tokens = conversation.observation_ids(observation)
                    if len(conversation.ids) + len(tokens) > self._config.max_input_length:
                        rollout.stop_reason = "length"
                        _, done = await rollout.step(env, SUBMIT, constant)
                    else:
                        conversation.add_observation(tokens)
        finally:
            await self._client.finish_session(session)

    async def _sample(self, rollout: Rollout, conversation: Conversation, params: Any, session: str) -> str:
        started = time.perf_counter()
        try:
            output = await self._client.generate(
                {
                    "prompt_token_ids": [conversation.ids],
                    "session_ids": [session],
                    "sampling_params": params,
                }
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ModelServiceError(f"sampling failed in {session}: {error!r}") from error
        rollout.seconds["model"] += time.perf_counter() - started
        rollout.turns += 1
        start = len(conversation.response_ids)
        conversation.add_sampled(output["response_ids"][0], output["response_logprobs"][0])
        rollout.spans.append((start, len(conversation.response_ids)))
        return answer(output["responses"][0])

    def output(self, batch: GeneratorInput, rollouts: list[Rollout]) -> GeneratorOutput:
        """The rows that SkyRL trains on."""
        rows = [
            (rollout, name, start, end)
            for rollout, name in zip(rollouts, batch["trajectory_ids"], strict=True)
            for start, end in self._turns(rollout)
        ]
        talks = [_conversation(rollout) for rollout, *_ in rows]
        stop_reasons = [rollout.stop_reason for rollout, *_ in rows]
        loss_masks = [talk.loss_mask[start:end] for talk, (_, _, start, end) in zip(talks, rows, strict=True)]
        if self._config.apply_overlong_filtering:
            loss_masks = apply_overlong_filtering(loss_masks, stop_reasons)
        output = {
            "prompt_token_ids": [
                talk.prompt_ids + talk.response_ids[:start] for talk, (_, _, start, _) in zip(talks, rows, strict=True)
            ],
            "response_ids": [
                talk.response_ids[start:end] for talk, (_, _, start, end) in zip(talks, rows, strict=True)
            ],
            "rewards": [self._reward(rollout) for rollout, *_ in rows],
            "loss_masks": loss_masks,
            "stop_reasons": stop_reasons,
            "rollout_logprobs": [
                talk.logprobs[start:end] for talk, (_, _, start, end) in zip(talks, rows, strict=True)
            ],
            "trajectory_ids": [name for _, name, *_ in rows],
            "trajectory_generation_times": [rollout.total_seconds for rollout, *_ in rows],
            "trajectory_time_splits": {
                "llm": [rollout.seconds["model"] for rollout, *_ in rows],
                "env": [sum(rollout.seconds.values()) - rollout.seconds["model"] for rollout, *_ in rows],
            },
        }
        if self._config.step_wise_trajectories:
            output["is_last_step"] = [
                end == len(talk.response_ids) for talk, (*_, end) in zip(talks, rows, strict=True)
            ]
        output["rollout_metrics"] = rollout_metrics(output, rollouts)
        return output

    def _turns(self, rollout: Rollout) -> list[tuple[int, int]]:
        """Which parts of the response are rows: each turn, or all as one."""
        if self._config.step_wise_trajectories and not rollout.failure:
            return rollout.spans
        return [(0, len(_conversation(rollout).response_ids))]

    def _reward(self, rollout: Rollout) -> float:
        """The trajectory's reward, which stands in each of its rows; SkyRL reads that of the last one."""
        cut = self._config.zero_reward_on_non_stop and rollout.stop_reason != "stop"
        return 0.0 if cut else rollout.reward


def _conversation(rollout: Rollout) -> Conversation:
    assert rollout.conversation is not None
    return rollout.conversation

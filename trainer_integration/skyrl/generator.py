"""SkyRL asks for trajectories; this runs an episode for each, all of a batch at once, token in and token out."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
from skyrl.train.generators.utils import apply_overlong_filtering

from minisandbox_ray.errors import MiniSandboxError, ModelServiceError, Owner
from minisandbox_ray.telemetry.report import TIME_PARTS
from trainer_integration.skyrl.conversation import Conversation
from trainer_integration.skyrl.metrics import rollout_metrics

# Ends an episode whose context is full; the environment grades what has been done so far.
SUBMIT = "```bash\nsubmit\n```"


class EpisodeEnv(Protocol):
    """What the generator needs of ``minisandbox_ray.rollout.SandboxEnv``: one episode at a time, asynchronously."""

    async def areset(self, task: Any, seed: int | None = None) -> tuple[str, dict[str, Any]]: ...

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...

    async def aclose(self) -> None: ...


class _Failed(MiniSandboxError):
    """An episode that the environment ended, with the owner that it names."""

    def __init__(self, message: str, owner: Owner) -> None:
        super().__init__(message)
        self.owner = owner


@dataclass
class Rollout:
    """One episode as the trainer sees it, and where its wall time went (seconds by part)."""

    conversation: Conversation
    reward: float = 0.0
    resolved: bool = False
    stop_reason: str = "stop"
    turns: int = 0
    grade_cached: bool = False
    failure: MiniSandboxError | None = None
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIME_PARTS, 0.0))
    total_seconds: float = 0.0


class EpisodeGenerator(GeneratorInterface):
    """Multi-turn episodes over SkyRL's inference client; the pool behind ``make_env`` bounds how many run at once.

    Returns one row per input, in order. An episode that fails through no fault of the agent comes back
    with a loss mask of zeros and reward 0; ``MaskedTrainer`` keeps such rows out of everything else.
    Raises the first failure if every episode of a batch failed.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        client: Any,
        *,
        tasks: dict[str, Any],
        make_env: Callable[[], EpisodeEnv],
        prefetch: Callable[[dict[str, int]], None],
        seed: int,
        constant_reward: float | None = None,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._client = client
        self._tasks = tasks
        self._make_env = make_env
        self._prefetch = prefetch
        self._seed = seed
        self._constant_reward = constant_reward

    def prefetch(self, rows: list[dict[str, Any]], samples: int) -> None:
        """Rows of the data set will be rolled out soon, so many times each."""
        environments = [self._tasks[row["env_extras"]["instance_id"]].environment for row in rows]
        self._prefetch({name: samples * count for name, count in Counter(environments).items()})

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        count = len(input_batch["prompts"])
        rollouts = await asyncio.gather(*(self._episode(input_batch, index) for index in range(count)))
        failures = [rollout.failure for rollout in rollouts if rollout.failure]
        if len(failures) == count:
            raise failures[0]
        return self._output(input_batch, rollouts)

    async def _episode(self, batch: GeneratorInput, index: int) -> Rollout:
        rollout = Rollout(Conversation(self._tokenizer, batch["prompts"][index], self._config.chat_template_kwargs))
        started = time.perf_counter()
        env = self._make_env()
        try:
            await self._play(rollout, env, batch, index)
        except MiniSandboxError as error:
            if error.owner == "user":
                raise
            rollout.failure = error
        finally:
            await env.aclose()
        rollout.total_seconds = time.perf_counter() - started
        if rollout.failure:
            self._mask(rollout)
        return rollout

    async def _play(self, rollout: Rollout, env: EpisodeEnv, batch: GeneratorInput, index: int) -> None:
        """Turns until the environment ends the episode. The lease is taken once there is a first action to run."""
        task = self._tasks[batch["env_extras"][index]["instance_id"]]
        name, metadata = batch["trajectory_ids"][index], batch["batch_metadata"]
        session = f"{metadata.training_phase}-{metadata.global_step}-{name.to_string()}"
        done = False
        try:
            while not done:
                action = await self._sample(rollout, batch["sampling_params"], session)
                if rollout.turns == 1:
                    await self._reset(rollout, env, task, name.repetition_id)
                observation, done = await self._step(rollout, env, action)
                if not done:
                    tokens = rollout.conversation.observation_ids(observation)
                    if len(rollout.conversation.ids) + len(tokens) > self._config.max_input_length:
                        rollout.stop_reason = "length"
                        _, done = await self._step(rollout, env, SUBMIT)
                    else:
                        rollout.conversation.add_observation(tokens)
        finally:
            await self._client.finish_session(session)

    async def _sample(self, rollout: Rollout, params: Any, session: str) -> str:
        started = time.perf_counter()
        try:
            output = await self._client.generate(
                {
                    "prompt_token_ids": [rollout.conversation.ids],
                    "session_ids": [session],
                    "sampling_params": params,
                }
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ModelServiceError(f"sampling failed in {session}: {error!r}") from error
        rollout.seconds["model"] += time.perf_counter() - started
        rollout.turns += 1
        rollout.conversation.add_sampled(output["response_ids"][0], output["response_logprobs"][0])
        return output["responses"][0]

    async def _reset(self, rollout: Rollout, env: EpisodeEnv, task: Any, repetition: int) -> None:
        started = time.perf_counter()
        _, info = await env.areset(task, seed=self._seed + repetition)
        wait = info["seconds"].get("wait", 0.0)
        rollout.seconds["wait"] += wait
        rollout.seconds["reset"] += time.perf_counter() - started - wait

    async def _step(self, rollout: Rollout, env: EpisodeEnv, action: str) -> tuple[str, bool]:
        started = time.perf_counter()
        observation, reward, terminated, truncated, info = await env.astep(action)
        elapsed = time.perf_counter() - started
        grading = info["seconds"].get("diff", 0.0) + info["seconds"].get("grade", 0.0)
        rollout.seconds["step"] += elapsed - grading
        rollout.seconds["grade"] += grading
        if not info.get("trainable", True):
            raise _Failed(info["failure"], info["failure_owner"])
        if terminated or truncated:
            rollout.resolved = reward > 0
            rollout.reward = reward if self._constant_reward is None else self._constant_reward
            rollout.grade_cached = info.get("grade_cached", False)
        return observation, terminated or truncated

    def _mask(self, rollout: Rollout) -> None:
        """Keep the row, train on none of it. SkyRL wants at least one token in each."""
        conversation = rollout.conversation
        if not conversation.response_ids:
            conversation.add_observation([self._tokenizer.eos_token_id])
        conversation.loss_mask = [0] * len(conversation.loss_mask)
        rollout.reward, rollout.resolved, rollout.stop_reason = 0.0, False, "error"

    def _output(self, batch: GeneratorInput, rollouts: list[Rollout]) -> GeneratorOutput:
        conversations = [rollout.conversation for rollout in rollouts]
        stop_reasons = [rollout.stop_reason for rollout in rollouts]
        loss_masks = [conversation.loss_mask for conversation in conversations]
        if self._config.apply_overlong_filtering:
            loss_masks = apply_overlong_filtering(loss_masks, stop_reasons)
        output = {
            "prompt_token_ids": [conversation.prompt_ids for conversation in conversations],
            "response_ids": [conversation.response_ids for conversation in conversations],
            "rewards": [rollout.reward for rollout in rollouts],
            "loss_masks": loss_masks,
            "stop_reasons": stop_reasons,
            "rollout_logprobs": [conversation.logprobs for conversation in conversations],
            "trajectory_ids": batch["trajectory_ids"],
            "trajectory_generation_times": [rollout.total_seconds for rollout in rollouts],
            "trajectory_time_splits": {
                "llm": [rollout.seconds["model"] for rollout in rollouts],
                "env": [sum(rollout.seconds.values()) - rollout.seconds["model"] for rollout in rollouts],
            },
        }
        output["rollout_metrics"] = rollout_metrics(output, rollouts)
        return output

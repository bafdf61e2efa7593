"""Episodes as an environment of SkyRL's gym, ``minisandbox``, played by SkyRL's own generator.

Chosen by ``skyrl.environment.env_class=minisandbox``. The loop over turns, their tokens and rewards are then SkyRL's;
an episode is the same code as ``EpisodeGenerator``'s. One turn gives the same rows, and on a CPU the same curve. What
is otherwise: SkyRL's way of putting observations into tokens, an episode whose context is full is not graded (reward
0), and a sampling server that fails ends the run.
"""

import asyncio
from contextvars import ContextVar
from typing import Any

import aiohttp
import skyrl_gym
from skyrl.train.generators.base import BatchMetadata, GeneratorInput, GeneratorOutput, TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator, StepWiseOutput, TrajectoryOutput
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from minisandbox_ray.errors import MiniSandboxError, ModelServiceError
from trainer_integration.skyrl.conversation import answer
from trainer_integration.skyrl.generator import Episodes, session_name
from trainer_integration.skyrl.metrics import environment_metrics
from trainer_integration.skyrl.rollout import EpisodeEnv, Rollout

ENVIRONMENT = "minisandbox"
"""Its name in SkyRL's gym."""
_batch: ContextVar[BatchMetadata] = ContextVar("batch")


class MiniSandboxEnv(BaseTextEnv):
    """One episode. Its sandbox is asked for by the first step: what goes wrong there ends the episode, not the run.

    A failure that is not the agent's is kept in the rollout, and the episode is over with reward 0. The generator calls
    each environment from a thread of its own.
    """

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        """``extras``: ``rollout`` (a Rollout to fill), ``env`` (an EpisodeEnv), ``constant_reward``."""
        super().__init__()
        self._rollout: Rollout = extras["rollout"]
        self._env: EpisodeEnv = extras["env"]
        self._constant_reward: float | None = extras["constant_reward"]

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Raises ConfigError."""
        rollout = self._rollout
        try:
            observation, done = asyncio.run(self._step(answer(action)))
        except MiniSandboxError as error:
            if error.owner == "user":
                raise
            rollout.fail(error)
            observation, done = "", True
        observations = [] if done else [{"role": "user", "content": observation}]
        return BaseTextEnvStepOutput(observations=observations, reward=rollout.reward, done=done, metadata={})

    async def _step(self, action: str) -> tuple[str, bool]:
        self._rollout.turns += 1
        if self._rollout.turns == 1:
            await self._rollout.reset(self._env)
        return await self._rollout.step(self._env, action, self._constant_reward)

    def close(self) -> None:
        asyncio.run(self._env.aclose())


skyrl_gym.register(id=ENVIRONMENT, entry_point=f"{__name__}:{MiniSandboxEnv.__name__}")


class GymGenerator(SkyRLGymGenerator):
    """SkyRL's generator, with its hooks filled: an episode for each trajectory, and failed ones masked as those of
    ``EpisodeGenerator``. Raises EpisodeFailure if too many of a batch's episodes failed."""

    def __init__(self, config: Any, gym_config: Any, client: Any, tokenizer: Any, *, episodes: Episodes) -> None:
        """``config``, ``gym_config``: SkyRL's sections ``generator`` and ``environment.skyrl_gym``."""
        super().__init__(config, gym_config, _Named(client), tokenizer)
        self.episodes = episodes
        self._rollouts: dict[str, Rollout] = {}

    def _setup_env_extras(
        self,
        _env_class: str,
        env_extras: dict[str, Any],
        _sampling_params: dict[str, Any] | None,
        _trajectory_id: TrajectoryID | None,
    ) -> dict[str, Any]:
        assert _trajectory_id is not None
        rollout = self.episodes.start(env_extras, _trajectory_id)
        self._rollouts[_trajectory_id.to_string()] = rollout
        constant = self.episodes.constant_reward
        return env_extras | {"rollout": rollout, "env": self.episodes.make_env(), "constant_reward": constant}

    def _post_process_agent_loop_output(
        self,
        agent_loop_output: TrajectoryOutput | StepWiseOutput,
        _env_extras: dict[str, Any],
        _trajectory_id: TrajectoryID | None,
    ) -> TrajectoryOutput | StepWiseOutput:
        if _env_extras["rollout"].failure:
            is_step_wise = isinstance(agent_loop_output, StepWiseOutput)
            for row in agent_loop_output.step_outputs if is_step_wise else [agent_loop_output]:
                row.stop_reason = "error"
                row.loss_mask = [0] * len(row.loss_mask)
        return agent_loop_output

    async def generate(self, input_batch: GeneratorInput, disable_tqdm: bool = True) -> GeneratorOutput:
        metadata, names = input_batch["batch_metadata"], input_batch["trajectory_ids"]
        assert metadata is not None and names is not None
        self._rollouts.clear()
        _batch.set(metadata)
        output = await super().generate(input_batch, disable_tqdm)
        rows = output["trajectory_ids"] or names  # step-wise: those of each row
        times, splits = output["trajectory_generation_times"], output["trajectory_time_splits"]
        assert times is not None and splits is not None
        for name, seconds, model_seconds in zip(rows, times, splits["llm"], strict=True):
            rollout = self._rollouts[name.to_string()]
            rollout.total_seconds, rollout.seconds["model"] = seconds, model_seconds
        rollouts = [self._rollouts[name.to_string()] for name in names]
        self.episodes.ended(metadata, rollouts)
        assert output["rollout_metrics"] is not None
        output["rollout_metrics"] |= environment_metrics(rollouts)
        return output


class _Named:
    """SkyRL's inference client, for which sessions have the names that ``EpisodeGenerator`` gives them, and whose
    failures have an owner. The batch is that of the task that calls."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        """See InferenceEngineInterface.generate. Raises ModelServiceError."""
        sessions = [session_name(_batch.get(), name) for name in input_batch["session_ids"]]
        try:
            return await self._client.generate(input_batch | {"session_ids": sessions}, model=model)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ModelServiceError(f"sampling failed in {sessions[0]}: {error!r}") from error

    async def finish_session(self, session_id: str) -> None:
        """See InferenceEngineInterface.finish_session."""
        await self._client.finish_session(session_name(_batch.get(), session_id))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

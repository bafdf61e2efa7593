"""One episode as the trainer sees it, however its actions come about."""

import platform
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray

from minisandbox_ray import __version__
from minisandbox_ray.errors import MiniSandboxError, Owner
from minisandbox_ray.rollout.trajectory import Trajectory, Turn, task_digest
from minisandbox_ray.telemetry.report import TIME_PARTS
from trainer_integration.skyrl.conversation import Conversation


class EpisodeEnv(Protocol):
    """What an episode needs of ``minisandbox_ray.rollout.SandboxEnv``: one at a time, asynchronously."""

    async def areset(self, task: Any, seed: int | None = None) -> tuple[str, dict[str, Any]]: ...

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...

    async def aclose(self) -> None: ...


class EpisodeFailure(MiniSandboxError):
    """An episode that the environment ended through no fault of the agent, with the owner that it names."""

    def __init__(self, message: str, owner: Owner) -> None:
        super().__init__(message)
        self.owner = owner


@dataclass
class Rollout:
    """An episode's outcome, and where its wall time went (seconds by part)."""

    task: Any
    sample: int
    """Which of the task's episodes, from 0."""
    seed: int
    conversation: Conversation | None = None
    """Its tokens, where this side keeps them."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Where in the conversation's response the sampled turns begin and end."""
    reward: float = 0.0
    resolved: bool = False
    stop_reason: str = "stop"
    turns: int = 0
    steps: list[Turn] = field(default_factory=list)
    grade_cached: bool = False
    failure: MiniSandboxError | None = None
    prompt: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    """Of the last call of the environment."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIME_PARTS, 0.0))
    total_seconds: float = 0.0
    executed_seconds: float = 0.0
    """Of it, how long the agent's commands and the tests ran."""

    @property
    def own_seconds(self) -> float:
        """What is left of the episode's wall time without the model, the agent's commands, the tests, and the wait for
        a slot of the pool: starting and closing sandboxes, diffs, calls over the cluster, tokens.

        A grade from the cache counts as tests, as it is waited for where another episode makes it just now.
        """
        return self.total_seconds - self.seconds["wait"] - self.seconds["model"] - self.executed_seconds

    async def reset(self, env: EpisodeEnv) -> None:
        """Start the episode. Raises MiniSandboxError."""
        started = time.perf_counter()
        self.was_reset(await env.areset(self.task, self.seed), time.perf_counter() - started)

    async def step(self, env: EpisodeEnv, action: str, constant: float | None) -> tuple[str, bool]:
        """Take an action: the observation, and whether the episode is over. See ``took``."""
        started = time.perf_counter()
        result = await env.astep(action)
        return result[0], self.took(action, result, time.perf_counter() - started, constant)

    def was_reset(self, result: tuple[str, dict[str, Any]], elapsed: float) -> None:
        """Take down what ``SandboxEnv.reset`` gave after so many seconds."""
        self.prompt, self.info = result
        wait = self.info["seconds"].get("wait", 0.0)
        self.seconds["wait"] += wait
        self.seconds["reset"] += elapsed - wait

    def took(
        self, action: str, result: tuple[str, float, bool, bool, dict[str, Any]], elapsed: float, constant: float | None
    ) -> bool:
        """Take down what ``SandboxEnv.step`` gave after so many seconds; whether the episode is over.

        ``constant`` replaces the reward. Raises EpisodeFailure if the episode says nothing about the agent.
        """
        observation, reward, terminated, truncated, info = result
        self.info = info
        grading = info["seconds"].get("diff", 0.0) + info["seconds"].get("grade", 0.0)
        self.seconds["step"] += elapsed - grading
        self.seconds["grade"] += grading
        self.executed_seconds += info["seconds"].get("command", 0.0)
        if info.get("grade_cached"):
            self.executed_seconds += info["seconds"].get("grade", 0.0)
        else:
            durations = info.get("graded", {}).get("durations", {})
            self.executed_seconds += durations.get("tests", 0.0) + durations.get("control", 0.0)
        self.steps.append(
            Turn(action=action, observation=observation, exit_code=info.get("exit_code"), seconds=elapsed)
        )
        if not info.get("trainable", True):
            raise EpisodeFailure(info["failure"], info["failure_owner"])
        if terminated or truncated:
            self.resolved = reward > 0
            self.reward = reward if constant is None else constant
            self.grade_cached = info.get("grade_cached", False)
        return terminated or truncated

    def fail(self, error: MiniSandboxError) -> None:
        """The episode is no evidence of anything; it keeps its place in the batch."""
        self.failure = error
        self.reward, self.resolved, self.stop_reason = 0.0, False, "error"

    def trajectory(self, policy: str) -> Trajectory:
        """What is kept of an episode of an evaluation; ``policy`` is its name there."""
        graded = self.info.get("graded")
        return Trajectory(
            instance_id=self.task.instance_id,
            task_digest=task_digest(self.task),
            sample=self.sample,
            seed=self.seed,
            environment=self.task.environment,
            policy=policy,
            repo=self.task.repo,
            prompt=self.prompt,
            turns=self.steps,
            diff=self.info.get("diff", ""),
            reward=self.reward,
            resolved=self.resolved,
            graded=graded,
            failure_owner=self.failure.owner if self.failure else self.info.get("failure_owner"),
            failure=str(self.failure) if self.failure else self.info.get("failure", ""),
            replay=self.info.get("replay"),
            seconds={
                "total": self.total_seconds,
                "wait": self.seconds["wait"],
                "reset": self.seconds["reset"],
                "policy": self.seconds["model"],
                "command": self.seconds["step"],
                "grade": self.seconds["grade"],
            },
            node=self.info.get("node", ""),
            versions={"minisandbox_ray": __version__, "ray": ray.__version__, "python": platform.python_version()},
        )

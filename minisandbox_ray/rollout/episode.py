"""An episode: it runs where its sandbox is, in a worker; a reset or a step is one call."""

import logging
import threading
import time
from collections import OrderedDict
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from minisandbox_ray.cluster import HostContext
from minisandbox_ray.environments import Environment
from minisandbox_ray.environments.services import open_sandbox
from minisandbox_ray.errors import ConfigError, MiniSandboxError, SandboxError
from minisandbox_ray.rollout import observations
from minisandbox_ray.rollout.actions import Call, Command, Malformed, Submit, parse_action
from minisandbox_ray.rollout.config import EpisodeConfig
from minisandbox_ray.rollout.grades import graded_once
from minisandbox_ray.rollout.replay import digest
from minisandbox_ray.rollout.tools import Machine, Tool, ToolError
from minisandbox_ray.sandbox import Sandbox, SandboxSpec
from minisandbox_ray.tasks import Grade, Task, grade, grade_key
from minisandbox_ray.tasks.script_grading import grade_script
from minisandbox_ray.tasks.suite import Suite

LONGEST_DIFF_IN_INFO = 1 << 20
PATCHES_KEPT = 2048
# A sandbox that is killed loses its terminal a little before its last process is gone.
DEATH_SECONDS = 2.0

Step = tuple[str, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info; as in gymnasium."""

logger = logging.getLogger(__name__)


class _Recent(OrderedDict[str, str]):
    """The last PATCHES_KEPT entries."""

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, value)
        while len(self) > PATCHES_KEPT:
            self.popitem(last=False)


# Of this worker's episodes: the lower layers of a task never change, and samples of a group often edit alike.
_patches = _Recent()


class Episode:
    """One task in one sandbox, from reset to the grade of what the agent did (gymnasium's conventions).

    What goes wrong during a step ends the episode with ``info["failure_owner"]``: "agent" where its own commands did
    it (reward 0 stands), else ``info["trainable"]`` is False, and the 0 says nothing about the agent.
    """

    def __init__(self, context: HostContext, config: EpisodeConfig, grades: Any = None) -> None:
        """``grades``: the GradeService actor that equal diffs are graded through; None grades each."""
        self.ended = False
        self._context = context
        self._config = config
        self._grades = grades
        self._resources = ExitStack()
        self._busy = threading.Lock()
        self._state = threading.Lock()
        self._closed = False
        self._sandbox: Sandbox | None = None
        self._task: Task
        self._environment: Environment
        self._layer: Path | None
        self._deadline = 0.0
        self._turns = 0
        self._memory: dict[str, object] = {}
        self._was_replayed = False

    @staticmethod
    def prepare(context: HostContext) -> None:
        """Start a sandbox, and with it this process's starter while the process is small. Raises SandboxError."""
        Sandbox(SandboxSpec(isolation=context.isolation)).close()

    def reset(self, task: Task, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start the task's sandbox; the observation is its problem statement. An episode is reset once.

        Info: ``instance_id``, ``environment``, ``seed`` and ``seconds`` (materialise, derive, sandbox). Raises
        MiniSandboxError.
        """
        self._task = task
        try:
            with self._busy:
                seconds = self._start(task)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception) and not isinstance(error, MiniSandboxError):
                raise self._unexpected(error) from error
            raise
        self._deadline = time.monotonic() + self._config.episode_timeout
        info = {"instance_id": task.instance_id, "environment": task.environment, "seed": seed, "seconds": seconds}
        return task.problem_statement, info

    def _start(self, task: Task) -> dict[str, float]:
        if task.script is None:
            Suite(task)  # what nobody could grade is refused before an agent works on it
        store = self._context.store
        times = [time.perf_counter()]
        self._environment = self._resources.enter_context(store.use(task.environment, self._context.archives))
        times.append(time.perf_counter())
        self._layer = store.derive(self._environment, task.patch) if task.script is None else None
        times.append(time.perf_counter())
        sandbox = open_sandbox(self._environment, limits=self._config.limits, layer=self._layer)
        with self._state:
            if not self._closed:
                self._sandbox = sandbox
        if self._closed:
            sandbox.close()
            raise SandboxError("the episode was closed")
        times.append(time.perf_counter())
        materialise, derive, started = (end - start for start, end in pairwise(times))
        return {"materialise": materialise, "derive": derive, "sandbox": started}

    def step(self, action: str) -> Step:
        """Run an action; on submission, or when turns or time are over, grade what the agent did.

        Info: ``turn``, ``seconds`` (command; diff and grade at the end), ``exit_code``, ``timed_out``, ``limit`` and
        ``restarted`` of a command; ``tool`` and ``tool_failed`` of another tool's call; at the end ``graded`` (Grade's
        fields), ``grade_cached``, ``diff``, ``failure_owner``, ``failure`` and ``trainable``.
        """
        if self.ended or self._sandbox is None:
            raise ConfigError("the episode has ended or was not reset: call reset() first")
        info: dict[str, Any] = {"turn": self._turns, "seconds": {}}
        with self._busy:
            try:
                result = self._step(action, info)
            except MiniSandboxError as error:
                result = failed(error, info)
            except Exception as error:  # a bad rollout is data, not a crash
                result = failed(self._unexpected(error), info)
            self.ended = result[2] or result[3]
        if self.ended or self._closed:
            self.close()
        return result

    def replay(
        self, task: Task, seed: int | None, actions: list[str], elapsed: float
    ) -> tuple[list[str], dict[str, Any]]:
        """Reset, and take again the actions of an episode that failed elsewhere, in place of ``reset``.

        Returns the digests of the observations (fewer than ``actions`` if the episode is over before; it is not
        graded then) and reset's info. ``elapsed``: seconds that the episode had used of its time; the replay adds
        none, but may itself take no longer than ``episode_timeout``. Raises MiniSandboxError.
        """
        _, info = self.reset(task, seed)
        digests: list[str] = []
        try:
            with self._busy:
                for action in actions:
                    observation, is_submitted = self._act(action, {"seconds": {}})
                    if is_submitted or self._is_over():
                        break
                    digests.append(digest(observation))
        except MiniSandboxError as error:
            if error.owner != "agent":
                self.close()
                raise
        except Exception as error:
            self.close()
            raise self._unexpected(error) from error
        if self._closed:
            self.close()
        self._deadline = time.monotonic() + self._config.episode_timeout - elapsed
        self._was_replayed = True
        return digests, info

    def _step(self, action: str, info: dict[str, Any]) -> Step:
        observation, terminated = self._act(action, info)
        truncated = not terminated and self._is_over()
        if not terminated and not truncated:
            return observation, 0.0, False, False, info
        graded = self._grade(info)
        info |= {"failure_owner": None, "failure": "", "trainable": True}
        return observation, graded.reward, terminated, truncated, info

    def _act(self, action: str, info: dict[str, Any]) -> tuple[str, bool]:
        """(observation, whether the action is to submit); runs the command unless the time is over."""
        self._turns += 1
        info["turn"] = self._turns
        turns_left = self._config.max_turns - self._turns
        seconds_left = self._deadline - time.monotonic()
        parsed = parse_action(action, self._config.action_format, self._config.tools)
        observation = ""
        timeout = min(self._config.command_timeout, seconds_left)
        if isinstance(parsed, Malformed) and seconds_left > 0:
            observation = observations.of_malformed(parsed, turns_left, self._config.style)
        elif isinstance(parsed, Command) and seconds_left > 0:
            observation = self._run(parsed.text, timeout, turns_left, info)
        elif isinstance(parsed, Call) and seconds_left > 0:
            observation = self._use(parsed.tool, timeout, turns_left, info)
        return observation, isinstance(parsed, Submit)

    def _is_over(self) -> bool:
        return self._turns >= self._config.max_turns or time.monotonic() >= self._deadline

    def _unexpected(self, error: Exception) -> SandboxError:
        logger.error("an episode of task %s failed", self._task.instance_id, exc_info=error)
        return SandboxError(f"{type(error).__name__}: {error}")

    def _run(self, command: str, timeout: float, turns_left: int, info: dict[str, Any]) -> str:
        sandbox = self._open_sandbox()
        try:
            result = sandbox.run(command, timeout)
        except SandboxError as error:
            raise self._blamed(sandbox, error) from error
        info |= {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "limit": result.limit,
            "restarted": result.restarted,
        }
        info["seconds"]["command"] = result.seconds
        return observations.of_command(result, self._config.observation_chars, turns_left, self._config.style)

    def _use(self, tool: Tool, timeout: float, turns_left: int, info: dict[str, Any]) -> str:
        sandbox, chars = self._open_sandbox(), self._config.observation_chars
        started = time.perf_counter()
        failed = False
        try:
            said = tool.use(Machine(sandbox, chars, timeout, self._memory))
        except ToolError as error:
            said, failed = str(error), True
        except SandboxError as error:
            raise self._blamed(sandbox, error) from error
        if not sandbox.is_alive:  # its files are gone, which a tool takes for paths that do not exist
            raise self._blamed(sandbox, SandboxError(f"the sandbox ended before {tool.name} was done"))
        info |= {"tool": tool.name, "tool_failed": failed}
        info["seconds"]["command"] = time.perf_counter() - started
        return observations.of_tool(said, chars, turns_left, self._config.style)

    def _grade(self, info: dict[str, Any]) -> Grade:
        """Take the diff, close the agent's sandbox, grade in a fresh one."""
        started = time.perf_counter()
        sandbox = self._open_sandbox()
        if self._task.script:
            try:
                graded = grade_script(self._task, sandbox, self._environment, self._config.grading)
            except SandboxError as error:
                raise self._blamed(sandbox, error) from error
            info["seconds"]["grade"] = time.perf_counter() - started
            info |= {"graded": graded.model_dump(), "grade_cached": False, "diff": ""}
            return graded
        diff = self._diff(sandbox)
        sandbox.close()
        info["seconds"]["diff"] = time.perf_counter() - started
        info["diff"] = diff if len(diff) <= LONGEST_DIFF_IN_INFO else ""
        config = self._config.grading
        started = time.perf_counter()

        def run() -> Grade:
            return grade(self._task, diff, self._environment, self._layer, config)

        if self._grades is None:
            graded, cached = run(), False
        else:
            key = grade_key(self._task, diff, self._task.environment, config)
            if self._was_replayed:
                # The worker that was lost may have promised this grade: don't wait for it, and let nobody else.
                graded, cached = run(), False
                self._grades.put.remote(key, graded)
            else:
                graded, cached = graded_once(self._grades, key, config.longest_seconds, run)
        info["seconds"]["grade"] = time.perf_counter() - started
        info |= {"graded": graded.model_dump(), "grade_cached": cached}
        return graded

    def _diff(self, sandbox: Sandbox) -> str:
        try:
            return sandbox.diff(_patches)
        except SandboxError as error:
            if error.owner != "sandbox" or self._closed:
                raise
        # The sandbox that git ran in may have been killed; what the agent did to stop git stops it again.
        try:
            return sandbox.diff(_patches)
        except SandboxError as error:
            raise self._blamed(sandbox, error) from error

    def _open_sandbox(self) -> Sandbox:
        with self._state:
            if self._sandbox is None:
                raise SandboxError("the episode was closed")
            return self._sandbox

    def _blamed(self, sandbox: Sandbox, error: SandboxError) -> SandboxError:
        """The error, owned by the agent where its own commands exhausted or broke a sandbox that nobody closed."""
        deadline = time.monotonic() + DEATH_SECONDS
        while sandbox.is_alive and time.monotonic() < deadline:
            time.sleep(0.02)
        if not self._closed and (sandbox.is_alive or sandbox.limit_hit() is not None):
            error.owner = "agent"
        return error

    def close(self) -> None:
        """Close the sandbox, also under a running step, and let go of the environment; a second call does nothing."""
        with self._state:
            self._closed = True
            sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()
        self._let_go()

    def _let_go(self) -> None:
        """Release the environment, unless something runs on it: then that does so at its end (a grading sandbox may
        still have it mounted)."""
        if self._busy.acquire(blocking=False):
            try:
                self._resources.close()
            finally:
                self._busy.release()


def failed(error: MiniSandboxError, info: dict[str, Any]) -> Step:
    """The last step of an episode that ended by an error."""
    info |= {"failure_owner": error.owner, "failure": str(error), "trainable": error.owner == "agent"}
    return "", 0.0, True, False, info

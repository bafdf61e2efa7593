"""The grader of tasks whose own script judges the machine that the agent leaves (Harbor's form).

The script runs in a fresh sandbox with the files that the agent's has, none of its processes, and the tests, which come
in only now. As in Harbor, what the script calls is the agent's to change: grades are not `witnessed`.
"""

import time

from minisandbox_ray.environments import Environment
from minisandbox_ray.environments.machine import TESTS
from minisandbox_ray.errors import ConfigError, SandboxError, TaskError
from minisandbox_ray.sandbox import ExecResult, Sandbox
from minisandbox_ray.tasks.datasets.harbor import read_reward
from minisandbox_ray.tasks.grading import Grade, GradingConfig
from minisandbox_ray.tasks.scripted import LOGS, ScriptedTask
from minisandbox_ray.tasks.task import Task

_REWARD_BYTES = 64 << 10
_CLEAR = f"rm -rf /tests {LOGS} /solution && mkdir -p {LOGS}"


def grade_script(task: Task, sandbox: Sandbox, env: Environment, config: GradingConfig) -> Grade:
    """What the task's script makes of the sandbox, which is closed.

    The reward is the script's number as it is; 1 or more is resolved. A script that takes too long, hits a limit or
    leaves no reward is the agent's failure. Raises TaskError where `config.timeout` is less than what the task allows
    and was not enough; SandboxError.
    """
    script = _script(task)
    started = time.monotonic()
    spec = sandbox.spec
    with sandbox.snapshot() as snapshot:
        sandbox.close()
        with Sandbox(spec, snapshot=snapshot) as box:
            cleared = box.execute(["/bin/sh", "-c", _CLEAR], cwd="/")
            if cleared.exit_code:
                return _grade(0.0, f"/tests and {LOGS} cannot be made anew", started, cleared, config)
            box.upload(env.root / TESTS, "/tests")
            timeout = min(script.verifier_seconds, config.timeout)
            command = f"exec 2>&1; exec /bin/bash /{script.test_script}"
            done = box.execute(
                ["/bin/bash", "-c", command],
                cwd=env.manifest.spec.machine.workdir if env.manifest.spec.machine else "/",
                env=script.verifier_variables,
                timeout=timeout,
            )
            if done.timed_out and timeout < script.verifier_seconds:
                raise TaskError(
                    f"task {task.instance_id}: its tests took more than {timeout:g} s and may take "
                    f"{script.verifier_seconds:g}: raise grading.timeout"
                )
            if done.timed_out or done.limit not in (None, "output"):
                why = f"took more than {timeout:g} s" if done.timed_out else f"hit the sandbox's {done.limit} limit"
                return _grade(0.0, f"the tests {why}", started, done, config)
            if not box.is_alive:
                raise SandboxError("the grading sandbox was killed from outside")
            try:
                reward = read_reward(_rewards(box))
            except TaskError as error:
                return _grade(0.0, str(error), started, done, config)
    return _grade(reward, "" if reward >= 1 else f"the test script gave {reward:g}", started, done, config)


def _grade(reward: float, reason: str, started: float, done: ExecResult, config: GradingConfig) -> Grade:
    resolved = reward >= 1
    return Grade(
        resolved=resolved,
        reward=reward,
        tests={},
        witnessed=False,
        owner=None if resolved else "agent",
        reason=reason,
        seconds=time.monotonic() - started,
        durations={"apply": 0.0, "tests": done.seconds},
        log=_log(done, config),
    )


def _script(task: Task) -> ScriptedTask:
    if task.script is None:
        raise ConfigError(f"task {task.instance_id} has no script of its own")
    return task.script


def _log(done: ExecResult, config: GradingConfig) -> str:
    return done.stdout.decode("utf-8", "replace")[-config.log_chars :]


def _rewards(box: Sandbox) -> dict[str, bytes]:
    files = {}
    for name in ("reward.json", "reward.txt"):
        try:
            files[name] = box.read_file(f"{LOGS}/{name}", max_bytes=_REWARD_BYTES)
        except OSError:
            continue
    return files

"""mini-swe-agent's Environment: each command a program of its own in one sandbox, as with its other environments."""

import platform
import threading
from contextlib import ExitStack
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge

from minisandbox_ray.errors import ConfigError, MiniSandboxError, first_line
from minisandbox_ray.sandbox import ExecResult, Sandbox
from trainer_integration.environments import open_held

from .config import MiniSandboxEnvironmentConfig

TASK_COMMAND = "minisandbox-task"
"""The one command that does not run inside: before any other it says which of `tasks` the sandbox is for."""
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First line of the output of the command that ends a run: mini-swe-agent's prompts ask for it."""
MOST_OUTPUT = 10 << 20
"""Bytes kept of a command's output, half from each end: a submission is output too, and may be a large patch. What the
model sees is cut by mini-swe-agent's template."""
LONGEST_ARGUMENT = 128 << 10
"""Bytes; Linux takes no longer argument of a program (MAX_ARG_STRLEN, execve(2))."""
_MERGED = 'exec "$@" 2>&1'


class MiniSandboxEnvironment:
    """The sandbox starts with the object, or with the batch's `minisandbox-task` where `tasks` comes without `task`.

    It ends with `cleanup`, with this object, or with the process. Raises ConfigError and other MiniSandboxErrors.
    """

    def __init__(self, *, config_class: type = MiniSandboxEnvironmentConfig, **kwargs: Any) -> None:
        """Keywords are the fields of MiniSandboxEnvironmentConfig."""
        self.config = config_class(**kwargs)
        self._held = ExitStack()
        """The sandbox, and the environment that it is a view of."""
        self._sandbox: Sandbox | None = None
        self._scripts = 0
        if self.config.tasks is None or self.config.task:
            self._start(self.config.task)

    def execute(self, action: dict, cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run ``action["command"]`` -> its ``output`` (stdout and stderr as they came), ``returncode`` (-1 if it was
        ended) and ``exception_info``. Raises Submitted for the command that ends the run."""
        command = action.get("command", "")
        name, _, task = command.strip().partition(" ")
        if self._sandbox is None and name == TASK_COMMAND:
            self._start(task.strip())
            return {"output": "", "returncode": 0, "exception_info": ""}
        if self._sandbox is None:
            raise ConfigError(
                f"no task chosen: set `task`, or run.env_startup_command: {TASK_COMMAND} {{{{instance_id}}}}"
            )
        seconds = timeout or self.config.timeout
        try:
            result = self._sandbox.execute(
                ["/bin/sh", "-c", _MERGED, "sh", *self._argv(self._sandbox, command)],
                cwd=cwd or self.config.cwd,
                env=self.config.env,
                timeout=seconds,
                max_output=MOST_OUTPUT,
            )
            output = _told(result, seconds)
        except MiniSandboxError as error:
            output = _failed("", first_line(error), type(error).__name__)
        except ValueError as error:  # what no program can be started with, such as a zero byte
            output = _failed("", first_line(error), "ValueError")
        _check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """The configuration and what uname tells inside."""
        inside = {**platform.uname()._asdict(), "node": self.config.sandbox.hostname}
        return recursive_merge(self.config.model_dump(), inside, kwargs)

    def serialize(self) -> dict[str, Any]:
        """What mini-swe-agent writes into its trajectories."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {
            "info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}},
        }

    def cleanup(self) -> None:
        """End the sandbox and what runs in it. Idempotent."""
        held, self._held, self._sandbox = self._held, ExitStack(), None
        held.close()

    def __del__(self) -> None:
        # In a thread of its own: this may run in the middle of anything.
        if getattr(self, "_sandbox", None) is not None:
            try:
                threading.Thread(target=self._held.close, daemon=True).start()
            except RuntimeError:  # the interpreter is going, and takes the sandbox with it
                pass

    def _argv(self, sandbox: Sandbox, command: str) -> list[str]:
        *first, last = self.config.interpreter
        if len(command.encode("utf-8", "surrogateescape")) < LONGEST_ARGUMENT:
            return [*first, last, command]
        if not last.startswith("-") or not last.endswith("c"):
            raise ValueError(f"the command is longer than {LONGEST_ARGUMENT >> 10} KiB")
        self._scripts += 1
        path = f"/tmp/.command-{self._scripts}"
        sandbox.write_file(path, command.encode("utf-8", "surrogateescape"))
        return [*first, *([rest] if (rest := last.removesuffix("c")) != "-" else []), path]

    def _start(self, task: str) -> None:
        config = self.config
        self._sandbox, self._held = open_held(config.sandbox, config.environment, config.tasks, task)


def _told(result: ExecResult, seconds: float) -> dict[str, Any]:
    text = result.stdout.decode("utf-8", "replace")
    if result.truncated:
        return _failed(text, f"it printed more than {MOST_OUTPUT >> 20} MiB", "OutputTooLong")
    if result.timed_out:
        return _failed(text, f"the command timed out after {seconds:g} s", "TimeoutExpired")
    if result.limit not in (None, "output"):
        return {
            "output": text,
            "returncode": result.exit_code,
            "exception_info": f"The command hit the sandbox's {result.limit} limit",
        }
    return {"output": text, "returncode": result.exit_code, "exception_info": ""}


def _failed(text: str, why: str, kind: str) -> dict[str, Any]:
    return {
        "output": text,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {why}",
        "extra": {"exception_type": kind, "exception": why},
    }


def _check_finished(output: dict[str, Any]) -> None:
    lines = output["output"].lstrip().splitlines(keepends=True)
    if lines and lines[0].strip() == SUBMIT and output["returncode"] == 0:
        submission = "".join(lines[1:])
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})

"""A SWE-ReX deployment that is a sandbox in this process's care: no server, no port, no image."""

import logging
import threading
from contextlib import ExitStack
from typing import Any, Self

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError
from swerex.runtime.abstract import IsAliveResponse
from swerex.utils.log import get_logger

from minisandbox_ray.errors import MiniSandboxError
from minisandbox_ray.sandbox import Sandbox
from trainer_integration.environments import open_held

from .config import MiniSandboxDeploymentConfig
from .runtime import MiniSandboxRuntime
from .threads import in_thread


class MiniSandboxDeployment(AbstractDeployment):
    """Any thread and any event loop may use it. The sandbox ends with `stop`, with this object, or with the process."""

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any) -> None:
        """Keywords are the fields of MiniSandboxDeploymentConfig."""
        self.logger = logger or get_logger("rex-deploy")
        self._config = MiniSandboxDeploymentConfig(**kwargs)
        self._hooks = CombinedDeploymentHook()
        self._runtime: MiniSandboxRuntime | None = None
        self._held = ExitStack()
        """The sandbox, and the environment that it is a view of."""

    @classmethod
    def from_config(cls, config: MiniSandboxDeploymentConfig) -> Self:
        """As SWE-ReX's configurations call it."""
        return cls(**{name: getattr(config, name) for name in config.model_fields_set})

    def add_hook(self, hook: DeploymentHook) -> None:
        """It is told each step of `start`."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the sandbox runs; false (as of SWE-ReX's local deployment) if it was not started."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="the deployment is not started")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Start the sandbox; one that runs is ended first. Raises DeploymentStartupError."""
        await self.stop()
        self._hooks.on_custom_step("Starting sandbox")
        config = self._config

        def work() -> tuple[Sandbox, ExitStack]:  # without `self`: the thread may hold it a little longer
            return open_held(config.spec(), config.environment, config.tasks, config.task)

        try:
            sandbox, self._held = await in_thread(work, discard=lambda pair: pair[1].close())
        except MiniSandboxError as error:
            raise DeploymentStartupError(str(error)) from error
        self._runtime = MiniSandboxRuntime(sandbox, logger=self.logger)

    async def stop(self) -> None:
        """End the sandbox and what runs in it. Idempotent."""
        holding, self._held, self._runtime = self._held, ExitStack(), None
        await in_thread(holding.close)

    @property
    def runtime(self) -> MiniSandboxRuntime:
        """Raises DeploymentNotStartedError if it was not started, or was stopped."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    def __del__(self) -> None:
        # Not the base's, which needs an event loop. In a thread of its own: this may run in the middle of anything.
        if getattr(self, "_runtime", None) is not None:
            try:
                threading.Thread(target=self._held.close, daemon=True).start()
            except RuntimeError:  # the interpreter is going, and takes the sandbox with it
                pass

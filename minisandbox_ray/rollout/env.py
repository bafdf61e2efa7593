"""The environment that researchers and trainers hold: gymnasium's conventions, the work is done on the cluster."""

from pathlib import Path
from typing import Any

from minisandbox_ray.cluster import ClusterConfig, Connection, Lease, connect
from minisandbox_ray.errors import ClusterError, ConfigError, MiniSandboxError
from minisandbox_ray.rollout.config import EpisodeConfig
from minisandbox_ray.rollout.episode import Step, failed
from minisandbox_ray.rollout.pool import EpisodePool
from minisandbox_ray.tasks import Task

RESET_ATTEMPTS = 3


class SandboxEnv:
    """Episodes of tasks, one at a time; many SandboxEnvs share one pool.

    ``reset(task, seed) -> (observation, info)`` and ``step(action) -> (observation, reward, terminated, truncated,
    info)``, each one Ray call; ``areset``, ``astep`` and ``aclose`` are the same for asyncio, on any event loop. A slot
    of the pool is held from reset to the end of the episode. An action is model text with one fenced bash block, or
    ``submit``. Info is described at Episode.reset and Episode.step; reset adds ``node``, ``worker`` and
    ``seconds["wait"]``.

    >>> with SandboxEnv() as env:
    ...     observation, info = env.reset(task)
    ...     observation, reward, terminated, truncated, info = env.step("```bash\\nls\\n```")
    """

    def __init__(
        self,
        pool: EpisodePool | None = None,
        config: EpisodeConfig | None = None,
        *,
        address: str | None = None,
        archives: Path | None = None,
    ) -> None:
        """Without ``pool``: one of its own, on the Ray cluster at ``address`` (see ClusterConfig.address; default: a
        local one) with environments from ``archives``. Raises ConfigError or ClusterError when there is none."""
        self._config = config or EpisodeConfig()
        self._connection: Connection | None = None
        self._owned: EpisodePool | None = None
        self._lease: Lease | None = None
        if pool is None:
            cluster = ClusterConfig(address=address)
            self._connection = connect(cluster)
            try:
                pool = self._owned = EpisodePool(cluster, archives)
            except BaseException:
                self._connection.close()
                raise
        self._pool = pool

    def __enter__(self) -> "SandboxEnv":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def reset(self, task: Task, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; one that is running is given up. A failure of the infrastructure is tried again on another
        worker, at most RESET_ATTEMPTS times in all. Raises MiniSandboxError."""
        avoid: frozenset[str] = self._leave()
        for attempt in range(1, RESET_ATTEMPTS + 1):
            lease = self._pool.acquire_sync(task.environment, self._pool.options(self._config), avoid=avoid)
            try:
                return self._entered(lease, lease.call_sync("reset", task, seed))
            except BaseException as error:
                avoid |= self._retry_without(lease, error, attempt)
        raise AssertionError("unreachable")

    async def areset(self, task: Task, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """``reset`` for asyncio."""
        avoid: frozenset[str] = self._leave()
        for attempt in range(1, RESET_ATTEMPTS + 1):
            lease = await self._pool.acquire(task.environment, self._pool.options(self._config), avoid=avoid)
            try:
                return self._entered(lease, await lease.call("reset", task, seed))
            except BaseException as error:
                avoid |= self._retry_without(lease, error, attempt)
        raise AssertionError("unreachable")

    def _entered(self, lease: Lease, result: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        self._lease = lease
        observation, info = result
        info |= {"node": lease.node.address, "worker": lease.worker_id}
        info["seconds"]["wait"] = lease.wait_seconds
        info["seconds"]["materialise"] += lease.unpack_seconds
        return observation, info

    def _retry_without(self, lease: Lease, error: BaseException, attempt: int) -> frozenset[str]:
        """Give the lease back; the worker to avoid in the next attempt, or raise the error where there is none."""
        lease.release()
        is_transient = isinstance(error, MiniSandboxError) and error.owner in {"sandbox", "cluster"}
        if not is_transient or attempt == RESET_ATTEMPTS:
            raise error
        return frozenset({lease.worker_id})

    def step(self, action: str) -> Step:
        """Take an action. Does not raise when the episode fails: see ``info["failure_owner"]`` and ``"trainable"``.
        Raises ConfigError when there is no episode to step."""
        lease = self._running()
        try:
            return self._stepped(lease.call_sync("step", action))
        except ClusterError as error:
            return self._stepped(failed(error, {"seconds": {}}))

    async def astep(self, action: str) -> Step:
        """``step`` for asyncio; cancelled in the middle, it gives the episode up."""
        lease = self._running()
        try:
            return self._stepped(await lease.call("step", action))
        except ClusterError as error:
            return self._stepped(failed(error, {"seconds": {}}))
        except BaseException:
            self._leave()
            raise

    def _running(self) -> Lease:
        if self._lease is None:
            raise ConfigError("no episode is running (it has ended, or was never reset): call reset() first")
        return self._lease

    def _stepped(self, result: Step) -> Step:
        if result[2] or result[3]:
            self._leave()
        return result

    def _leave(self) -> frozenset[str]:
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        return frozenset()

    def close(self) -> None:
        """Give a running episode up; close the pool and the cluster where they are this environment's own."""
        self._leave()
        if self._owned is not None:
            self._owned.close()
        if self._connection is not None:
            self._connection.close()

    async def aclose(self) -> None:
        """``close`` for asyncio."""
        self.close()

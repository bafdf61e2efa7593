"""The environment that researchers and trainers hold: gymnasium's conventions, the work is done on the cluster."""

import time
from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from minisandbox_ray.cluster import ClusterConfig, Connection, Lease, connect
from minisandbox_ray.errors import ClusterError, ConfigError, MiniSandboxError
from minisandbox_ray.rollout.config import RESET_SECONDS, EpisodeConfig, check_lifetime, step_seconds
from minisandbox_ray.rollout.episode import Step, failed
from minisandbox_ray.rollout.pool import EpisodePool
from minisandbox_ray.rollout.replay import Trail, failure_in
from minisandbox_ray.tasks import Task

T = TypeVar("T")


@dataclass(frozen=True)
class _Ask:
    """What an episode waits for: ``target.name_sync`` from code without an event loop, ``target.name`` from one."""

    target: Any
    name: str
    args: tuple
    keywords: dict[str, Any]

    def sync(self) -> Any:
        return getattr(self.target, f"{self.name}_sync")(*self.args, **self.keywords)

    def asynchronous(self) -> Awaitable[Any]:
        return getattr(self.target, self.name)(*self.args, **self.keywords)


# Written once for both: a generator that yields what it waits for and is sent the answer.
_Plan = Generator[_Ask, Any, T]


class SandboxEnv:
    """Episodes of tasks, one at a time; many SandboxEnvs share one pool.

    ``reset(task, seed) -> (observation, info)`` and ``step(action) -> (observation, reward, terminated, truncated,
    info)``, each one Ray call; ``areset``, ``astep`` and ``aclose`` are the same for asyncio, on any event loop. A slot
    of the pool is held from reset to the end of the episode. An action is model text with one fenced bash block, or
    one call of a tool (EpisodeConfig.action_format), or ``submit``. Info is described at Episode.reset and
    Episode.step; ``node``, ``worker`` and ``replay`` are added, and by reset ``seconds["wait"]`` (for a slot of the
    pool) and ``["slots"]`` (of materialise, the wait for unpack slots).

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
        archives: Path | str | None = None,
    ) -> None:
        """Without ``pool``: one of its own, on the Ray cluster at ``address`` (see ClusterConfig.address; default: a
        local one) with environments from ``archives``. Raises ConfigError or ClusterError when there is none."""
        self._config = config or EpisodeConfig()
        self._connection: Connection | None = None
        self._owned: EpisodePool | None = None
        self._trail: Trail | None = None
        if pool is None:
            cluster = ClusterConfig(address=address)
            check_lifetime(self._config, cluster.lease_seconds)
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
        worker, at most EpisodeConfig.replays times. Raises MiniSandboxError."""
        return self._drive(self._reset(task, seed))

    async def areset(self, task: Task, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """``reset`` for asyncio."""
        return await self._adrive(self._reset(task, seed))

    def step(self, action: str) -> Step:
        """Take an action. Does not raise when the episode fails: see ``info["failure_owner"]`` and ``"trainable"``.
        Raises ConfigError when there is no episode to step.

        After a failure of the infrastructure the episode is played again on another worker, and the action taken
        there: ``info["replay"]`` says how often that happened and what came out otherwise, see Trail.info; what it
        cost is ``info["seconds"]["replay"]``."""
        return self._drive(self._step(action))

    async def astep(self, action: str) -> Step:
        """``step`` for asyncio; cancelled in the middle, it gives the episode up."""
        return await self._adrive(self._step(action))

    def _reset(self, task: Task, seed: int | None) -> _Plan[tuple[str, dict[str, Any]]]:
        self._leave()
        trail = self._trail = Trail(task, seed, self._config.replays)
        try:
            while True:
                lease = yield from self._acquire(trail)
                try:
                    observation, info = yield _Ask(lease, "call", ("reset", task, seed), {"within": RESET_SECONDS})
                    break
                except MiniSandboxError as error:
                    if self._trail is not trail or not trail.fail(error, resetting=True):
                        raise
        except BaseException:
            self._give_up(trail)
            raise
        trail.start_clock()
        info |= {"node": lease.node.address, "worker": lease.worker_id, "replay": trail.info()}
        info["seconds"]["wait"] = lease.wait_seconds
        info["seconds"]["materialise"] += lease.unpack_seconds
        info["seconds"]["slots"] = lease.slot_seconds
        return observation, info

    def _step(self, action: str) -> _Plan[Step]:
        trail, asked = self._running(), time.monotonic()
        elapsed = trail.elapsed()
        within = step_seconds(self._config, len(trail.actions) + 1, elapsed, action)
        failure: MiniSandboxError | None = None
        replay_seconds = 0.0
        try:
            while True:
                try:
                    if failure is not None:
                        yield from self._replay(trail, elapsed, failure)
                        replay_seconds = time.monotonic() - asked
                    result = yield _Ask(trail.lease, "call", ("step", action), {"within": within})
                    failure = failure_in(result[4])
                except MiniSandboxError as error:
                    failure, result = error, failed(error, {"turn": len(trail.actions) + 1, "seconds": {}})
                if failure is None or self._trail is not trail or not trail.fail(failure):
                    break
        except BaseException:
            self._give_up(trail)
            raise
        observation, _, terminated, truncated, info = result
        if terminated or truncated:
            self._give_up(trail)
        else:
            trail.took(action, observation)
        assert trail.lease is not None
        info |= {"node": trail.lease.node.address, "worker": trail.lease.worker_id, "replay": trail.info()}
        if replay_seconds:
            info["seconds"]["replay"] = replay_seconds
        return result

    def _acquire(self, trail: Trail) -> _Plan[Lease]:
        options = self._pool.options(self._config)
        asked = (trail.task.environment, options)
        trail.lease = lease = yield _Ask(self._pool, "acquire", asked, {"avoid": trail.avoid})
        if self._trail is not trail:  # another thread closed this environment, or reset it
            lease.release()
            raise ClusterError("the episode was given up while it waited for a sandbox")
        return lease

    def _replay(self, trail: Trail, elapsed: float, failure: MiniSandboxError) -> _Plan[None]:
        """Bring the episode to where it was, in a slot elsewhere."""
        lease = yield from self._acquire(trail)
        replayed = ("replay", trail.task, trail.seed, trail.actions, elapsed)
        within = RESET_SECONDS + self._config.episode_timeout
        digests, _ = yield _Ask(lease, "call", replayed, {"within": within})
        trail.compare(digests, failure)
        trail.start_clock(elapsed)

    def _drive(self, plan: _Plan[T]) -> T:
        try:
            ask = next(plan)
            while True:
                try:
                    answer = ask.sync()
                except BaseException as error:
                    ask = plan.throw(error)
                else:
                    ask = plan.send(answer)
        except StopIteration as done:
            return done.value

    async def _adrive(self, plan: _Plan[T]) -> T:
        try:
            ask = next(plan)
            while True:
                try:
                    answer = await ask.asynchronous()
                except BaseException as error:
                    ask = plan.throw(error)
                else:
                    ask = plan.send(answer)
        except StopIteration as done:
            return done.value

    def _running(self) -> Trail:
        if self._trail is None:
            raise ConfigError("no episode is running (it has ended, or was never reset): call reset() first")
        return self._trail

    def _give_up(self, trail: Trail) -> None:
        if self._trail is trail:
            self._trail = None
        if trail.lease is not None:
            trail.lease.release()

    def _leave(self) -> None:
        if self._trail is not None:
            self._give_up(self._trail)

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

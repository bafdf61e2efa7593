"""What an episode needs to be played again elsewhere, after a failure that was not the agent's."""

import hashlib
import time
from typing import TYPE_CHECKING, Any

from minisandbox_ray.errors import MiniSandboxError, Owner
from minisandbox_ray.tasks import Task

if TYPE_CHECKING:
    from minisandbox_ray.cluster import Lease

INFRASTRUCTURE: frozenset[Owner] = frozenset({"sandbox", "cluster"})
"""Owners of failures that another worker may not have."""


def digest(observation: str) -> str:
    """Equal for equal observations."""
    return hashlib.sha256(observation.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class DivergedError(MiniSandboxError):
    """Played again, the episode ended where it had gone on: there is no state to take the next action in."""


class Trail:
    """An episode as its client saw it, and how often it had to be played again.

    Honest replays may differ: outputs hold times, random numbers, process ids. Background processes are started
    again, but the time between two actions is not waited for. Such differences are reported and the episode goes on.

    The episode's clock stands still from the start of a step that fails until the step is taken again: neither the
    lost attempt, nor the wait for another slot, nor the replay counts (time that the model takes does). A replay that
    itself takes longer than the episode's time limit has diverged.
    """

    def __init__(self, task: Task, seed: int | None, replays: int) -> None:
        """``replays``: how many failures to survive."""
        self.task = task
        self.seed = seed
        self.lease: Lease | None = None
        """The slot that it has now, or had last."""
        self.actions: list[str] = []
        """Those that were taken and observed."""
        self.avoid: frozenset[str] = frozenset()
        """Ids of workers and nodes that failed it."""
        self._bound = replays
        self._digests: list[str] = []
        self._turns: list[int] = []
        self._diverged: set[int] = set()
        self._started = 0.0

    def start_clock(self, elapsed: float = 0.0) -> None:
        """The episode goes on from here; it has used so many seconds."""
        self._started = time.monotonic() - elapsed

    def elapsed(self) -> float:
        """Seconds of its time that the episode has used."""
        return time.monotonic() - self._started

    def took(self, action: str, observation: str) -> None:
        """Remember an action that did not end the episode."""
        self.actions.append(action)
        self._digests.append(digest(observation))

    def fail(self, error: MiniSandboxError, *, resetting: bool = False) -> bool:
        """Give the slot back; whether the episode may be played again elsewhere, which is then counted."""
        if self.lease is not None:
            self.lease.release()
        is_infrastructure = error.owner in INFRASTRUCTURE and not isinstance(error, DivergedError)
        if not is_infrastructure or len(self._turns) >= self._bound:
            return False
        self._turns.append(0 if resetting else len(self.actions) + 1)
        if self.lease is not None:
            # What its sandbox alone was the victim of says nothing about the node.
            lost = {self.lease.node.node_id} if error.owner == "cluster" else set()
            self.avoid |= {self.lease.worker_id, *lost}
        return True

    def compare(self, digests: list[str], failure: MiniSandboxError) -> None:
        """Note the turns that were observed differently. Raises DivergedError when the replay ended early.

        ``failure`` is what made it necessary, and owns what cannot be gone on with."""
        for turn, (seen, again) in enumerate(zip(self._digests, digests, strict=False), 1):
            if seen != again:
                self._diverged.add(turn)
        if len(digests) < len(self._digests):
            turn = len(digests) + 1
            self._diverged.add(turn)
            error = DivergedError(
                f"task {self.task.instance_id}: played again, the episode ended at turn {turn} of {len(self.actions)} "
                f"(it was played again because {failure})"
            )
            error.owner = failure.owner
            raise error

    def info(self) -> dict[str, Any]:
        """How often it was started again (``count``), at which ``turns`` (0: reset), and the ``diverged_turns``."""
        return {"count": len(self._turns), "turns": list(self._turns), "diverged_turns": sorted(self._diverged)}


def failure_in(info: dict[str, Any]) -> MiniSandboxError | None:
    """The failure by which the infrastructure ended an episode, from its last step's info."""
    if info.get("failure_owner") not in INFRASTRUCTURE:
        return None
    error = MiniSandboxError(info["failure"])
    error.owner = info["failure_owner"]
    return error

"""A data loader that knows the next batch, so that its environments can be unpacked while this one is trained on."""

from collections.abc import Iterator
from typing import Any


class LookAhead:
    """SkyRL's training data loader, drawn from one batch early.

    ``upcoming`` is the batch after the one that was last given out, None at the end of an epoch (the next epoch's order
    is not drawn yet). ``state_dict`` is the loader's state as if nothing had been drawn early, so that a run that is
    resumed from it misses no batch. An epoch's order follows from the seed and its number: a run that is resumed has
    the orders of one that was never stopped.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        """``loader``: a torchdata StatefulDataLoader that shuffles by a generator of its own."""
        self._loader, self._seed = loader, seed
        self._epoch = 0
        self._state: dict[str, Any] | None = None
        self._is_resumed = False
        self.upcoming: Any = None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader) if self._is_resumed else self._begin()
        self.upcoming = next(batches, None)
        if self.upcoming is None and self._is_resumed:
            # The state was that of the end of an epoch, which was over: this is the next one.
            batches = self._begin()
            self.upcoming = next(batches, None)
        self._is_resumed = False
        while self.upcoming is not None:
            current = self.upcoming
            self._state = self._loader.state_dict()
            self.upcoming = next(batches, None)
            yield current
        self._state = None

    def _begin(self) -> Iterator[Any]:
        """The batches of the next epoch."""
        self._epoch += 1
        if len(self._loader) > 1:  # else the order is that of rows in the one batch, and of no consequence
            self._loader.generator.manual_seed(self._seed + self._epoch)
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """The loader's, see StatefulDataLoader.state_dict, and the number of the epoch."""
        return {"epoch": self._epoch, "loader": self._loader.state_dict() if self._state is None else self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See StatefulDataLoader.load_state_dict."""
        self._epoch = state["epoch"]
        self._loader.load_state_dict(state["loader"])
        self._is_resumed = True

"""A data loader that knows the next batch, so that its environments can be unpacked while this one is trained on."""

from collections.abc import Iterator
from typing import Any


class LookAhead:
    """SkyRL's training data loader, drawn from one batch early.

    ``upcoming`` is the batch after the one that was last given out, None at the end of an epoch (the next epoch's order
    is not drawn yet). ``state_dict`` is the loader's state as if nothing had been drawn early, so that a run that is
    resumed from it misses no batch.
    """

    def __init__(self, loader: Any) -> None:
        """``loader``: a torchdata StatefulDataLoader."""
        self._loader = loader
        self._state: dict[str, Any] | None = None
        self._is_resumed = False
        self.upcoming: Any = None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        self.upcoming = next(batches, None)
        if self.upcoming is None and self._is_resumed:
            # The state was that of the end of an epoch, which was over: this is the next one.
            batches = iter(self._loader)
            self.upcoming = next(batches, None)
        self._is_resumed = False
        while self.upcoming is not None:
            current = self.upcoming
            self._state = self._loader.state_dict()
            self.upcoming = next(batches, None)
            yield current
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """See StatefulDataLoader.state_dict."""
        return self._loader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See StatefulDataLoader.load_state_dict."""
        self._loader.load_state_dict(state)
        self._is_resumed = True

import pytest

pytest.importorskip("skyrl")

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from trainer_integration.skyrl.lookahead import LookAhead


def loader(seed: int = 3) -> StatefulDataLoader:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return StatefulDataLoader(list(range(10)), batch_size=2, shuffle=True, collate_fn=list, generator=generator)


@pytest.mark.parametrize("epochs", [1, 3])
def test_each_epoch_has_all_rows_and_the_next_batch_is_known(epochs: int) -> None:
    ahead = LookAhead(loader(), 3)
    assert len(ahead) == 5
    orders = []
    for _ in range(epochs):
        known, seen = [], []
        for batch in ahead:
            seen.append(batch)
            known.append(ahead.upcoming)
        assert known == [*seen[1:], None]
        assert sorted(row for batch in seen for row in batch) == list(range(10))
        orders.append(seen)
    assert len({str(order) for order in orders}) == epochs, "each in another order"
    assert orders != [list(LookAhead(loader(), 4)) for _ in range(epochs)], "by the seed"


def drawn(data: LookAhead, count: int) -> list[list[int]]:
    """So many batches, of as many epochs as that takes."""
    seen: list[list[int]] = []
    while True:
        for batch in data:
            seen.append(batch)
            if len(seen) == count:
                return seen


@pytest.mark.parametrize("done", [1, 3, 5, 7, 10])
def test_resumed_from_any_batch_the_rest_is_that_of_a_run_that_was_never_stopped(done: int) -> None:
    whole = drawn(LookAhead(loader(), 3), 20)
    stopped, resumed = LookAhead(loader(), 3), LookAhead(loader(), 3)
    assert drawn(stopped, done) == whole[:done]
    resumed.load_state_dict(stopped.state_dict())
    assert drawn(resumed, 20 - done) == whole[done:]

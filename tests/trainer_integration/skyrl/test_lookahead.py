import pytest

pytest.importorskip("skyrl")

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from trainer_integration.skyrl.lookahead import LookAhead


def loader(seed: int = 3) -> StatefulDataLoader:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return StatefulDataLoader(list(range(10)), batch_size=2, shuffle=True, collate_fn=list, generator=generator)


def test_batches_are_those_of_the_loader_and_the_next_one_is_known() -> None:
    plain = loader()
    ahead = LookAhead(loader())
    assert len(ahead) == len(plain) == 5
    for _ in range(2):  # epochs
        expected = list(plain)
        seen = []
        for number, batch in enumerate(ahead):
            seen.append(batch)
            assert ahead.upcoming == (expected[number + 1] if number < 4 else None)
        assert seen == expected


def interrupted(data: LookAhead | StatefulDataLoader, done: int) -> tuple[list[list[int]], dict]:
    """The batches up to number ``done``, and the state after it, as a trainer saves it."""
    seen: list[list[int]] = []
    while True:
        for batch in data:
            seen.append(batch)
            if len(seen) == done:
                return seen, data.state_dict()


@pytest.mark.parametrize("done", [1, 3, 5, 7])
def test_resumed_from_any_batch_none_is_missed_or_repeated(done: int) -> None:
    """As with the loader alone, whose next epochs are drawn anew after it was resumed; but for the empty epoch that it
    gives if it was interrupted at the end of one, which a trainer would count."""
    seen, state = interrupted(LookAhead(loader()), done)
    expected, plain_state = interrupted(loader(), done)
    assert seen == expected
    resumed, plain = LookAhead(loader()), loader()
    resumed.load_state_dict(state)
    plain.load_state_dict(plain_state)
    if done == 5:
        assert list(plain) == []
    for _ in range(2):
        assert list(resumed) == list(plain)

"""The CPU sampler: one request's tokens depend on the request only."""

import asyncio

import pytest
import torch
from transformers import AutoTokenizer

from trainer_integration.skyrl.models import CausalLM
from trainer_integration.skyrl.sampler import CPUInferenceClient

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14, 15]]


@pytest.fixture
def client(policy):
    return CPUInferenceClient(str(policy), AutoTokenizer.from_pretrained(policy, padding_side="left"), 0)


def _sample(client, prompts, sessions, **params):
    request = {"prompt_token_ids": prompts, "session_ids": sessions, "sampling_params": {"max_tokens": 5, **params}}
    return asyncio.run(client.generate(request))


def test_tokens_do_not_depend_on_the_batch(client, policy):
    other = CPUInferenceClient(str(policy), client._tokenizer, 0)
    together = _sample(other, PROMPTS, ["a", "b", "c"])
    alone = [_sample(client, [prompt], [name]) for prompt, name in zip(PROMPTS, "abc", strict=True)]
    assert together["response_ids"] == [output["response_ids"][0] for output in alone]
    for row, output in zip(together["response_logprobs"], alone, strict=True):
        assert row == pytest.approx(output["response_logprobs"][0], abs=1e-5)


def test_sessions_and_weights_name_different_streams(client):
    samples = [_sample(client, [PROMPTS[0]] * 8, [f"{name}{i}" for i in range(8)]) for name in "xy"]
    client.increment_weight_version()
    samples.append(_sample(client, [PROMPTS[0]] * 8, [f"x{i}" for i in range(8)]))
    responses = [sample["response_ids"] for sample in samples]
    assert responses[0] != responses[1]
    assert responses[0] != responses[2]
    assert _sample(client, [PROMPTS[0]] * 8, [f"x{i}" for i in range(8)])["response_ids"] != responses[2], "asked again"
    assert len({tuple(response) for response in responses[0]}) > 1


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_the_trainers(client, policy, temperature):
    output = _sample(client, PROMPTS, ["a", "b", "c"], temperature=temperature)
    model = CausalLM(str(policy))
    for prompt, response, logprobs in zip(PROMPTS, output["response_ids"], output["response_logprobs"], strict=True):
        ids = torch.tensor([prompt + response])
        expected = model(ids, len(response), torch.ones_like(ids), temperature=temperature)
        assert logprobs == pytest.approx(expected[0].tolist(), abs=1e-5)


def test_a_prompt_is_read_once_with_the_same_weights_and_anew_with_others(client):
    sizes = []
    client._model.register_forward_hook(lambda model, inputs, output: sizes.append(len(output.logits)))
    for sessions in (["a", "b"], ["c", "d"]):
        _sample(client, PROMPTS[:2], sessions, max_tokens=1)
    _sample(client, PROMPTS, ["e", "f", "g"], max_tokens=1)
    assert sizes == [2, 1]
    weights = {name: weight.clone() for name, weight in client._model.state_dict().items()}
    weights["lm_head.weight"].zero_()
    asyncio.run(client.update_named_weights({"state_dict": weights}))
    alike = -torch.tensor(float(len(client._tokenizer))).log().item()
    for (logprob,) in _sample(client, PROMPTS, ["h", "i", "j"], max_tokens=1)["response_logprobs"]:
        assert logprob == pytest.approx(alike, abs=1e-5)
    assert sizes == [2, 1, 3]


def test_temperature_zero_is_greedy(client):
    first, second = (
        _sample(client, PROMPTS, sessions, temperature=0.0) for sessions in (["a", "b", "c"], ["d", "e", "f"])
    )
    assert first["response_ids"] == second["response_ids"]


def test_it_draws_from_the_distribution(client, policy):
    count = 2000
    output = _sample(client, [PROMPTS[0]] * count, list(range(count)), max_tokens=1)
    ids = torch.tensor([PROMPTS[0]])
    logits = CausalLM(str(policy)).model(ids).logits[0, -1]
    found = torch.bincount(torch.tensor([r[0] for r in output["response_ids"]]), minlength=len(logits)) / count
    assert (found - logits.softmax(-1)).abs().max() < 0.05


def test_a_request_that_fails_does_not_stop_the_others(client):
    async def both():
        bad = client.generate({"prompt_token_ids": [[10**9]], "sampling_params": {"max_tokens": 1}})
        with pytest.raises(IndexError):
            await bad
        return await client.generate({"prompt_token_ids": [PROMPTS[0]], "sampling_params": {"max_tokens": 1}})

    assert len(asyncio.run(both())["response_ids"][0]) == 1

"""SkyRL's inference client on a CPU: samples in this process, all waiting requests in one batch."""

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface
from torch import Tensor

from trainer_integration.skyrl.conversation import stop_tokens
from trainer_integration.skyrl.models import load_causal_lm, positions

MAX_BATCH = 256  # rows per forward pass: bounds memory when very many episodes ask at once


@dataclass
class _Request:
    prompt: list[int]
    params: dict[str, Any]
    key: str  # names the request, so that its random numbers do not depend on who else is in the batch
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: str = "length"


class CPUInferenceClient(InferenceEngineInterface):
    """Token-in-token-out sampling from the full distribution at a temperature; 0 is greedy.

    Requests that arrive while a batch runs are taken together in the next one. A request draws from a
    random stream named by seed, weights, session id, prompt and how often that was asked for with
    these weights, so one seed gives one curve however the requests happen to be batched.
    """

    def __init__(self, path: str, tokenizer: Any, seed: int) -> None:
        self._path = path
        self._tokenizer = tokenizer
        self._seed = seed
        self._model = load_causal_lm(path).eval()
        self._stops = stop_tokens(tokenizer, self._model.generation_config.eos_token_id)
        self._waiting: list[tuple[_Request, asyncio.Future[None]]] = []
        self._runner: asyncio.Task[None] | None = None
        self._weights = threading.Lock()  # for as long as a forward pass, or replacing them
        self._read: dict[tuple[int, ...], Tensor] = {}  # with these weights, see _first_logits
        self.weight_version = 0
        self._asked: Counter[str] = Counter()  # requests by name, of these weights

    @property
    def model_name(self) -> str:
        return self._path

    def increment_weight_version(self) -> None:
        self.weight_version += 1
        self._asked.clear()

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        prompts = input_batch.get("prompt_token_ids")
        if prompts is None:
            prompts = [
                self._tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=False)
                for p in input_batch["prompts"]
            ]
        sessions: list[Hashable] = input_batch.get("session_ids") or list(range(len(prompts)))
        requests = [
            _Request(prompt, input_batch["sampling_params"], self._key(f"{session}/{len(prompt)}"))
            for prompt, session in zip(prompts, sessions, strict=True)
        ]
        await asyncio.gather(*(self._enqueue(request) for request in requests))
        tokens = [request.tokens for request in requests]
        return {
            "responses": self._tokenizer.batch_decode(tokens, skip_special_tokens=True),
            "response_ids": tokens,
            "stop_reasons": [request.stop_reason for request in requests],
            "response_logprobs": [request.logprobs for request in requests],
            "prompt_logprobs": None,
            "rollout_expert_indices": None,
            "rollout_sample_support": None,
        }

    def _key(self, name: str) -> str:
        again = self._asked[name]
        self._asked[name] += 1
        return f"{self._seed}/{self.weight_version}/{name}" + (f"/{again}" if again else "")

    def _enqueue(self, request: _Request) -> "asyncio.Future[None]":
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((request, done))
        if self._runner is None or self._runner.done():
            # The task starts at the loop's next turn: all that ask in this turn are in its first batch.
            self._runner = asyncio.create_task(self._run())
        return done

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            try:
                await asyncio.to_thread(self._sample, [request for request, _ in batch])
            except Exception as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)
                continue
            for _, done in batch:
                if not done.done():
                    done.set_result(None)

    @torch.no_grad()
    def _sample(self, requests: list[_Request]) -> None:
        # A prompt that several rows share, as a group's first turn does, is read once.
        shared: dict[tuple[int, ...], list[int]] = {}
        for number, request in enumerate(requests):
            shared.setdefault(tuple(request.prompt), []).append(number)
        places = torch.empty(len(requests), dtype=torch.long)
        for place, numbers in enumerate(shared.values()):
            places[numbers] = place
        ids, mask = self._pad(list(shared))
        limits = [int(request.params["max_tokens"]) for request in requests]
        temperatures = torch.tensor([[float(request.params.get("temperature", 1.0))] for request in requests])
        uniforms = np.stack([_uniforms(request.key, max(limits)) for request in requests])
        running = np.ones(len(requests), dtype=bool)
        cache = None
        for position in range(max(limits)):
            if max(limits) == 1:
                logits = self._first_logits(list(shared))
            else:
                with self._weights:
                    output = self._model(
                        ids,
                        attention_mask=mask,
                        position_ids=positions(mask)[:, -ids.shape[1] :],
                        past_key_values=cache,
                        logits_to_keep=1,
                    )
                cache, logits = output.past_key_values, output.logits[:, -1]
            if position == 0:
                logits, mask = logits[places], mask[places]
                if cache is not None:
                    cache.batch_select_indices(places)
            log_probs = (logits / temperatures.clamp(min=1e-6)).log_softmax(-1)
            tokens = _draw(log_probs, torch.from_numpy(uniforms[:, position]), greedy=temperatures[:, 0] == 0)
            chosen = log_probs.gather(-1, tokens[:, None])[:, 0].tolist()
            for row in running.nonzero()[0]:
                request = requests[row]
                request.tokens.append(int(tokens[row]))
                request.logprobs.append(chosen[row])
                if request.tokens[-1] in self._stops:
                    request.stop_reason = "stop"
                running[row] = request.stop_reason != "stop" and len(request.tokens) < limits[row]
            if not running.any():
                return
            mask = torch.cat([mask, torch.from_numpy(running).long()[:, None]], -1)
            ids = tokens[:, None]

    def _first_logits(self, prompts: list[tuple[int, ...]]) -> Tensor:
        """What follows each prompt, float[prompts, vocabulary]. A prompt is read once with the same weights: episodes
        of a group that ask one after the other, as in asynchronous training, cost no more than all at once."""
        with self._weights:
            if new := [prompt for prompt in prompts if prompt not in self._read]:
                ids, mask = self._pad(new)
                output = self._model(ids, attention_mask=mask, position_ids=positions(mask), logits_to_keep=1)
                self._read |= zip(new, output.logits[:, -1], strict=True)
            return torch.stack([self._read[prompt] for prompt in prompts])

    def _pad(self, prompts: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        width = max(map(len, prompts))
        pad = self._tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        return ids, mask

    async def update_named_weights(self, request: Any) -> None:
        """Between two forward passes: a response that is being sampled goes on with the new weights, and each token's
        log-probability is that of the weights that drew it."""
        await asyncio.to_thread(self._load, request["state_dict"])

    def _load(self, weights: dict[str, Tensor]) -> None:
        with self._weights:
            self._model.load_state_dict(weights)
            self._read.clear()

    async def pause_generation(self) -> None:
        """Nothing to pause: ``update_named_weights`` waits for the running forward pass."""

    async def get_world_size(self) -> tuple[int, int]:
        return 1, 1

    async def wake_up(self, *args: Any, **kwargs: Any) -> None:
        """The model is always in memory."""

    async def sleep(self, *args: Any, **kwargs: Any) -> None:
        """The model is always in memory."""

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        """No cache outlives a batch."""

    async def resume_generation(self) -> None:
        """See ``pause_generation``."""

    async def finish_session(self, session_id: str) -> None:
        """Sessions hold nothing here."""

    async def teardown(self) -> None:
        """Nothing to stop: this is no server."""

    # Only the token interface exists in process; SkyRL's own loop and our generator use no other.
    def get_endpoint_url(self) -> str:
        raise NotImplementedError("the CPU sampler has no HTTP endpoint")

    async def chat_completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError("the CPU sampler takes tokens only")

    async def render_chat_completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError("the CPU sampler takes tokens only")

    async def completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError("the CPU sampler takes tokens only")

    async def load_lora_adapter(self, lora_name: str, lora_path: str) -> dict[str, Any]:
        raise NotImplementedError("the CPU sampler takes whole weights only")


def _uniforms(key: str, count: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.Philox(seed)).random(count)


def _draw(log_probs: Tensor, uniforms: Tensor, greedy: Tensor) -> Tensor:
    """One token per row by the inverse of the cumulative distribution, in float64."""
    cumulative = log_probs.double().exp().cumsum(-1)
    drawn = torch.searchsorted(cumulative, (uniforms * cumulative[:, -1])[:, None])[:, 0]
    return torch.where(greedy, log_probs.argmax(-1), drawn.clamp(max=log_probs.shape[-1] - 1))

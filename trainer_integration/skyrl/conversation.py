"""The tokens between two turns, exactly as the chat template writes them, without ever re-tokenising the past."""

from typing import Any


class Conversation:
    """One chat as tokens: a prompt, then sampled tokens (trained on) and observations (not).

    ``response_ids``, ``loss_mask`` and ``logprobs`` always have the same length; observation tokens have
    mask 0 and logprob 0.0, as SkyRL expects.
    """

    def __init__(self, tokenizer: Any, messages: list[dict[str, str]], template_kwargs: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._template_kwargs = template_kwargs
        self.prompt_ids = self._render(messages, add_generation_prompt=True)
        self.response_ids: list[int] = []
        self.loss_mask: list[int] = []
        self.logprobs: list[float] = []

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.response_ids

    def add_sampled(self, tokens: list[int], logprobs: list[float]) -> None:
        """Append what the model sampled, verbatim, its end-of-turn token included where it sampled one."""
        self.response_ids += tokens
        self.loss_mask += [1] * len(tokens)
        self.logprobs += logprobs

    def observation_ids(self, observation: str) -> list[int]:
        """What the template puts between a sampled turn and the next one, for this observation as user message."""
        eos = self._tokenizer.eos_token_id
        # A chat of which only the end matters: templates may treat the first message and the last turn specially.
        base = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        head = self._render(base)
        end_of_turn = len(head) - head[::-1].index(eos) if eos in head else len(head)
        full = self._render([*base, {"role": "user", "content": observation}], add_generation_prompt=True)
        # The model was cut before its end of turn: the template would have written one.
        cut = not self.response_ids or self.response_ids[-1] != eos
        return ([eos] if cut else []) + full[end_of_turn:]

    def add_observation(self, tokens: list[int]) -> None:
        self.response_ids += tokens
        self.loss_mask += [0] * len(tokens)
        self.logprobs += [0.0] * len(tokens)

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool = False) -> list[int]:
        return self._tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=False,
            **self._template_kwargs,
        )

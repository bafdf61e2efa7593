"""The tokens between two turns, exactly as the chat template writes them, without ever re-tokenising the past."""

from typing import Any

from minisandbox_ray.errors import ConfigError

# Stands for a turn of the model's where a template is asked what follows it. No template changes it: a word, no spaces
# at its ends, no mark-up.
TURN = "MINISANDBOXTURN"
THOUGHT = ("<think>", "</think>")


def answer(text: str) -> str:
    """What a model says once it has thought, where it marks its thoughts as Qwen3 and DeepSeek-R1 do.

    A text that was cut in the middle of a thought answers nothing. Commands in thoughts are no actions.
    """
    opening, closing = THOUGHT
    before, closed, after = text.rpartition(closing)
    return after if closed else before if opening in text else after


def after_turn(tokenizer: Any, observation: str, template_kwargs: dict[str, Any]) -> list[int]:
    """What the template writes after a turn of the model's: its end, the observation as a user's message, and the start
    of the next turn. Raises ConfigError for a template that hides the turn.
    """
    # Not the first turn and not the last one, which templates may treat specially. Qwen3's, for one, writes an empty
    # thought into the last turn, and takes the thoughts out of those before.
    messages = [("user", ""), ("assistant", TURN), ("user", observation)]
    text = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in messages],
        add_generation_prompt=True,
        tokenize=False,
        **template_kwargs,
    )
    _, found, rest = text.partition(TURN)
    if not found:
        raise ConfigError("the model's chat template leaves out what an assistant says: it cannot be trained here")
    return tokenizer(rest, add_special_tokens=False).input_ids


def end_of_turn(tokenizer: Any, tokens: list[int]) -> int | None:
    """Index, in what follows a turn, of the special token that ends the turn; None if the template has none."""
    special = set(tokenizer.all_special_ids)
    special |= {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    return next((index for index, token in enumerate(tokens) if token in special), None)


def stop_tokens(tokenizer: Any, eos: int | list[int] | None) -> set[int]:
    """Tokens at which a turn ends: the tokenizer's and the model's (``eos`` of its generation config), and the one that
    the chat template writes, which may be another, as with base models."""
    stops = {tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])}
    if tokenizer.chat_template:
        following = after_turn(tokenizer, "", {})
        index = end_of_turn(tokenizer, following)
        stops.add(None if index is None else following[index])
    return stops - {None}


class Conversation:
    """One chat as tokens: a prompt, then sampled tokens (trained on) and observations (not).

    A turn stays what the model sampled and saw, also where the template would write it otherwise when it renders the
    past: thoughts are kept, where Qwen3's template takes them out, and spaces at the ends, where Llama-3's trims them.
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
        following = after_turn(self._tokenizer, observation, self._template_kwargs)
        end = end_of_turn(self._tokenizer, following)
        if end is not None and self.response_ids and self.response_ids[-1] == following[end]:
            return following[end + 1 :]
        # The model was cut before its end of turn, or ended it with another token: the template writes its own.
        return following

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

"""The quickstart's policy: a small Llama from scratch whose every action is one token, so that chance can find it."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from minisandbox_ray.config import PolicyConfig

SPECIAL = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>")
ROLES = ("system", "user", "assistant")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def action_text(command: str) -> str:
    """The whole action that stands behind one token."""
    return f"```bash\n{command}\n```"


def telling_words(statements: list[str], count: int) -> list[str]:
    """Up to ``count`` words that tell the statements apart: an equal share from each, the rarest first.

    A word that every statement holds tells nothing and is left out. Deterministic in its input.
    """
    texts = [Counter(WORD.findall(statement)) for statement in statements]
    spread = Counter(word for text in texts for word in text)
    ranked = [
        sorted((word for word in text if spread[word] < max(2, len(texts))), key=lambda w: (spread[w], -text[w], w))
        for text in texts
    ]
    chosen: dict[str, None] = {}
    for rank in range(max(map(len, ranked), default=0)):
        for words in ranked:
            if rank < len(words) and len(chosen) < count:
                chosen.setdefault(words[rank])
    return sorted(chosen)


def build_tokenizer(words: list[str], commands: list[str]) -> PreTrainedTokenizerFast:
    """One token per known word, one per gap of unknown text, one per whole action."""
    vocabulary = [*SPECIAL, *dict.fromkeys([*ROLES, *words])]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    known = "|".join(re.escape(word) for word in sorted(vocabulary[len(SPECIAL) :], key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rf"\b({known})\b"), behavior="isolated"),
            pre_tokenizers.Split(Regex(r"^\W+$"), behavior="removed"),
        ]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.add_tokens([AddedToken(action_text(command), normalized=False) for command in commands])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_policy(
    config: PolicyConfig,
    *,
    prompts: list[list[dict[str, str]]],
    commands: list[str],
    context: int,
    seed: int,
    path: Path,
) -> None:
    """Write model and tokenizer to ``path`` as a normal checkpoint. The same arguments give the same weights.

    ``prompts`` are the tasks' first messages, ``commands`` what the policy may do, ``context`` the longest sequence
    in tokens.
    """
    statements = ["\n".join(message["content"] for message in prompt) for prompt in prompts]
    tokenizer = build_tokenizer(telling_words(statements, config.words), commands)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        # The Llama type: for others transformers 5 replaces a tokenizer of our own by the family's, without a word.
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.width,
            intermediate_size=2 * config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=context,
            tie_word_embeddings=False,
            initializer_range=0.15,  # with the default of 0.02 attention takes very long to learn anything
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        # Nearly equal chances for all tokens at first, so that exploration reaches every command of every task.
        model.lm_head.weight *= 0.3
    tokenizer.save_pretrained(path)
    model.save_pretrained(path)
    _check_round_trip(path, commands)


def _check_round_trip(path: Path, commands: list[str]) -> None:
    loaded: Any = AutoTokenizer.from_pretrained(path)
    for command in commands:
        text = action_text(command)
        ids = loaded(text).input_ids
        assert len(ids) == 1 and loaded.decode(ids) == text, f"the tokenizer in {path} does not keep {text!r} whole"

"""Chat templates that behave as those of published models do with chats that call no tools, and a tokenizer for them.

Written for these tests after the models' own (``tokenizer_config.json`` of the named model), which hold more: tools and
images. What tells them apart is kept: default system messages, dates, trimmed messages, thoughts that vanish.
"""

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = (
    "cd /testbed && sed -i 's/<=/</' src/module.py; python -m pytest -q tests\nexit code 1: AssertionError, 3 failed "
)


@dataclass(frozen=True)
class Family:
    """How the models of a family write chats."""

    template: str
    special: tuple[str, ...]
    end_of_turn: str
    eos: str
    """What the tokenizer calls the end of a sequence; base models have another one than their templates write."""


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _with_system(text: str) -> str:
    """ChatML with a system message for chats that have none."""
    default = "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nSYSTEM<|im_end|>\n' }}{% endif %}"
    return default.replace("SYSTEM", text) + CHATML


# Qwen/Qwen3-8B: thoughts vanish from turns before the last question, and the last turn gets an empty one.
QWEN3 = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m['role'] != 'assistant' %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% else %}{% set said = m['content'].split('</think>')[-1].lstrip('\n') %}{% set thought = '' %}"
    "{% if '</think>' in m['content'] %}"
    "{% set thought = m['content'].split('</think>')[0].split('<think>')[-1].strip('\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
    "{{ said + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}"
)
# meta-llama/Llama-3.1-8B-Instruct: a system message with today's date in every chat, and all messages trimmed.
LLAMA3 = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}"
    "{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n' }}"
    "{{ 'Today Date: ' + (date_string if date_string is defined else strftime_now('%d %b %Y')) + '\n\n' }}"
    "{{ system + '<|eot_id|>' }}"
    "{% for m in rest %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{{ m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# google/gemma-2-9b-it: no system message, roles of its own, roles must take turns.
GEMMA2 = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}"
    "{{ m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
HEADERS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
SMOLLM_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

FAMILIES = {
    "chatml": Family(CHATML, IM, "<|im_end|>", "<|im_end|>"),
    "qwen2.5": Family(_with_system(QWEN_SYSTEM), IM, "<|im_end|>", "<|im_end|>"),
    "qwen2.5-base": Family(_with_system(QWEN_SYSTEM), IM, "<|im_end|>", "<|endoftext|>"),
    "qwen3": Family(QWEN3, IM, "<|im_end|>", "<|im_end|>"),
    "smollm2": Family(_with_system(SMOLLM_SYSTEM), IM, "<|im_end|>", "<|im_end|>"),
    "llama-3.1": Family(LLAMA3, HEADERS, "<|eot_id|>", "<|eot_id|>"),
    "llama-3.1-base": Family(LLAMA3, HEADERS, "<|eot_id|>", "<|end_of_text|>"),
    "gemma-2": Family(GEMMA2, ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", "<eos>"),
}


def make_tokenizer(family: Family) -> Any:
    """Byte-level BPE as the models have, learned from one line, with the family's special tokens and template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 2, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in family.special])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in ("<think>", "</think>")])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=family.eos,
        bos_token=next((token for token in family.special if "begin" in token or token == "<bos>"), None),
        pad_token=family.special[0],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = family.template
    return fast

"""What the trainer sees of a chat is what the model's chat template writes, and what the model sampled."""

import random
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is not installed")

from chat_templates import FAMILIES, TEXT, make_tokenizer

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout.actions import Command, Malformed, parse_action
from trainer_integration.skyrl.conversation import Conversation, answer, stop_tokens

WORDS = [
    *TEXT.split(),
    "```bash\nls\n```",
    "é→\U0001f600",
    "\t",
    "  ",
    "\n\n",
    "{{ x }}",
    "<|",
    "|>",
    "</s>",
    "user",
    "assistant",
]
KWARGS = {"date_string": "26 Jul 2024"}


def _text(choice: random.Random) -> str:
    return (
        "".join(choice.choice(WORDS) + choice.choice(["", " "]) for _ in range(choice.randint(1, 12))).strip() or "ok"
    )


def _split(tokenizer: Any, text: str, choice: random.Random) -> list[int]:
    """The text in tokens as a model may sample them: cut at odd places, not as the tokenizer would."""
    where = sorted(choice.sample(range(len(text) + 1), k=min(2, len(text))))
    parts = [text[a:b] for a, b in zip([0, *where], [*where, len(text)], strict=True)]
    return [token for part in parts for token in tokenizer(part, add_special_tokens=False).input_ids]


@pytest.fixture(params=FAMILIES)
def family(request: Any) -> str:
    return request.param


@pytest.mark.parametrize("seed", range(40))
def test_a_chat_is_the_rendered_one_and_what_was_sampled_is_trained_on(family, seed):
    choice, tokenizer = random.Random(seed), make_tokenizer(FAMILIES[family])
    end = tokenizer.convert_tokens_to_ids(FAMILIES[family].end_of_turn)
    system = choice.random() < 0.5 and family != "gemma-2"
    messages = [{"role": "system", "content": _text(choice)}] if system else []
    messages.append({"role": "user", "content": _text(choice)})
    chat = Conversation(tokenizer, messages, KWARGS)
    # The oracle: the template's own text, for chats that it does not change. (Thoughts: see below.)
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **KWARGS)
    sampled: list[tuple[int, int, list[int]]] = []
    for _ in range(choice.randint(1, 4)):
        said = _text(choice)
        tokens = _split(tokenizer, said, choice)
        cut = choice.random() < 0.3
        sampled.append((len(chat.response_ids), len(tokens) + (not cut), tokens + [end] * (not cut)))
        chat.add_sampled(sampled[-1][2], [-0.5] * sampled[-1][1])
        observation = _text(choice)
        chat.add_observation(chat.observation_ids(observation))
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": observation}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **KWARGS)
        assert tokenizer.decode(chat.ids) == rendered
    trained = [0] * len(chat.response_ids)
    for start, count, tokens in sampled:
        assert chat.response_ids[start : start + count] == tokens
        trained[start : start + count] = [1] * count
    assert chat.loss_mask == trained
    assert chat.logprobs == [-0.5 * bit for bit in trained]
    assert len(rendered) > sum(len(message["content"]) for message in messages)


@pytest.mark.parametrize("thinking", [True, False])
def test_thoughts_are_kept_as_they_were_sampled(thinking):
    """Qwen3's template takes them out of the past, and writes an empty one where it is told that there are none."""
    tokenizer = make_tokenizer(FAMILIES["qwen3"])
    kwargs = {} if thinking else {"enable_thinking": False}
    chat = Conversation(tokenizer, [{"role": "user", "content": "mend it"}], kwargs)
    turns = ["<think>\nfirst ls\n</think>\n\n```bash\nls\n```", "<think>\ndone\n</think>\n\nsubmit"]
    empty = "" if thinking else "<think>\n\n</think>\n\n"
    text = f"<|im_start|>user\nmend it<|im_end|>\n<|im_start|>assistant\n{empty}"
    for turn in turns:
        chat.add_sampled(
            tokenizer(turn + "<|im_end|>").input_ids, [0.0] * len(tokenizer(turn + "<|im_end|>").input_ids)
        )
        chat.add_observation(chat.observation_ids("a.py"))
        text += f"{turn}<|im_end|>\n<|im_start|>user\na.py<|im_end|>\n<|im_start|>assistant\n{empty}"
    assert tokenizer.decode(chat.ids) == text


def test_spaces_are_kept_as_they_were_sampled():
    """Llama-3's template trims them when it renders the past."""
    tokenizer = make_tokenizer(FAMILIES["llama-3.1"])
    chat = Conversation(tokenizer, [{"role": "user", "content": "x"}], KWARGS)
    chat.add_sampled(
        tokenizer("\n\n ls \n<|eot_id|>").input_ids, [0.0] * len(tokenizer("\n\n ls \n<|eot_id|>").input_ids)
    )
    chat.add_observation(chat.observation_ids("y"))
    assert "\n\n ls \n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\ny<|eot_id|>" in tokenizer.decode(chat.ids)


def test_a_turn_that_ended_with_another_token_gets_the_templates_end_too():
    tokenizer = make_tokenizer(FAMILIES["qwen2.5"])
    chat = Conversation(tokenizer, [{"role": "user", "content": "x"}], {})
    chat.add_sampled(tokenizer("ls<|endoftext|>").input_ids, [0.0] * len(tokenizer("ls<|endoftext|>").input_ids))
    chat.add_observation(chat.observation_ids("y"))
    assert "ls<|endoftext|><|im_end|>\n<|im_start|>user\ny" in tokenizer.decode(chat.ids)


def test_the_model_stops_where_its_template_ends_a_turn(family):
    tokenizer = make_tokenizer(FAMILIES[family])
    names = {tokenizer.convert_ids_to_tokens(token) for token in stop_tokens(tokenizer, [tokenizer.eos_token_id])}
    assert names == {FAMILIES[family].end_of_turn, FAMILIES[family].eos}


def test_a_template_that_hides_the_turn_is_refused():
    tokenizer = make_tokenizer(FAMILIES["chatml"])
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    chat = Conversation(tokenizer, [{"role": "user", "content": "x"}], {})
    with pytest.raises(ConfigError, match="chat template leaves out what an assistant says"):
        chat.observation_ids("y")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\n```bash\nrm -rf /\n```\n</think>\n\n```bash\nls\n```", Command("ls")),
        ("try ```bash\nls\n``` it\n</think>```bash\nls -l\n```", Command("ls -l")),  # the opening was in the prompt
        ("```bash\nls\n```", Command("ls")),
        ("<think>\n```bash\nls\n```", Malformed("Found no command block.")),  # cut while it thought
    ],
)
def test_commands_in_thoughts_are_no_actions(text, expected):
    assert parse_action(answer(text)) == expected

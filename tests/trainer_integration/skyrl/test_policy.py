"""The quickstart's policy and its tokenizer."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from minisandbox_ray.config import PolicyConfig
from trainer_integration.skyrl.policy import action_text, build_policy, telling_words

STATEMENTS = [
    "In inflect a test fails: test_plural. E assert plural('ox') == 'oxen'",
    "In natsort a test fails: test_keys. E assert keys(3) == 4",
    "In slugify a test fails: test_slug. E TypeError: slug",
]
COMMANDS = ["sed -i 's/a/b/' x.py", "sed -i 's/a/b/' x.py | grep .", 'python - <<"E"\nprint(1)\nE']


def _build(path: Path, seed: int = 0) -> Path:
    prompts = [[{"role": "user", "content": statement}] for statement in STATEMENTS]
    build_policy(PolicyConfig(width=32), prompts=prompts, commands=COMMANDS, context=64, seed=seed, path=path)
    return path


def test_each_command_is_one_token_whose_text_is_the_whole_action(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(_build(tmp_path))
    for command in COMMANDS:
        ids = tokenizer(action_text(command)).input_ids
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == f"```bash\n{command}\n```"


def test_unknown_text_is_one_token_per_gap(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(_build(tmp_path))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("something unheard of plural, ??? and more slug").input_ids)
    assert tokens == ["<unk>", "plural", "<unk>", "slug"]


def test_words_that_tell_tasks_apart_come_first():
    words = telling_words(STATEMENTS, 6)
    assert {"inflect", "natsort", "slugify"} & set(words)
    assert not {"fails", "In", "test"} & set(telling_words(STATEMENTS, 100)), "they are in every statement"
    assert words == telling_words(STATEMENTS, 6)
    assert len(words) == 6


def test_the_same_seed_gives_the_same_checkpoint(tmp_path):
    weights = [
        AutoModelForCausalLM.from_pretrained(_build(tmp_path / name, seed)).lm_head.weight
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])

"""A real language model on a CPU: its own tokenizer and template, and two steps of GRPO over all its weights."""

import importlib.util

import pytest

pytest.importorskip("skyrl", reason="SkyRL is not installed")

from transformers import AutoTokenizer

from minisandbox_ray.errors import ConfigError
from trainer_integration.skyrl import smollm
from trainer_integration.skyrl.conversation import Conversation, stop_tokens

MODEL = smollm.checkpoint()  # of the user's cache: other tests' fixtures have caches of their own
there = pytest.mark.skipif(
    not (MODEL / "config.json").exists(),
    reason="SmolLM2 is not in the cache: python -m trainer_integration.skyrl.smollm fetches it",
)


@there
def test_its_chats_are_the_rendered_ones():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    messages = [{"role": "user", "content": "mend  it\n\n"}]
    chat = Conversation(tokenizer, messages, {})
    for said, observation in (("```bash\nls -l\n```", "a.py\t→ é"), ("def f(x):\n    return x", "exit code 1")):
        tokens = tokenizer(said + "<|im_end|>").input_ids
        chat.add_sampled(tokens, [0.0] * len(tokens))
        chat.add_observation(chat.observation_ids(observation))
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": observation}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(chat.ids) == rendered
    assert "named SmolLM" in rendered
    assert chat.ids == tokenizer(rendered).input_ids
    assert {tokenizer.convert_ids_to_tokens(token) for token in stop_tokens(tokenizer, 2)} == {"<|im_end|>"}


@there
@pytest.mark.slow
def test_two_steps_of_training(skyrl_cfg, tasks, train):
    del tasks[1:]
    cfg = skyrl_cfg(
        **{
            "trainer.policy.model.path": str(MODEL),
            "trainer.policy.optimizer_config.lr": 1e-5,
            "trainer.max_training_steps": 2,
            "trainer.train_batch_size": 1,
            "trainer.policy_mini_batch_size": 1,
            "trainer.critic_mini_batch_size": 1,
            "trainer.micro_forward_batch_size_per_gpu": 2,
            "trainer.micro_train_batch_size_per_gpu": 2,
            "generator.n_samples_per_prompt": 2,
            "generator.sampling_params.max_generate_length": 8,
        }
    )
    recorder, _ = train(cfg, turns=2)
    assert len(recorder.rows) == 2
    for row in recorder.rows:
        assert row["policy/rollout_train_logprobs_abs_diff_max"] < 1e-4


def test_without_gguf_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"gguf is not installed: pip install 'minisandbox-ray\[smollm\]'"):
        smollm.provide()

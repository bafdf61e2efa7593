"""Fine-tuning: SkyRL's SFT trainer, in the tokens that rollouts have, to a checkpoint that a training takes."""

import json
from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is not installed")

from chat_templates import FAMILIES, make_tokenizer

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout.trajectory import Trajectory, Turn
from trainer_integration.skyrl.policy import action_text
from trainer_integration.skyrl.sft import SftConfig, load, read_chats, run, skyrl_configs, tokenize

CONFIGS = Path(__file__).parents[3] / "configs"
CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "mend it"},
    {"role": "assistant", "content": "look\n\n```bash\nls\n```"},
    {"role": "user", "content": "a.py"},
    {"role": "assistant", "content": "submit"},
]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gemma-2"])
def test_the_loss_is_on_the_assistants_turns_and_their_ends_only(family):
    tokenizer = make_tokenizer(FAMILIES[family])
    row = tokenize(tokenizer, CHAT, {"date_string": "26 Jul 2024"})
    rendered = tokenizer.apply_chat_template(CHAT[:-1], tokenize=False, date_string="26 Jul 2024")
    assert tokenizer.decode(row["input_ids"]).startswith(rendered)
    parts, before = [], 0
    for token, bit in zip(row["input_ids"], row["loss_mask"], strict=True):
        if bit and not before:
            parts.append([])
        if bit:
            parts[-1].append(token)
        before = bit
    end = FAMILIES[family].end_of_turn
    assert [tokenizer.decode(part) for part in parts] == [CHAT[2]["content"] + end, CHAT[4]["content"] + end]


def _write(path: Path, chats: list[list[dict[str, str]]]) -> Path:
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in chats))
    return path


def test_a_model_learns_what_solved_its_tasks_and_can_be_trained_on(tmp_path, policy, tasks, skyrl_cfg, train):
    chats = [
        [{"role": "user", "content": task.problem_statement}, {"role": "assistant", "content": action_text(task.right)}]
        for task in tasks
    ]
    config = SftConfig(
        model=str(policy),
        data=[_write(tmp_path / "chats.jsonl", chats)],
        run_dir=tmp_path / "sft",
        max_length=128,
        skyrl={"batch_size": 4, "micro_train_batch_size_per_gpu": 4, "num_steps": 30, "optimizer_config": {"lr": 3e-3}},
    )
    model = run(config)
    losses = [json.loads(line)["train/loss"] for line in (tmp_path / "sft/metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 30
    assert losses[-1] < 0.1 * losses[0]
    steps = {"trainer.max_training_steps": 1}
    before, _ = train(skyrl_cfg(**steps))
    after, _ = train(skyrl_cfg(**steps, **{"trainer.policy.model.path": str(model)}))
    assert before.curve()[0] < 0.5
    assert after.curve()[0] > 0.9


def test_of_trajectories_the_resolved_ones_are_learned_with_the_trainings_prompt(tmp_path):
    def trajectory(name: str, *, resolved: bool) -> bytes:
        turn = Turn(action="```bash\nls\n```", observation="x", seconds=0.1)
        return Trajectory(
            instance_id=name, sample=0, seed=0, environment="e", policy="p", prompt="mend", turns=[turn], diff="",
            reward=float(resolved), resolved=resolved, graded=None, failure_owner=None, failure="", replay=None,
            seconds={}, node="", versions={},
        ).line()  # fmt: skip

    lines = trajectory("a", resolved=True) + trajectory("b", resolved=False)
    (tmp_path / "trajectories.jsonl").write_bytes(lines)
    chats = list(read_chats(SftConfig(model="m", data=[tmp_path], system="s", user="Do: {problem_statement}")))
    assert chats == [
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "Do: mend"},
            {"role": "assistant", "content": "```bash\nls\n```"},
        ]
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"messages": [{"role": "user", "content": "x"}]}\n', "line 1: not user and assistant in turns"),
        ('{"messages": 3}\n', "line 1: no chat messages"),
        ("", "nothing to learn from in .*: no chats"),
    ],
)
def test_bad_data_is_told(tmp_path, policy, content, message):
    (tmp_path / "chats.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=message):
        run(SftConfig(model=str(policy), data=[tmp_path / "chats.jsonl"], run_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_chats_that_are_too_long_are_told(tmp_path, policy):
    data = _write(tmp_path / "chats.jsonl", [CHAT])
    with pytest.raises(ConfigError, match="all 1 chats are longer than max_length=3 tokens"):
        run(SftConfig(model=str(policy), data=[data], run_dir=tmp_path / "run", max_length=3))


@pytest.mark.parametrize("name", ["sft_smollm_cpu", "sft_gpu"])
def test_the_configurations_pass_skyrls_own_validation(name):
    config = load([f"config={CONFIGS / name}.yaml", "model=/models/mine"])
    cfg, skyrl = skyrl_configs(config, config.model, Path("/run"))
    assert cfg.strategy == "fsdp"
    assert skyrl.trainer.policy.model.path == "/models/mine"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("skyrl.batch=1", "unknown key skyrl.batch"),
        ("skyrl.model.path=x", "skyrl.model.path follows from"),
        ("skyrl.batch_size=0", "SkyRL refuses the configuration: batch_size must be > 0"),
        ("modle=x", "unknown key modle; did you mean model"),
        ("data=[]", "bad value for data"),
    ],
)
def test_mistakes(override, message):
    with pytest.raises(ConfigError, match=message):
        skyrl_configs(load([f"config={CONFIGS / 'sft_smollm_cpu'}.yaml", override]), "m", Path("/run"))

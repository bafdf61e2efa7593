"""The training configuration: every mistake is one line that names the key."""

import ast
import inspect
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel

from minisandbox_ray.config import DebugConfig, PolicyConfig, PromptConfig, TrainConfig, load_config
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks.quickstart import QuickstartConfig

ROOT = Path(__file__).parents[1]
QUICKSTART = f"config={ROOT / 'configs' / 'quickstart.yaml'}"


def test_the_quickstart_loads_and_overrides_reach_every_depth():
    config = load_config([QUICKSTART, "seed=3", "episode.max_turns=2", "grading.cache=false", "skyrl.trainer.epochs=9"])
    assert (config.seed, config.episode.max_turns, config.skyrl["trainer"]["epochs"]) == (3, 2, 9)
    assert config.episode_config().grading.cache is False
    assert isinstance(config.tasks, QuickstartConfig)
    assert len(config.tasks.factory.packages) >= 4


def test_a_section_of_tasks_gives_way_to_a_file():
    assert load_config([QUICKSTART, "tasks=my/tasks.jsonl"]).tasks == Path("my/tasks.jsonl")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sed=1", "unknown key sed; did you mean seed.?"),
        ("episode.max_turn=2", "unknown key episode.max_turn; did you mean episode.max_turns.?"),
        ("max_turns=2", "unknown key max_turns; did you mean episode.max_turns.?"),
        ("tasks.factory.sed=1", "unknown key tasks.factory.sed; did you mean tasks.factory.seed.?"),
        ("trainer.seed=1", "unknown key trainer; did you mean skyrl.trainer.?"),
        ("episode.grading.cache=false", "unknown key episode.grading: set grading"),
        ("seed=x", "bad value for seed: .*integer.*'x'"),
        ("backend=tpu", "bad value for backend: .*'cpu' or 'gpu'.*'tpu'"),
        ("tracking=tensorboard", "bad value for tracking: .*"),
        ("skyrl=3", "bad value for skyrl: .*"),
        ("seed", "'seed' is not of the form key=value"),
        ("--seed=1", "'--seed=1' is not of the form key=value"),
        ("run_dir=[1", "bad override 'run_dir=.1': .*"),
        ("run_dir=${nowhere}", "config file .*nowhere.*"),
    ],
)
def test_mistakes(override, message):
    with pytest.raises(ConfigError) as error:
        load_config([QUICKSTART, override])
    assert re.fullmatch(message, str(error.value)), str(error.value)


def test_mistakes_in_the_file(tmp_path: Path):
    for text, message in {
        "a: [": "is not YAML",
        "- 1": "must hold keys and values",
        "seed: 1": "missing key tasks",
    }.items():
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message) as error:
            load_config([f"config={tmp_path / 'config.yaml'}"])
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"cannot read config file .*nope.yaml: No such file"):
        load_config([f"config={tmp_path / 'nope.yaml'}"])
    for arguments in ([], ["seed=1"], [QUICKSTART, QUICKSTART]):
        with pytest.raises(ConfigError, match="usage: "):
            load_config(arguments)


def test_a_file_extends_another_relative_to_itself(tmp_path: Path):
    (tmp_path / "below").mkdir()
    (tmp_path / "base.yaml").write_text("tasks: t.jsonl\nseed: 1\nepisode: {max_turns: 2, command_timeout: 7}\n")
    (tmp_path / "middle.yaml").write_text("extends: base.yaml\nseed: 2\nepisode: {max_turns: 3}\n")
    (tmp_path / "below" / "top.yaml").write_text("extends: ../middle.yaml\nname: top\n")
    config = load_config([f"config={tmp_path / 'below' / 'top.yaml'}", "episode.max_turns=4"])
    assert (config.name, config.seed, config.tasks) == ("top", 2, Path("t.jsonl"))
    assert (config.episode.max_turns, config.episode.command_timeout) == (4, 7)


def test_mistakes_in_what_a_file_extends(tmp_path: Path):
    file = tmp_path / "config.yaml"
    (tmp_path / "other.yaml").write_text("extends: config.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    for text, message in {
        "extends: nope.yaml": r"cannot read config file \S+nope.yaml, which \S+config.yaml extends: No such file",
        "extends: other.yaml": r"config file \S+config.yaml extends itself: \S+ -> \S+other.yaml -> \S+config.yaml$",
        "extends: config.yaml": r"config file \S+config.yaml extends itself",
        "extends: broken.yaml": r"config file \S+broken.yaml is not YAML",
        "extends: [a, b]": r"config file \S+config.yaml: extends must name one file",
    }.items():
        file.write_text(text)
        with pytest.raises(ConfigError, match=message) as error:
            load_config([f"config={file}"])
        assert "\n" not in str(error.value)


def test_prompt_messages():
    assert PromptConfig().messages("a {b}") == [{"role": "user", "content": "a {b}"}]
    messages = PromptConfig(system="s", user="Solve: {problem_statement}").messages("x")
    assert [message["content"] for message in messages] == ["s", "Solve: x"]


def _undocumented(model: type[BaseModel]) -> list[str]:
    """Fields that no docstring follows."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef))
    return [
        ast.unparse(field.target)
        for field, after in pairwise([*body, ast.Pass()])
        if isinstance(field, ast.AnnAssign)
        and not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]


def test_every_key_is_documented():
    for model in (TrainConfig, PromptConfig, PolicyConfig, DebugConfig):
        assert _undocumented(model) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([QUICKSTART, "sed=1"], "error: unknown key sed; did you mean seed?"),
        (
            [QUICKSTART, "skyrl.trainer.epoch=1"],
            "error: unknown key skyrl.trainer.epoch; did you mean skyrl.trainer.epochs?",
        ),
        ([], "error: usage: python -m minisandbox_ray.train config=FILE.yaml [key=value ...]"),
    ],
)
def test_the_program_says_one_line_and_exits_with_status_2(arguments, message, tmp_path):
    if any("skyrl." in argument for argument in arguments):
        pytest.importorskip("skyrl", reason="SkyRL is not installed")
    result = subprocess.run(
        [sys.executable, "-m", "minisandbox_ray.train", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.strip() == message
    assert result.stdout == ""
    assert list(tmp_path.glob("runs/*")) == [], "nothing is written"


def test_without_gpus_backend_gpu_says_what_is_missing_and_how_to_install_it(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = subprocess.run(
        [sys.executable, "-m", "minisandbox_ray.train", f"config={ROOT / 'configs' / 'gpu_grpo.yaml'}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "vllm" in line
    assert "pip install 'minisandbox-ray[skyrl-gpu]'" in line

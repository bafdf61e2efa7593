"""A run claims its directory, and one that is refused leaves nothing there."""

from pathlib import Path

import pytest

from minisandbox_ray.config import load_config
from minisandbox_ray.errors import ConfigError
from trainer_integration.skyrl.bridge import run

QUICKSTART = f"config={Path(__file__).parents[3] / 'configs' / 'quickstart.yaml'}"


def _run(run_dir: Path, *overrides: str) -> None:
    run(load_config([QUICKSTART, f"run_dir={run_dir}", *overrides]))


def test_a_directory_that_holds_a_run_is_refused_and_kept(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="holds a run already"):
        _run(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == "{}\n"


def test_what_is_no_directory_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=f"run_dir {path} "):
            _run(path)


def test_a_refused_run_leaves_nothing(tmp_path: Path):
    for override in ("backend=gpu", "skyrl.trainer.max_training_steps=0", "tasks=missing.jsonl"):
        with pytest.raises(ConfigError):
            _run(tmp_path / "run", override)
        assert list(tmp_path.iterdir()) == []

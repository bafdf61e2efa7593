"""The cache verb on a cache of planted archives: no network, no sandbox."""

import json
from pathlib import Path

import pytest
from environments.conftest import plant

from minisandbox_ray.cli.main import main
from minisandbox_ray.environments import Manifest, cache_root
from minisandbox_ray.environments.archive import archive_path


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def planted() -> list[Manifest]:
    """Two environments, and the interpreter that they need."""
    manifests = [plant(cache_root() / "archives", name) for name in "ab"]
    interpreter = manifests[0].interpreter
    copy = cache_root() / f"store/interpreters/{interpreter.version}-{interpreter.build_id[:16]}"
    copy.mkdir(parents=True)
    (copy / "python").write_text("a stand-in\n")
    return manifests


def tasks_of(manifest: Manifest, file: Path) -> Path:
    task = {"instance_id": "x-1", "repo": "x/x", "FAIL_TO_PASS": ["t.py::test"], "environment": manifest.digest}
    file.write_text(json.dumps(task) + "\n")
    return file


def run(*words: str | Path) -> int:
    return main(["cache", *map(str, words)])


def test_without_an_action_it_lists(planted: list[Manifest], capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0 and run("list") == 0
    printed = capsys.readouterr().out
    assert all(printed.count(each.digest[:12]) == 2 for each in planted)
    assert "2 archives of 0.0 MB with 0 layers of 0.0 MB that they share, 0 environments unpacked" in printed
    plant(cache_root() / "archives", "c", packages=["one"])
    plant(cache_root() / "archives", "d", packages=["one"])
    assert run() == 0
    assert "4 archives of 0.0 MB with 1 layers of 0.3 MB" in capsys.readouterr().out


def test_verify_tells_what_is_damaged(planted: list[Manifest], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = planted
    assert run("verify", "--all") == 0
    assert "2 archives and unpacked copies" in capsys.readouterr().out
    path = archive_path(cache_root() / "archives", b.digest)
    path.write_bytes(path.read_bytes()[:-1] + b"\xfe")
    assert run("verify", a.digest[:8]) == 0
    assert run("verify", a.digest[:8], b.digest) == 1
    printed = capsys.readouterr().out
    assert f"archive {b.digest[:12]}" in printed and "is damaged" in printed and "1 with problems" in printed


def test_gc_keeps_what_tasks_need(planted: list[Manifest], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = planted
    file = tasks_of(a, tmp_path / "tasks.jsonl")
    assert run("gc", "--keep-tasks", file, "--dry-run") == 0
    assert f"{b.digest[:12]}" in capsys.readouterr().out
    assert run("gc", "--older-than", "30") == 0
    assert archive_path(cache_root() / "archives", b.digest).exists()
    assert run("gc", "--keep-tasks", file) == 0
    printed = capsys.readouterr().out
    assert b.digest[:12] in printed and a.digest[:12] not in printed and "layers" not in printed
    assert {path.name.partition(".")[0] for path in (cache_root() / "archives").iterdir()} == {a.digest}


def test_gc_tells_of_layers_that_stay_for_now(capsys: pytest.CaptureFixture[str]) -> None:
    plant(cache_root() / "archives", "c", packages=["one"])
    assert run("gc", "--older-than", "0", "--dry-run") == 0
    assert "1 layers, 0.3 MB, go 60 minutes after last use" in capsys.readouterr().out
    assert run("gc", "--older-than", "0") == 0
    assert "1 layers, 0.3 MB, go 60 minutes after last use" in capsys.readouterr().out


def test_what_is_exported_is_imported(
    planted: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = planted
    file = tasks_of(b, tmp_path / "hard.jsonl")
    assert run("export", a.digest[:10], tmp_path / "one.tar", "--tasks", file) == 0
    assert "2 environments, 1 interpreters, 1 files of tasks" in capsys.readouterr().out
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path / "elsewhere"))
    assert run("import", tmp_path / "one.tar") == 0
    assert all(each.digest in capsys.readouterr().out for each in [a])
    assert run("verify", "--all") == 0
    assert (tmp_path / "elsewhere/tasks/hard.jsonl").read_text() == file.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["verify"],
        ["verify", "--all", "abcdef"],
        ["verify", "0123456789"],
        ["gc"],
        ["gc", "--keep-tasks", "nowhere.jsonl"],
        ["gc", "--keep-tasks", "tasks.jsonl", "empty.jsonl"],
        ["gc", "--keep-tasks", "unbuilt.jsonl"],
        ["export", "out.tar"],
        ["export", "0123456789", "out.tar"],
        ["export", "--tasks", "tasks.jsonl", "--", "directory"],
        ["import", "nowhere.tar"],
    ],
)
def test_bad_input_is_told_in_a_line(
    words: list[str],
    planted: list[Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "directory").mkdir()
    tasks = tasks_of(planted[0], tmp_path / "tasks.jsonl").read_text()
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "unbuilt.jsonl").write_text(tasks.replace(planted[0].digest, ""))
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("minisandbox_ray cache: ") and said.count("\n") == 1
    assert not (tmp_path / "out.tar").exists()


@pytest.mark.parametrize("days", ["-1", "some", "nan", "inf"])
def test_days_are_a_number(days: str, planted: list[Manifest]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("gc", f"--older-than={days}")
    assert caught.value.code == 2

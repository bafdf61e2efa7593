"""What a spec refuses, and how it understands paths."""

from pathlib import Path

import pytest

from minisandbox_ray.sandbox import Bind, Overlay


@pytest.mark.parametrize("target", ["", "x", "/", "//", "/a/../b", "/dev/x", "/proc", "/sys/fs", "/a\0b"])
def test_targets_that_are_refused(target: str) -> None:
    with pytest.raises(ValueError, match="target"):
        Bind(source=Path("/etc"), target=target)


@pytest.mark.parametrize("target", ["/testbed/", "//testbed", "/./testbed/."])
def test_targets_are_made_plain(target: str) -> None:
    assert Overlay(target=target, lower=[Path("/etc")]).target == "/testbed"


def test_relative_paths_are_those_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overlay = Overlay(target="/testbed", lower=[Path("sub")])
    monkeypatch.chdir("/")
    assert overlay.lower == [tmp_path / "sub"]
    for wrong in ("", "a\0b"):
        with pytest.raises(ValueError, match="no path"):
            Overlay.model_validate({"target": "/testbed", "lower": [wrong]})

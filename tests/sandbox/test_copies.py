"""Where overlays cannot be had: the same sandbox over copies of the directories."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Overlay, Sandbox, SandboxSpec
from minisandbox_ray.sandbox import sandbox as module

from . import test_cleanup, test_diff
from .conftest import Factory, git
from .test_diff import project

__all__ = ["project"]


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make_plan = module.make_plan
    monkeypatch.setattr(module, "make_plan", lambda spec: {**make_plan(spec), "copies": True})
    yield


def test_lower_files_stay_as_they_are(start: Factory, repository: Path) -> None:
    sandbox = start()
    assert sandbox.run("findmnt -no FSTYPE /testbed").output == "tmpfs\n"
    assert sandbox.run("stat -c %U a.txt .git; echo two > a.txt; rm -rf .git; cat a.txt").output == "root\nroot\ntwo\n"
    assert (repository / "a.txt").read_text() == "one\n"
    assert (repository / ".git" / "HEAD").exists()


def test_layers_are_merged(tmp_path: Path, start: Factory) -> None:
    """As an overlay would: the top layer's files count, its whiteouts hide."""
    top, bottom = tmp_path / "top", tmp_path / "bottom"
    for layer in (top, bottom):
        (layer / "both").mkdir(parents=True)
        (layer / "both" / layer.name).write_text(layer.name)
        (layer / "file").write_text(layer.name)
        (layer / "hidden").write_text("x")
    (top / "hidden").unlink()
    os.mknod(top / "hidden", stat.S_IFCHR, 0)
    with Sandbox(SandboxSpec(overlays=[Overlay(target="/testbed", lower=[top, bottom])])) as sandbox:
        assert sandbox.run("ls -1 . both; cat file").output == ".:\nboth\nfile\n\nboth:\nbottom\ntop\ntop"


def test_disk_limit_is_beside_the_copy(start: Factory, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * (24 << 20))
    sandbox = start(lower=tmp_path, disk_mib=16)
    assert sandbox.run("head -c 10M /dev/zero > more; stat -c %s big more").output == f"{24 << 20}\n{10 << 20}\n"
    assert sandbox.run("head -c 10M /dev/zero > again").exit_code != 0


def test_forks_and_snapshots(start: Factory) -> None:
    sandbox = start()
    sandbox.run("echo two > a.txt; echo new > new; echo x > /tmp/x")
    patch = sandbox.diff()
    with sandbox.fork() as child, sandbox.snapshot() as snapshot:
        assert child.diff() == patch
        assert child.run("cat a.txt new /tmp/x").output == "two\nnew\nx\n"
        sandbox.run("git checkout -q .; rm new")
        assert sandbox.diff() == ""
        sandbox.restore(snapshot)
        assert sandbox.diff() == patch


def test_close_ends_a_running_diff(start: Factory) -> None:
    test_cleanup.test_close_ends_a_running_diff(start)


def test_disk_limit_of_forks(start: Factory) -> None:
    """They have what is left of their parent's room, not as much again."""
    sandbox = start(disk_mib=16)
    sandbox.run("head -c 10M /dev/zero > big")
    with sandbox.snapshot() as snapshot, sandbox.fork() as child, child.fork() as grandchild:
        assert grandchild.run("head -c 10M /dev/zero > more").limit == "disk"
        assert grandchild.run("rm big more; head -c 15M /dev/zero > other").exit_code == 0
        sandbox.run("head -c 20M /dev/zero > full; head -c 20M /dev/zero > /full")
        with sandbox.fork() as full:
            assert full.run("echo ok > new").exit_code != 0
            assert full.run("rm full /full; echo ok > new; cat new").output == "ok\n"
        sandbox.restore(snapshot)
        assert sandbox.run("head -c 10M /dev/zero > more").limit == "disk"


@pytest.mark.parametrize("name", test_diff.CHANGES)
def test_patch_reproduces_the_tree(name: str, start: Factory, project: Path, tmp_path: Path) -> None:
    sandbox = start(lower=project)
    assert sandbox.run(test_diff.CHANGES[name]).exit_code == 0
    assert test_diff.applied(project, sandbox.diff(), tmp_path) == test_diff.work_tree(sandbox, tmp_path)


def test_repository_is_clean_at_the_start(start: Factory, project: Path) -> None:
    assert git(project, "status", "--short") == b""
    assert start(lower=project).run("git status --short").output == ""


def test_the_base_system_is_not_copied(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="system packages lie over /usr, which takes overlay mounts"):
        Sandbox(SandboxSpec(overlays=[Overlay(target="/usr", lower=[tmp_path, Path("/usr")])]))

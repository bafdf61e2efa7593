"""Every trace of another state that a build could leave, planted into a repository made as builds make it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox_ray.environments import EnvSpec, NodeStore, Source, build_environment
from minisandbox_ray.environments.git_objects import IDENTITY
from minisandbox_ray.environments.history import check_history
from minisandbox_ray.environments.layer import GIT, ONE_COMMIT
from minisandbox_ray.errors import BuildError

Plant = Callable[[Path], None]

START = f"""
set -e
{GIT} -c init.defaultBranch=main init -q --template= .
mkdir -p .git/info
{GIT} add --all .
{ONE_COMMIT}
"""


def shell(place: Path, script: str) -> None:
    environment = {**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["sh", "-c", f"set -e\n{script}"], cwd=place, env=environment, capture_output=True, check=True)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("history") / "testbed"
    (place / "pkg").mkdir(parents=True)
    (place / "pkg/module.py").write_text("the bug\n")
    (place / "README").write_text("read\n")
    shell(place, START)
    return place


def by(script: str) -> Plant:
    return lambda place: shell(place, script)


def unindexed_objects(place: Path) -> None:
    """The pack keeps the fix, its index does not list it."""
    (before,) = (place / ".git/objects/pack").glob("*.idx")
    short = before.read_bytes()
    shell(place, "echo fix > fix; git add fix; git commit -qm fix; git repack -adq; git reset -q --hard HEAD^")
    shell(place, "rm -rf .git/logs .git/ORIG_HEAD .git/COMMIT_EDITMSG; find .git/objects/?? -type f -delete || true")
    (after,) = (place / ".git/objects/pack").glob("*.idx")
    after.chmod(0o644)
    after.write_bytes(short)


NEXT = "echo fix > pkg/module.py; git commit -qam fix; rm -rf .git/logs .git/COMMIT_EDITMSG; git update-server-info"
BLOB = "echo fix | git hash-object -w --stdin"

PLANTED: dict[str, tuple[Plant, str]] = {
    "a later commit": (by(NEXT), "2 commits instead of one"),
    "a later commit on a branch": (by("git branch dev"), "branch dev"),
    "a tag": (by("git tag v2"), "tag v2"),
    "an annotated tag": (by("git tag -a -m x v2"), "tag v2"),
    "a remote": (by("git remote add origin https://example.org/a/b"), "remote origin in the configuration"),
    "a remote in the old spelling": (by("printf '[remote.origin]\\n\\turl = x\\n' >> .git/config"), "remote origin"),
    "another file of configuration": (by("git config include.path /tmp/x"), "include in the configuration"),
    "a remote branch": (by("git update-ref refs/remotes/origin/main HEAD"), "remote branch origin/main"),
    "a stash": (by("git update-ref refs/stash HEAD"), "reference refs/stash"),
    "a note": (by("git notes add -m fix; rm -rf .git/logs .git/NOTES_EDITMSG"), "reference refs/notes/commits"),
    "packed references": (by("git tag v2; git pack-refs"), "git's file packed-refs"),
    "a reflog of two entries": (
        by(f"for each in 1 2; do echo '{'0' * 40} {'0' * 40} x' >> log; done; mkdir .git/logs; mv log .git/logs/HEAD"),
        "reflog of HEAD with 2 entries",
    ),
    "a reflog of another commit": (
        by(f"mkdir .git/logs; echo '{'1' * 40} {'2' * 40} a <b> 0 +0000\treset' > .git/logs/HEAD"),
        "reflog of HEAD with 1 entries",
    ),
    "the reflog of a stash": (by("mkdir -p .git/logs/refs; : > .git/logs/refs/stash"), "reflog of refs/stash"),
    "a dangling object": (by(BLOB), "1 objects that no part of the commit needs, the first a blob"),
    "a dangling commit": (by("git commit-tree -m fix HEAD^{tree}"), "the first a commit"),
    "a packed trace": (by(f"{BLOB} | git pack-objects -q .git/objects/pack/pack; git prune-packed"), "a blob"),
    "a pack without its index": (
        by(f"{BLOB} | git pack-objects -q .git/objects/pack/pack; git prune-packed; rm .git/objects/pack/*.idx"),
        "without its index",
    ),
    "objects that the index hides": (unindexed_objects, "of which its index lists"),
    "half a pack": (by("echo x > .git/objects/pack/tmp_pack_x"), "git's file objects/pack/tmp_pack_x"),
    "alternates": (by("echo /tmp/other/objects > .git/objects/info/alternates"), "alternates"),
    "a commit graph": (by("git commit-graph write --reachable"), "git's file objects/info/commit-graph"),
    "ORIG_HEAD": (by("git rev-parse HEAD > .git/ORIG_HEAD"), "ORIG_HEAD"),
    "FETCH_HEAD": (by("echo x > .git/FETCH_HEAD"), "FETCH_HEAD"),
    "MERGE_HEAD": (by("echo x > .git/MERGE_HEAD"), "MERGE_HEAD"),
    "a message": (by("echo 'Fix it' > .git/COMMIT_EDITMSG"), "git's file COMMIT_EDITMSG"),
    "a hook": (by("mkdir -p .git/hooks; echo x > .git/hooks/post-commit"), "git's file hooks/post-commit"),
    "a worktree": (by("git worktree add -q --detach ../w; rm -rf ../w"), "git's file worktrees/w"),
    "a shallow boundary": (by("git rev-parse HEAD > .git/shallow"), "git's file shallow"),
    "info/refs of the fix": (by(f"echo '{'1' * 40}\trefs/tags/v2' > .git/info/refs"), "info/refs with refs/tags/v2"),
    "a submodule's repository": (by("mkdir -p .git/modules/a; echo x > .git/modules/a/HEAD"), "modules/a/HEAD"),
    "a repository inside": (by("git init -q vendored"), "a repository in vendored"),
    "a link to a repository elsewhere": (by("mkdir v; echo gitdir: /x > v/.git"), "a repository in v"),
    "a link in .git": (by("ln -s /etc/passwd .git/objects/x"), "objects/x, which is no file"),
    "a file that only the index has": (
        by(f"git update-index --add --cacheinfo 100644,$({BLOB}),new"),
        "the first a blob",
    ),
    "a staged state": (by("git rm -q --cached README"), "an index of another state"),
    "a detached HEAD": (by("git checkout -q --detach; rm -rf .git/logs"), "HEAD is not the branch main"),
    "a missing object": (by("rm -f .git/objects/pack/*"), "what git cannot read"),
    "no repository": (by("rm -rf .git"), "no directory .git"),
    "a repository elsewhere": (by("mv .git ../git; ln -s ../git .git"), "no directory .git"),
}


def test_what_a_build_makes_is_clean(clean: Path) -> None:
    check_history(clean)


def test_one_entry_of_the_reflog_for_the_commit_is_fine(clean: Path, tmp_path: Path) -> None:
    place = tmp_path / "testbed"
    shutil.copytree(clean, place, symlinks=True)
    shell(place, f'mkdir .git/logs; echo "{"0" * 40} $(git rev-parse HEAD) a <b> 0 +0000\tcommit" > .git/logs/HEAD')
    check_history(place)


@pytest.mark.parametrize("name", PLANTED)
def test_every_trace_is_found_and_named(clean: Path, tmp_path: Path, name: str) -> None:
    plant, finding = PLANTED[name]
    place = tmp_path / "testbed"
    shutil.copytree(clean, place, symlinks=True)
    plant(place)
    with pytest.raises(BuildError) as caught:
        check_history(place, "building it")
    message = str(caught.value)
    assert message.startswith("building it: history ") and "\n" not in message
    assert finding in message


def test_no_configuration_of_the_build_is_read(clean: Path, tmp_path: Path) -> None:
    """One that hides references and objects from git."""
    place = tmp_path / "testbed"
    shutil.copytree(clean, place, symlinks=True)
    shell(place, f"{NEXT}; git config core.fsmonitor 'touch /testbed/ran'; git config transfer.hideRefs refs")
    shell(place, f"git replace --graft HEAD; mv .git/refs/replace ../replaced; git tag -d none || true; {BLOB}")
    with pytest.raises(BuildError, match="2 commits instead of one"):
        check_history(place)
    assert not (place / "ran").exists()


def test_a_build_whose_commands_leave_a_trace_fails_by_its_name(tmp_path: Path, store: NodeStore) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "module.py").write_text("x = 1\n")
    spec = EnvSpec(
        source=Source(kind="path", path=project), install=["git remote add upstream https://example.org/a/b"]
    )
    with pytest.raises(BuildError, match="history holds more than one commit: remote upstream in the configuration"):
        build_environment(spec, tmp_path / "archives", store)
    assert not list((tmp_path / "archives").glob("*"))
    assert list((store.root / "scratch").iterdir()) == []

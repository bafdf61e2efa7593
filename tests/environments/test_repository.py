import os
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from minisandbox_ray.environments import (
    BaseSystem,
    EnvSpec,
    InterpreterId,
    NodeStore,
    Source,
    build_environment,
    environment_digest,
)
from minisandbox_ray.environments.repository import Commit, find_commit
from minisandbox_ray.environments.spec import tree_name
from minisandbox_ray.errors import BuildError, ConfigError
from minisandbox_ray.sandbox import Sandbox

IDENTITY = {
    **{f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    **{f"GIT_{role}_DATE": "1700000000 +0000" for role in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(place: Path, *words: str, data: str | None = None) -> str:
    environment = {**os.environ, **IDENTITY}
    done = subprocess.run(
        ["git", "-C", place, *words], input=data, env=environment, capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits and a tag; the first has what an export must keep, and what it must not obey."""
    place = tmp_path_factory.mktemp("repository") / "clone"
    place.mkdir()
    git(place, "init", "-q", "-b", "trunk")
    (place / "pkg").mkdir()
    (place / "pkg/module.py").write_bytes(b"first\r\n$Format:%H$\n$Id$\n")
    (place / "tool").write_text("#!/bin/sh\n")
    (place / "tool").chmod(0o755)
    (place / "link").symlink_to("/etc/passwd")
    (place / "hidden.txt").write_text("left out of archives\n")
    (place / ".gitattributes").write_text(
        "hidden.txt export-ignore\n*.py export-subst ident text eol=lf filter=evil\n*.bin filter=lfs\n"
    )
    (place / "large.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (place / "ä b.txt").write_text("ü\n")
    git(place, "-c", "core.autocrlf=false", "add", "--all", "--force", ".")
    blob = git(place, "hash-object", "-w", "--no-filters", "pkg/module.py")
    git(place, "update-index", "--cacheinfo", f"100644,{blob},pkg/module.py")
    git(place, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},vendored")
    git(place, "commit", "-q", "-m", "one")
    (place / "pkg/module.py").write_text("the fix\n")
    git(place, "commit", "-q", "-a", "-m", "two")
    git(place, "tag", "v2")
    return place


@pytest.fixture(scope="module")
def first(clone: Path) -> str:
    return git(clone, "rev-parse", "HEAD^")


def exported(commit: Commit, target: Path) -> dict[str, tuple[int, bytes]]:
    commit.export(target)
    with tarfile.open(target) as archive:
        members = archive.getmembers()
        read = {each.name: archive.extractfile(each) for each in members if each.isfile()}
        return {
            each.name: (each.mode, os.fsencode(each.linkname) if each.issym() else (file.read() if file else b""))
            for each in members
            for file in [read.get(each.name)]
        }


def test_files_are_those_of_the_commit_whatever_its_attributes_say(clone: Path, first: str, tmp_path: Path) -> None:
    commit = find_commit(Source(kind="git", path=clone, commit=first))
    assert (commit.id, commit.tree) == (first, git(clone, "rev-parse", f"{first}^{{tree}}"))
    files = exported(commit, tmp_path / "source.tar")
    assert files["pkg/module.py"] == (0o644, b"first\r\n$Format:%H$\n$Id$\n")
    assert files["hidden.txt"] == (0o644, b"left out of archives\n")
    assert files["tool"][0] == 0o755
    assert files["link"][1] == b"/etc/passwd"
    assert files["ä b.txt"][1] == "ü\n".encode()
    report = commit.export(tmp_path / "again.tar")
    assert (report.submodules, report.lfs_pointers) == (["vendored"], ["large.bin"])
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "source.tar").read_bytes()


def test_nothing_of_the_repositorys_configuration_runs(clone: Path, first: str, tmp_path: Path) -> None:
    trap = tmp_path / "trapped"
    place = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--no-hardlinks", str(clone), str(place))
    git(place, "replace", first, "HEAD")
    script = tmp_path / "trap"
    script.write_text(f"#!/bin/sh\ntouch {trap}\n")
    script.chmod(0o755)
    for hook in ("post-checkout", "reference-transaction", "pre-auto-gc"):
        (place / ".git/hooks").mkdir(exist_ok=True)
        (place / ".git/hooks" / hook).symlink_to(script)
    settings = {"core.fsmonitor": script, "core.alternateRefsCommand": script, "filter.evil.smudge": script}
    settings |= {"uploadpack.packObjectsHook": script, "core.sshCommand": script, "core.pager": script}
    for name, value in settings.items():
        git(place, "config", name, str(value))
    git(place, "config", "extensions.partialClone", "origin")
    git(place, "config", "core.repositoryFormatVersion", "1")
    git(place, "config", "remote.origin.url", f"ext::{script}")
    git(place, "config", "remote.origin.promisor", "true")
    files = exported(find_commit(Source(kind="git", path=place, commit=first)), tmp_path / "source.tar")
    assert files["pkg/module.py"][1].startswith(b"first"), "a replacement was obeyed"
    for url in (f"file://{place}", f"file://{place}/.git"):
        assert find_commit(Source(kind="git", repository=url, commit=first)).id == first
    with pytest.raises(BuildError, match="no such commit"):
        find_commit(Source(kind="git", path=place, commit="f" * 40))
    assert not trap.exists()
    subprocess.run(["git", "-C", place, "status"], capture_output=True, check=False)
    assert trap.exists(), "the trap is none"


@pytest.mark.parametrize(
    ("folder", "bare"),
    [
        ("octo/calc", False),
        ("octo/calc", True),
        ("octo/calc.git", True),
        ("octo__calc", False),
        ("octo+calc/repo", True),
    ],
)
def test_a_mirror_directory_is_tried_in_its_forms(
    clone: Path, first: str, tmp_path: Path, folder: str, bare: bool
) -> None:
    mirror = tmp_path / "mirror"
    (mirror / folder).parent.mkdir(parents=True)
    git(tmp_path, "clone", "-q", *(["--bare"] if bare else []), str(clone), str(mirror / folder))
    for repository in ("octo/calc", "https://example.org/octo/calc.git", "git@example.org:octo/calc"):
        for commit in (first, first[:9], f"{git(clone, 'rev-parse', 'HEAD')}^"):
            found = find_commit(Source(kind="git", repository=repository, commit=commit), mirror)
            assert found.id == first and found.objects.is_relative_to(mirror / folder)


def test_mirrors_may_be_read_only_packed_shared_shallow_and_worktrees(clone: Path, first: str, tmp_path: Path) -> None:
    for folder, options in {"shared": ["--shared"], "shallow": ["--depth=2"]}.items():
        git(tmp_path, "clone", "-q", "--bare", *options, f"file://{clone}", str(tmp_path / folder))
    (tmp_path / "shared/config").unlink()
    git(clone, "worktree", "add", "-q", "--detach", str(tmp_path / "worktree"))
    before = {path: path.lstat().st_mtime_ns for path in (tmp_path / "shared").rglob("*")}
    for folder in ("shared", "shallow", "worktree"):
        commit = find_commit(Source(kind="git", path=tmp_path / folder, commit=first[:12]))
        assert len(exported(commit, tmp_path / "source.tar")) == 8
    assert {path: path.lstat().st_mtime_ns for path in (tmp_path / "shared").rglob("*")} == before


@pytest.fixture
def served(clone: Path, tmp_path: Path) -> Iterator[str]:
    """The clone's URL from a server of git's own protocol."""
    git(tmp_path, "clone", "-q", "--bare", str(clone), str(tmp_path / "served/calc.git"))
    (tmp_path / "served/calc.git/git-daemon-export-ok").touch()
    with socket.socket() as probe:  # the daemon does not say which port it got
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["git", "daemon", "--reuseaddr", "--listen=127.0.0.1", f"--port={port}", f"--base-path={tmp_path}/served"]
    environment = {
        **os.environ,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as server:
        try:
            url = f"git://127.0.0.1:{port}/calc.git"
            for _ in range(200):
                if subprocess.run(["git", "ls-remote", url], capture_output=True, check=False).returncode == 0:
                    break
            else:
                pytest.skip("git daemon does not start here")
            yield url
        finally:
            server.terminate()


def test_a_url_is_fetched_once_into_the_cache(served: str, clone: Path, first: str, cache: Path) -> None:
    log: list[str] = []
    source = Source(kind="git", repository=served, commit=first)
    commit = find_commit(source, None, log.append)
    assert commit.id == first and commit.objects.is_relative_to(cache / "repositories")
    assert len(log) == 1 and "fetch" in log[0]
    again = Source(kind="git", repository=served, commit=first[:10])
    assert find_commit(again, None, log.append) == Commit(again.describe(), commit.id, commit.tree, commit.objects)
    assert len(log) == 1, "fetched twice"
    refs = [path for path in (commit.objects.parent / "refs").rglob("*") if path.is_file()]
    assert refs == [], "one commit was asked for, and no branch"
    last = git(clone, "rev-parse", "HEAD")
    assert find_commit(Source(kind="git", repository=served, commit=f"{last}^"), None, log.append).id == first
    assert len(log) == 2, "the commit after it was there already"
    with pytest.raises(BuildError, match=r"cannot be had; tried git://.*lacks the commit") as caught:
        find_commit(Source(kind="git", repository=served, commit="f" * 12))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_had_says_where_it_was_looked_for(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "octo/calc").mkdir(parents=True)
    git(tmp_path, "clone", "-q", "--bare", str(clone), str(tmp_path / "octo__calc"))
    source = Source(kind="git", repository=f"file://{tmp_path}/octo/calc", commit="f" * 40)
    with pytest.raises(BuildError) as caught:
        find_commit(source, tmp_path)
    for place in ("octo/calc (no repository)", "octo__calc (lacks the commit)", "octo+calc/repo (no repository)"):
        assert place in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="is no directory"):
        find_commit(source, tmp_path / "none")
    with pytest.raises(ConfigError, match="is no git repository"):
        find_commit(Source(kind="git", path=tmp_path / "octo/calc", commit="f" * 40))


def plant(clone: Path, entries: list[tuple[str, str, str]]) -> str:
    """A commit with a tree that git itself would not write."""
    raw = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries)
    command = ["git", "-C", str(clone), "hash-object", "-w", "-t", "tree", "--literally", "--stdin"]
    tree = subprocess.run(command, input=raw, capture_output=True, check=True).stdout.decode().strip()
    return git(clone, "commit-tree", "-m", "odd", tree)


def test_trees_that_git_would_not_check_out_are_refused(clone: Path, tmp_path: Path) -> None:
    blob = git(clone, "hash-object", "-w", "--stdin", data="x")
    inner = git(clone, "rev-parse", f"{plant(clone, [('100644', 'config', blob)])}^{{tree}}")
    cases = [
        [("40000", ".git", inner)],
        [("40000", ".GIT", inner)],
        [("40000", "..", inner)],
        [("100644", "a", blob), ("100644", "a", blob)],
        [("120000", "a", blob), ("40000", "a", inner)],
        [("100644", "a", "0" * 39 + "1")],
        [("40000", "a", "0" * 39 + "1")],
    ]
    for entries in cases:
        commit = find_commit(Source(kind="git", path=clone, commit=plant(clone, entries)))
        with pytest.raises(BuildError) as caught:
            commit.export(tmp_path / "source.tar")
        assert "\n" not in str(caught.value)


def test_the_digest_covers_the_tree_and_not_where_it_came_from(clone: Path, first: str) -> None:
    interpreter, base = InterpreterId(version="3.12.1", build_id="ab"), BaseSystem(os="a", libc="b", arch="c")
    sources = [
        Source(kind="git", path=clone, commit=first),
        Source(kind="git", repository="octo/calc", commit=first[:9]),
    ]
    tree = tree_name("1" * 40)
    digests = [environment_digest(EnvSpec(source=each), interpreter, base, tree) for each in sources]
    digests += [environment_digest(EnvSpec(source=sources[0]), interpreter, base, tree_name("2" * 40))]
    digests += [environment_digest(EnvSpec(), interpreter, base, tree)]
    assert digests[0] == digests[1] and len(set(digests)) == 3
    with pytest.raises(BuildError, match="needs the commit's tree"):
        environment_digest(EnvSpec(source=sources[0]), interpreter, base)


def test_digests_of_other_sources_are_what_they_were() -> None:
    interpreter, base = InterpreterId(version="3.12.1", build_id="ab"), BaseSystem(os="a", libc="b", arch="c")
    spec = EnvSpec(source=Source(kind="sdist", name="a", version="1"))
    digest = environment_digest(spec, interpreter, base)
    assert digest == "d1d82ef35abf615bf478772951b5494643b363d84e84d4e5cc15e7483791c454"


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "git"},
        {"kind": "git", "repository": "a/b"},
        {"kind": "git", "repository": "a/b", "path": "/x", "commit": "0123456"},
        {"kind": "git", "repository": "a/b", "commit": "main"},
        {"kind": "git", "repository": "a/b", "commit": "--all"},
        {"kind": "git", "repository": "--upload-pack=x", "commit": "0123456"},
        {"kind": "git", "repository": "ext::sh -c x", "commit": "0123456"},
        {"kind": "git", "repository": "a@b:-x", "commit": "0123456"},
        {"kind": "git", "repository": "https://me:word@example.org/a/b", "commit": "0123456"},
        {"kind": "git", "repository": "https://token@example.org/a/b", "commit": "0123456"},
        {"kind": "sdist", "name": "a", "version": "1", "commit": "0123456"},
    ],
)
def test_bad_sources_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as caught:
        Source.model_validate(bad)
    assert "word" not in str(caught.value)


def test_a_commit_is_built_without_what_came_after(
    clone: Path, first: str, tmp_path: Path, store: NodeStore, archives: Path
) -> None:
    git(tmp_path, "clone", "-q", str(clone), str(tmp_path / "mirror/octo/calc"))
    spec = EnvSpec(source=Source(kind="git", repository="octo/calc", commit=first[:12]))
    lines: list[str] = []
    manifest = build_environment(spec, archives, store, lines.append, repo_mirror=tmp_path / "mirror")
    assert any("without the content of submodules: vendored" in line for line in lines)
    assert any("without the content of files that Git LFS keeps: large.bin" in line for line in lines)
    assert manifest.source_tree == tree_name(git(clone, "rev-parse", f"{first}^{{tree}}"))
    same = EnvSpec(source=Source(kind="git", path=clone, commit=first))
    assert build_environment(same, archives, store).digest == manifest.digest
    with store.use(manifest.digest, archives) as environment, Sandbox(environment.sandbox_spec()) as sandbox:
        assert sandbox.read_file("/testbed/pkg/module.py") == b"first\r\n$Format:%H$\n$Id$\n"
        assert sandbox.run("git log --oneline --all | wc -l; git status --porcelain; git tag").output == "1\n"
        assert sandbox.run("grep -r 'the fix' /testbed /venv; echo end").output == "end\n"
        assert sandbox.run("readlink link; test -x tool && ls -d vendored").output.split() == [
            "/etc/passwd",
            "vendored",
        ]

"""The patch of what changed must reproduce the changed tree, whatever its author did to git."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Sandbox

from .conftest import Factory, git


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("project")
    for name in ("src/deep", "docs", "build"):
        (directory / name).mkdir(parents=True)
    (directory / "src" / "one.py").write_text("".join(f"line {n}\n" for n in range(20)))
    (directory / "src" / "deep" / "two.py").write_text("two\n")
    (directory / "docs" / "page.md").write_text("page\n")
    (directory / "docs" / "other.md").write_text("other\n")
    (directory / "run.sh").write_text("#!/bin/sh\n")
    (directory / "image.bin").write_bytes(bytes(range(256)) * 8)
    (directory / "link").symlink_to("run.sh")
    (directory / "directory-link").symlink_to("docs")
    (directory / ".gitignore").write_text("*.log\nbuild/\n")
    (directory / "kept.log").write_text("tracked though ignored\n")
    git(directory, "init", "-q", "-b", "main")
    (directory / ".git" / "info" / "exclude").write_text("*.secret\n")
    git(directory, "add", "-A")
    git(directory, "add", "-f", "kept.log")
    git(directory, "commit", "-q", "-m", "one")
    return directory


def tree(directory: Path) -> dict[str, tuple[str, bytes]]:
    """{path: (kind, content)} as git sees a work tree."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if name.partition("/")[0] == ".git":
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[name] = ("link", os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            found[name] = ("program" if mode & 0o100 else "file", path.read_bytes())
    return found


def applied(project: Path, patch: str, tmp_path: Path) -> dict[str, tuple[str, bytes]]:
    """The tree that the patch makes of the project's commit."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(project), str(clone))
    if patch:
        git(clone, "apply", "--binary", "-", stdin=os.fsencode(patch))
    return tree(clone)


CHANGES = {
    "edit": "sed -i 's/line 3/changed/' src/one.py",
    "new": "mkdir -p new/deep; echo new > new/deep/file; touch empty",
    "delete": "rm src/deep/two.py docs/page.md",
    "delete-directory": "rm -r src",
    "binary": "head -c 5000 /dev/urandom > image.bin; head -c 300 /dev/urandom > new.bin; rm -f link",
    "program": "chmod +x src/one.py; chmod -x run.sh; chmod 755 docs/page.md",
    "links": "ln -s /etc/passwd absolute; ln -sfn src link; rm directory-link; ln -s nowhere directory-link",
    "rename": "mv src/one.py src/renamed.py; mv docs/page.md .",
    "rename-directory": "mv src source; echo x >> source/one.py",
    "rename-directory-by-python": '/usr/bin/python3 -c "'
    "import os; os.rename('src', 'source'); os.rename('docs', 'source/docs')\"",
    "replace-directory": "rm -r src; mkdir src; echo fresh > src/new.py",
    "rename-and-replace": "mv src old; mkdir src; echo fresh > src/one.py; rm -r old/deep",
    "file-to-directory": "rm run.sh; mkdir run.sh; echo x > run.sh/x",
    "directory-to-file": "rm -r src; echo file > src",
    "link-to-directory": "rm directory-link; mkdir directory-link; echo x > directory-link/page.md",
    "directory-to-link": "rm -r docs; ln -s src docs",
    "odd-names": "echo 1 > 'a b'; echo 2 > $'tab\\there'; echo 3 > $'line\\nbreak'; echo 4 > 'quo\"te';"
    " echo 5 > 'back\\slash';"
    " echo 6 > ':(glob)x'; echo 7 > $'latin-\\xe9'; echo 8 > -- -dash; echo 9 > 漢字; echo 10 > '*'",
    "touched": "touch src/one.py; chmod 600 src/one.py; cp src/one.py x; cat x > src/one.py; rm x",
    "tracked-though-ignored": "echo more >> kept.log",
    "tracked-removed-and-remade": "rm kept.log; echo again > kept.log",
    "undone": "echo x >> src/one.py; rm docs/page.md; git checkout -q .",
    "no-end-of-line": "printf 'no newline' > src/one.py; printf 'x' > new",
    "carriage-returns": "printf 'a\\r\\nb\\r\\n' > docs/page.md",
    "committed": "echo x > new; git add -A; git commit -qm mine; echo y >> new",
    "branches": "git checkout -q -b other; git rm -qr docs; git commit -qm mine; git gc -q",
}


def work_tree(sandbox: Sandbox, tmp_path: Path) -> dict[str, tuple[str, bytes]]:
    packed = sandbox.execute(["tar", "-c", "--exclude=./.git", "."]).stdout
    (tmp_path / "work").mkdir()
    subprocess.run(["tar", "-x", "-C", tmp_path / "work"], input=packed, check=True)
    return tree(tmp_path / "work")


@pytest.mark.parametrize("name", CHANGES)
def test_patch_reproduces_the_tree(name: str, start: Factory, project: Path, tmp_path: Path) -> None:
    if name == "rename-directory-by-python" and os.geteuid() != 0:
        pytest.skip("an overlay that an ordinary user mounted renames no directory of below: EXDEV")
    sandbox = start(lower=project)
    result = sandbox.run(CHANGES[name])
    assert result.exit_code == 0, result.output
    patch = sandbox.diff()
    assert patch == sandbox.diff()
    assert applied(project, patch, tmp_path) == work_tree(sandbox, tmp_path)


def test_unchanged(start: Factory, project: Path) -> None:
    sandbox = start(lower=project)
    assert sandbox.diff() == ""
    sandbox.run("git status; git log; cat src/one.py; ls -R")
    assert sandbox.diff() == ""


def test_ignored_files_are_left_out(start: Factory, project: Path) -> None:
    sandbox = start(lower=project)
    sandbox.run("touch x.log src/y.log key.secret; mkdir -p build/z; touch build/z/file; echo '*' > .git/info/exclude")
    assert sandbox.diff() == ""
    sandbox.run("echo '*' > .gitignore; touch seen")
    patch = sandbox.diff()
    assert "b/seen" in patch
    assert "b/.gitignore" in patch
    assert ".log" not in patch.replace("*.log", "")


def test_what_git_does_not_know_is_left_out(start: Factory, project: Path, tmp_path: Path) -> None:
    sandbox = start(lower=project)
    sandbox.run(
        "mkfifo pipe; mkdir empty; git init -q nested; echo x > nested/file; (cd nested; git add .; git commit -qm x)"
    )
    patch = sandbox.diff()
    assert applied(project, patch, tmp_path).keys() - tree(project).keys() == {"nested/file"}


@pytest.mark.parametrize(
    "attack",
    [
        "echo '* -diff' > .gitattributes; git config diff.external 'touch /tmp/ran'",
        "echo '* diff=x' > .git/info/attributes; git config diff.x.textconv 'touch /tmp/ran; echo nothing; :'",
        "git config core.worktree /tmp; git config core.bare true",
        "git config diff.noprefix true; git config color.ui always; git config core.quotePath false",
        "printf '#!/bin/sh\\ntouch /tmp/ran' > .git/hooks/post-index-change; chmod +x .git/hooks/*",
        "git update-index --assume-unchanged src/one.py; git update-index --skip-worktree src/one.py",
        "rm -rf .git",
        "rm -rf .git; ln -s /nowhere .git",
        "rm -rf .git; git init -q; git add -A; git commit -qm fake",
        "git config core.fsmonitor 'touch /tmp/ran'; git config core.sshCommand false",
        "echo garbage > .git/HEAD; echo garbage > .git/config; echo garbage > .git/index",
    ],
)
def test_git_of_the_agent_is_not_asked(attack: str, start: Factory, project: Path) -> None:
    honest = start(lower=project)
    honest.run("echo evil >> src/one.py")
    sandbox = start(lower=project)
    sandbox.run("echo evil >> src/one.py")
    sandbox.run(attack)
    sandbox.run("rm -f .gitattributes /tmp/ran")
    assert sandbox.diff() == honest.diff()
    assert sandbox.run("ls /tmp/ran").exit_code != 0


def test_attributes_of_the_agent_are_content_only(start: Factory, project: Path) -> None:
    sandbox = start(lower=project)
    sandbox.run("echo '* -diff -text' > .gitattributes; echo more >> docs/page.md")
    patch = sandbox.diff()
    assert "+more" in patch
    assert "+* -diff -text" in patch


def test_bytes_that_are_no_text(start: Factory, project: Path, tmp_path: Path) -> None:
    sandbox = start(lower=project)
    sandbox.run("printf 'caf\\xe9\\n' > latin.txt")
    patch = sandbox.diff()
    patch.encode("utf-8", "surrogateescape")
    assert applied(project, patch, tmp_path)["latin.txt"] == ("file", b"caf\xe9\n")


def test_while_the_agent_goes_on(start: Factory, project: Path) -> None:
    """Files come and go, turn into links and directories, during the walk."""
    sandbox = start(lower=project)
    loop = "while :; do mkdir -p d/e; echo x > d/e/f; ln -sfn /etc d/l; rm -rf d; ln -s /etc d; rm -f d; done"
    sandbox.run(f"({loop}) > /dev/null 2>&1 & echo x > stays")
    for _ in range(3):
        patch = sandbox.diff()
        assert "b/stays" in patch
        assert "root:" not in patch


def test_several_layers(start: Factory, project: Path, tmp_path: Path) -> None:
    from minisandbox_ray.sandbox import Overlay

    (tmp_path / "layer").mkdir()
    (tmp_path / "layer" / "added").write_text("by the layer\n")
    (tmp_path / "layer" / "run.sh").write_text("changed by the layer\n")
    sandbox = start(spec={"overlays": [Overlay(target="/testbed", lower=[tmp_path / "layer", project])]})
    assert sandbox.run("cat added run.sh docs/page.md").output == "by the layer\nchanged by the layer\npage\n"
    sandbox.run("echo more >> docs/page.md")
    patch = sandbox.diff()
    assert patch.count("diff --git") == 1


def test_without_a_repository(start: Factory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    sandbox = start(lower=tmp_path)
    sandbox.run("echo y > file")
    with pytest.raises(SandboxError, match="not a git repository"):
        sandbox.diff()


def test_large_ignored_files_do_not_matter(start: Factory, project: Path) -> None:
    sandbox = start(lower=project)
    sandbox.run("truncate -s 10G big.log; echo x > small")
    assert "b/small" in sandbox.diff()


def test_too_large(start: Factory, project: Path) -> None:
    sandbox: Sandbox = start(lower=project)
    sandbox.run("truncate -s 10G big")
    with pytest.raises(SandboxError, match="more than 128 MiB") as error:
        sandbox.diff()
    assert error.value.owner == "agent"


def test_an_equal_change_is_taken_from_the_memo_and_another_is_not(start: Factory, project: Path) -> None:
    memo: dict[str, str] = {}
    patches = []
    for text in ("one", "one", "two"):
        sandbox = start(lower=project)
        sandbox.run(f"echo {text} >> docs/page.md")
        patches.append(sandbox.diff(memo))
        assert patches[-1] == sandbox.diff()
    assert patches[0] == patches[1] != patches[2]
    assert len(memo) == 2


def test_more_files_than_git_has_time_for(start: Factory, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wrote them answers for that."""
    sandbox = start(lower=project)
    sandbox.run("for i in $(seq 3000); do : > $i; done")
    monkeypatch.setattr("minisandbox_ray.sandbox.diff._SECONDS", 0.01)
    with pytest.raises(SandboxError, match="so much was written") as raised:
        sandbox.diff()
    assert raised.value.owner == "agent"

import stat
from pathlib import Path

import pytest

from minisandbox_ray.environments import Environment, NodeStore
from minisandbox_ray.errors import TaskError
from minisandbox_ray.sandbox import Sandbox


def make_patch(environment: Environment) -> str:
    """Breaks a function, deletes a file, adds one, and puts a directory in the place of a file."""
    with Sandbox(environment.sandbox_spec()) as sandbox:
        source = sandbox.read_file("/testbed/inflection/__init__.py").decode()
        assert "if not uppercase_first_letter:" in source or "if uppercase_first_letter:" in source
        broken = source.replace("if uppercase_first_letter:", "if not uppercase_first_letter:")
        sandbox.write_file("/testbed/inflection/__init__.py", broken.encode())
        sandbox.run("rm README.rst MANIFEST.in; mkdir MANIFEST.in; echo new > MANIFEST.in/file; git add -A")
        done = sandbox.execute(["git", "diff", "--cached", "--binary", "HEAD"])
    return done.stdout.decode()


@pytest.fixture(scope="module")
def patch(environment: Environment) -> str:
    return make_patch(environment)


@pytest.fixture(scope="module")
def layer(environment: Environment, store: NodeStore, patch: str) -> Path:
    return store.derive(environment, patch)


def test_the_sandbox_starts_with_the_patch_applied_and_clean(environment: Environment, layer: Path) -> None:
    with Sandbox(environment.sandbox_spec(layer=layer)) as sandbox:
        assert sandbox.run("git status --porcelain --ignored").output == ""
        assert "if not uppercase_first_letter:" in sandbox.run("cat inflection/__init__.py").output
        assert sandbox.run("cat MANIFEST.in/file").output == "new\n"
        assert sandbox.run("ls README.rst").exit_code != 0
        assert sandbox.run("python -m pytest -q test_inflection.py -k camelize").exit_code == 1
        sandbox.run("echo more > MANIFEST.in/file; rm -r docs")
        assert sandbox.run("git diff --stat -- MANIFEST.in | tail -1").output.strip().startswith("1 file changed")


def test_its_history_does_not_hold_the_answer(environment: Environment, layer: Path) -> None:
    with Sandbox(environment.sandbox_spec(layer=layer)) as sandbox:
        assert sandbox.run("git rev-list --all --count").output.strip() == "1"
        assert sandbox.run("git fsck --full --unreachable --dangling --no-reflogs --no-progress").output == ""
        assert sandbox.run("git reflog; git stash list; git tag; git remote").output == ""
        pristine = sandbox.run("git cat-file --batch-all-objects --batch | grep -c 'if uppercase_first_letter:'")
        assert pristine.output.strip() == "0"
        assert sandbox.run("ls .git/objects/pack | wc -l").output.strip() in {"2", "3"}  # one pack: .pack .idx (.rev)
        # Nothing lies about as a compiled or built copy either.
        found = sandbox.run("grep -rlI 'if uppercase_first_letter:' /testbed /venv --include=*; echo end")
        assert found.output == "end\n"
        assert sandbox.run("find /testbed -name '*.pyc' -o -name build").output == ""


def test_equal_patches_give_the_same_layer_and_commit(
    environment: Environment, store: NodeStore, layer: Path, patch: str
) -> None:
    assert store.derive(environment, patch) == layer
    heads = []
    for _ in range(2):
        with Sandbox(environment.sandbox_spec(layer=store.derive(environment, patch))) as sandbox:
            heads.append(sandbox.run("git rev-parse HEAD").output)
    assert heads[0] == heads[1]


def test_the_layer_is_thin_and_holds_no_special_file_but_whiteouts(layer: Path) -> None:
    whiteouts = [path for path in layer.rglob("*") if stat.S_ISCHR(path.lstat().st_mode)]
    assert all(path.lstat().st_rdev == 0 for path in whiteouts)
    assert layer / "README.rst" in whiteouts
    names = {str(path.relative_to(layer)) for path in layer.rglob("*") if path not in whiteouts and path.is_file()}
    assert {name for name in names if not name.startswith(".git/")} == {"inflection/__init__.py", "MANIFEST.in/file"}


def test_a_patch_that_does_not_apply_is_the_tasks_fault(environment: Environment, store: NodeStore) -> None:
    with pytest.raises(TaskError, match="does not apply to environment") as caught:
        store.derive(environment, "--- a/nowhere.py\n+++ b/nowhere.py\n@@ -1 +1 @@\n-a\n+b\n")
    assert caught.value.owner == "task" and "\n" not in str(caught.value)
    for escape in ("../outside", ".git/config", "/etc/passwd"):
        with pytest.raises(TaskError):
            store.derive(environment, f"--- /dev/null\n+++ b/{escape}\n@@ -0,0 +1 @@\n+x\n")
    assert list((store.root / "scratch").iterdir()) == []


def test_no_patch_is_an_empty_layer(environment: Environment, store: NodeStore) -> None:
    layer = store.derive(environment, "")
    assert list(layer.iterdir()) == []
    with Sandbox(environment.sandbox_spec(layer=layer)) as sandbox:
        assert sandbox.run("git status --porcelain").output == ""

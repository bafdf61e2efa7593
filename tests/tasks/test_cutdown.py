import pytest

from minisandbox_ray.tasks import Task, cut_down
from minisandbox_ray.tasks.cutdown import LARGEST, Protection, file_patches

TASK = Task(
    instance_id="a",
    repo="a",
    FAIL_TO_PASS=["tests/unit/test_x.py::test_a", "checks.py::test_b"],
    PASS_TO_PASS=["lib/pkg/test/case.py::T::test_c"],
    test_files=["data/expected.json"],
)


def change(path: str, header: str = "") -> str:
    return f"diff --git a/{path} b/{path}\n{header}--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"


def new(path: str, mode: str = "100644") -> str:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\nindex 0000000..1111111\n--- /dev/null\n+++ b/{path}\n"
        "@@ -0,0 +1 @@\n+diff --git a/tests/x b/tests/x\n"
    )


@pytest.mark.parametrize(
    "patch",
    [
        change("src/pkg/core.py"),
        change("django/test/runner.py"),
        change("testing.py"),
        new("src/pkg/json.py"),
        new("pkg/latest.py"),
        new("docs/my file.txt"),
        "diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n",
        "diff --git a/a.png b/a.png\nindex 1..2 100644\nGIT binary patch\nliteral 3\nKcmZ?\n\nliteral 0\nHcmV\n\n",
        "diff --git a/old.py b/new.py\nsimilarity index 100%\nrename from old.py\nrename to new.py\n",
    ],
)
def test_kept(patch: str) -> None:
    whole = cut_down(TASK, patch, {"numpy"})
    assert (whole.diff, whole.outcome, whole.dropped) == (patch, "applied", [])
    part = cut_down(TASK, change("tests/unit/test_x.py") + patch + new("conftest.py"))
    assert (part.diff, part.outcome, part.dropped) == (patch, "cut_down", ["conftest.py", "tests/unit/test_x.py"])


@pytest.mark.parametrize(
    "patch",
    [
        change("tests/unit/test_x.py"),
        change("tests/helpers.py"),
        change("pkg/sub/tests/data.json"),
        change("checks.py"),
        change("lib/pkg/test/__init__.py"),
        change("data/expected.json"),
        change("pkg/test_other.py"),
        change("conftest.py"),
        new("src/pkg/conftest.py"),
        new("pytest.ini"),
        new("setup.cfg"),
        "diff --git a/pyproject.toml b/pyproject.toml\ndeleted file mode 100644\n",
        change("tox.ini"),
        new("lib/pkg", "100644"),
        new("sitecustomize/__init__.py"),
        new("numpy.py"),
        new("src/numpy/__init__.py"),
        new("./tests//x.py"),
        new("sitecustomize.py"),
        new("src/usercustomize.py"),
        new("evil.pth"),
        new(".git/hooks/post-checkout"),
        new("sub/.git"),
        new("evil.dist-info/entry_points.txt"),
        new("pkg/__pycache__/core.cpython-312.pyc"),
        new("pytest.py"),
        new("src/_pytest/__init__.py"),
        new("json.py"),
        new("xml.so"),
        new("tests", "100755"),
        "diff --git a/tests/unit/test_x.py b/tests/unit/test_x.py\ndeleted file mode 100644\n",
        "diff --git a/checks.py b/x.py\nsimilarity index 100%\nrename from checks.py\nrename to x.py\n",
        "diff --git a/core.py b/conftest.py\nsimilarity index 100%\nrename from core.py\nrename to conftest.py\n",
        "diff --git a/core.py b/pytest.py\nsimilarity index 100%\ncopy from core.py\ncopy to pytest.py\n",
        'diff --git "a/tests/\\303\\244.py" "b/tests/\\303\\244.py"\nnew file mode 100644\n',
    ],
)
def test_dropped(patch: str) -> None:
    nothing = cut_down(TASK, patch, {"numpy"})
    assert (nothing.diff, nothing.outcome) == ("", "nothing_left")
    part = cut_down(TASK, change("pkg/a.py") + patch + change("pkg/b.py"), {"numpy"})
    assert (part.diff, part.outcome) == (change("pkg/a.py") + change("pkg/b.py"), "cut_down")


def test_paths_are_unquoted() -> None:
    text = (
        'diff --git "a/\\303\\244 \\"b\\".py" "b/\\303\\244 \\"b\\".py"\n--- "a/\\303\\244 \\"b\\".py"\n+++ /dev/null\n'
    )
    assert next(file_patches(text)).paths == {'ä "b".py'}
    assert next(file_patches(change("a b.py").replace(".py\n@", ".py\t\n@"))).paths == {"a b.py"}


@pytest.mark.parametrize(
    ("diff", "outcome"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("--- a/x\n+++ b/x\n", "no_patch"),
        ("words\n" + change("a.py"), "no_patch"),
        (change("a.py")[:-3], "no_patch"),
        (change("a.py") + "--- a/tests/x\n+++ b/tests/x\n@@ -1 +1 @@\n-a\n+b\n", "no_patch"),
        (change("a.py") + "--- a/tests/x\n+++ b/tests/x\n", "no_patch"),
        (change("a.py", "--- a/tests/x\n+++ b/tests/x\n"), "no_patch"),
        (change("a.py", "rubbish\n"), "no_patch"),
        (new("sub", "160000"), "no_patch"),
        (change("a.py") + " " * LARGEST, "too_large"),
        (new("a", "120000").replace("+diff --git a/tests/x b/tests/x", "+/venv/lib"), "refused_symlink"),
        (new("a/b", "120000").replace("+diff --git a/tests/x b/tests/x", "+../../etc"), "refused_symlink"),
        (new("a/b", "120000").replace("+diff --git a/tests/x b/tests/x", "+../tests"), "refused_symlink"),
        (new("a/b", "120000").replace("+diff --git a/tests/x b/tests/x", "+../.git/hooks"), "refused_symlink"),
        (new("a/b", "120000").replace("+diff --git a/tests/x b/tests/x", "+c/../d"), "applied"),
        (change("a.py").replace("\n", "\r\n"), "applied"),
        (change("a.py").replace("-a\n+b\n", "-a\r\n+b\r\n"), "applied"),
    ],
)
def test_outcomes(diff: str, outcome: str) -> None:
    assert cut_down(TASK, diff).outcome == outcome


def test_files_that_are_configuration_too_are_told() -> None:
    cut = cut_down(TASK, change("setup.cfg") + change("src/pyproject.toml") + change("a.py"))
    assert (cut.outcome, cut.mixed) == ("applied", ["setup.cfg", "src/pyproject.toml"])


@pytest.mark.parametrize(
    ("path", "frozen"),
    [
        ("tests/unit/test_x.py", True),
        ("tests/unit", True),
        ("tests", True),
        ("tests/helpers.py", True),
        ("tests/unit/__pycache__/test_x.cpython-312.pyc", True),
        ("conftest.py", True),
        ("setup.cfg", True),
        ("data/expected.json", True),
        ("json.py", True),
        ("tests/written.txt", False),
        ("tests/new", False),
        ("src/pkg/core.py", False),
        ("src/pkg/__pycache__/core.cpython-312.pyc", False),
    ],
)
def test_what_nothing_may_write_while_tests_run(path: str, frozen: bool) -> None:
    assert Protection(TASK).freezes(path) == frozen

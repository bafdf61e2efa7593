"""A small repository built into a real environment, and a task on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minisandbox_ray.environments import EnvSpec, NodeStore, Source, build_environment, cache_root
from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks import Task

PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a + b
+    return a - b
"""

FIX = "sed -i 's/a - b/a + b/' calc.py"

TESTS = """\
from calc import add


def test_zero():
    assert add(0, 0) == 0


def test_add():
    assert add(1, 2) == 3
"""


@contextmanager
def cache_in(root: Path) -> Iterator[Path]:
    """A cache of its own, which shares the wheels of this machine's."""
    wheels = cache_root() / "wheels"
    if wheels.is_dir():
        (root / "wheels").symlink_to(wheels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINISANDBOX_CACHE", str(root))
        yield root


def build_task(cache: Path, store: NodeStore, source: Path) -> Task:
    """Built from ``source``, an empty directory. Skips the test where packages cannot be had."""
    (source / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (source / "tests").mkdir()
    (source / "tests" / "test_calc.py").write_text(TESTS)
    path_file = "$(python -c \"import sysconfig; print(sysconfig.get_path('purelib'))\")/testbed.pth"
    spec = EnvSpec(
        source=Source(kind="path", path=source), packages=["pytest==8.3.5"], install=[f'echo /testbed > "{path_file}"']
    )
    try:
        manifest = build_environment(spec, cache / "archives", store)
    except BuildError as error:
        pytest.skip(f"no environment without a package index: {str(error).splitlines()[0]}")
    return Task(
        instance_id="calc__1.operator_00000000",
        repo="calc",
        problem_statement="Adding numbers gives wrong sums.",
        patch=PATCH,
        FAIL_TO_PASS=["tests/test_calc.py::test_add"],
        PASS_TO_PASS=["tests/test_calc.py::test_zero"],
        environment=manifest.digest,
    )

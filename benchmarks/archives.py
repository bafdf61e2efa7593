"""A small task with a real environment, and as many others as are wanted that differ in nothing but their digests."""

import os
from typing import Any

CALC = "def scale(a, b):\n    return a * b\n\n\ndef add(a, b):\n    return a + b\n"
TESTS = """\
from calc import add, scale


def test_zero():
    assert add(0, 0) == 0


def test_add():
    assert add(1, 2) == 3


def test_scale():
    assert scale(3, 4) == 12
"""
PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -3,4 +3,4 @@
 
 
 def add(a, b):
-    return a + b
+    return a - b
"""
FIX = "sed -i 's/a - b/a + b/' calc.py"
SMALL = ["pytest==8.3.5"]
LARGE = [*SMALL, "numpy==2.2.6"]
"""Some 90 MiB unpacked."""


def make_task(packages: list[str] = LARGE) -> Any:
    """The task; built on first use into the cache at MINISANDBOX_CACHE, which is for one choice of packages."""
    from minisandbox_ray.environments import EnvSpec, NodeStore, Source, build_environment, cache_root
    from minisandbox_ray.tasks import Task

    note = cache_root() / "benchmark-task.json"
    if note.exists():
        return Task.model_validate_json(note.read_text())
    source = cache_root() / "benchmark-source"
    (source / "tests").mkdir(parents=True)
    (source / "calc.py").write_text(CALC)
    (source / "tests" / "test_calc.py").write_text(TESTS)
    path_file = "$(python -c \"import sysconfig; print(sysconfig.get_path('purelib'))\")/testbed.pth"
    spec = EnvSpec(
        source=Source(kind="path", path=source), packages=packages, install=[f'echo /testbed > "{path_file}"']
    )
    manifest = build_environment(spec, cache_root() / "archives", NodeStore(cache_root() / "store"))
    task = Task(
        instance_id="calc__1.operator_00000000",
        repo="calc",
        problem_statement="Adding numbers gives wrong sums.",
        patch=PATCH,
        FAIL_TO_PASS=["tests/test_calc.py::test_add"],
        PASS_TO_PASS=["tests/test_calc.py::test_zero", "tests/test_calc.py::test_scale"],
        environment=manifest.digest,
    )
    note.write_text(task.model_dump_json())
    return task


def clone_archives(task: Any, count: int) -> list[Any]:
    """Tasks whose environments differ in a variable only; each has an archive and, in stores, a place of its own."""
    from minisandbox_ray.environments import cache_root, environment_digest, read_manifest
    from minisandbox_ray.environments.archive import archive_path, write_manifest

    archives = cache_root() / "archives"
    original = read_manifest(archives, task.environment)
    tasks = []
    for number in range(count):
        spec = original.spec.model_copy(update={"variables": {**original.spec.variables, "CLONE": str(number)}})
        digest = environment_digest(spec, original.interpreter, original.base, original.source_tree)
        if not archive_path(archives, digest).exists():
            os.link(archive_path(archives, task.environment), archive_path(archives, digest))
            write_manifest(archives, original.model_copy(update={"spec": spec, "digest": digest}))
        tasks.append(task.model_copy(update={"environment": digest, "instance_id": f"calc__{number}.clone"}))
    return tasks

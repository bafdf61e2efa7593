"""A deployment for a task of a file, and wheels for what SWE-agent's tools install."""

import asyncio
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from swerex.exceptions import DeploymentStartupError
from swerex.runtime.abstract import UploadRequest

from minisandbox_ray.environments import EnvSpec, NodeStore, Source, build_environment, cache_root
from minisandbox_ray.tasks import Task, save_tasks

BUG = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a + b
+    return a - b
"""


@pytest.fixture(scope="module")
def tasks(sandboxes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("tasks")
    (directory / "source").mkdir()
    (directory / "source" / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINISANDBOX_CACHE", str(directory / "cache"))
        spec = EnvSpec(source=Source(kind="path", path=directory / "source"))
        digest = build_environment(spec, cache_root() / "archives", NodeStore(cache_root() / "store")).digest
        task = Task(
            instance_id="calc__1",
            repo="calc",
            problem_statement="Sums are wrong.",
            patch=BUG,
            FAIL_TO_PASS=["test_calc.py::test_add"],
            environment=digest,
        )
        save_tasks([task], directory / "tasks.jsonl")
        yield directory / "tasks.jsonl"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """One of a package `answers`, made by hand."""
    info = "answers-1.0.dist-info"
    files = {
        "answers.py": "everything = 42\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: answers\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "answers-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return tmp_path / "wheels"


def test_a_task_s_sandbox_has_its_bug_and_no_more_history(start_rex, tasks: Path) -> None:
    rex = start_rex(tasks=tasks, task="calc__1")
    rex.open()
    assert rex.run("cat /testbed/calc.py").output == "def add(a, b):\n    return a - b\n"
    # What SWE-agent does before its agent starts, whatever the repository.
    reset = "cd /testbed && export ROOT=$(pwd -P) && git status && git fetch && git checkout HEAD && git clean -fdq"
    assert rex.run(reset).exit_code == 0
    assert rex.run("git rev-list --count HEAD").output == "1\n"


def test_pip_inside_installs_from_wheels(start_rex, tasks: Path, wheels: Path) -> None:
    rex = start_rex(tasks=tasks, task="calc__1", wheels=wheels)
    rex.open()
    installed = rex.run("pip install answers && python -c 'import answers; print(answers.everything)'")
    assert installed.output.splitlines()[-1] == "42", installed.output


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"task": "calc__2"}, "no task calc__2 in"),
        ({"task": "calc__1", "wheels": "/nowhere"}, "wheels: /nowhere is no"),
    ],
)
def test_what_is_wrong_is_told_at_start(start_rex, tasks: Path, fields: dict[str, str], said: str) -> None:
    with pytest.raises(DeploymentStartupError, match=said):
        start_rex(tasks=tasks, **fields)


def test_directories_are_uploaded_side_by_side(rex, tmp_path: Path) -> None:
    """As SWE-agent uploads its tools: all at once, into one directory that is not there yet."""
    for number in range(8):
        (tmp_path / f"tool{number}" / "bin").mkdir(parents=True)
        (tmp_path / f"tool{number}" / "bin" / "run").write_text(str(number))

    async def upload() -> None:
        requests = [
            UploadRequest(source_path=str(tmp_path / f"tool{number}"), target_path=f"/root/tools/{number}")
            for number in range(8)
        ]
        await asyncio.gather(*map(rex.runtime.upload, requests))

    asyncio.run(upload())
    assert rex.execute("cat /root/tools/*/bin/run", shell=True).stdout == "01234567"


def test_the_command_line_says_what_it_does() -> None:
    program = [sys.executable, "-m", "trainer_integration.swe_agent"]
    told = subprocess.run([*program, "inspect"], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (2, "")
    assert "run|run-batch|run-replay" in told.stderr

"""mini-swe-agent's own batch runner over tasks of ours, with a model that knows the answers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed")

from minisweagent.models.test_models import DeterministicModel, make_output
from minisweagent.run.benchmarks import swebench

from minisandbox_ray.environments import EnvSpec, NodeStore, Source, build_environment, cache_root
from minisandbox_ray.tasks import Task, load_tasks, save_tasks

CONFIG = Path(__file__).parents[3] / "configs" / "agents" / "mini_swe_agent.yaml"
SUBMIT = "git diff > /tmp/patch && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat /tmp/patch"
BUG = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a + b
+    return a - b - {number}
"""


class KnowsAll(DeterministicModel):
    """Undoes the bug of the task whose statement it reads."""

    def __init__(self, *, tasks: str, **kwargs: object) -> None:
        super().__init__(outputs=[], **kwargs)
        self._tasks = load_tasks(tasks)

    def query(self, messages: list[dict[str, str]], **kwargs: object) -> dict:
        if self.current_index < 0:
            told = "\n".join(str(message["content"]) for message in messages)
            (task,) = [task for task in self._tasks if task.problem_statement in told]
            commands = [task.gold_command(), SUBMIT]
            self.config.outputs = [make_output("So:", [{"command": command}]) for command in commands]
        return super().query(messages, **kwargs)


@pytest.fixture
def tasks(
    sandboxes: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Task]]:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    spec = EnvSpec(source=Source(kind="path", path=source))
    digest = build_environment(spec, cache_root() / "archives", NodeStore(cache_root() / "store")).digest
    yield [
        Task(
            instance_id=f"calc__{number}",
            repo="calc",
            problem_statement=f"Sums are wrong (report {number:03}).",
            patch=BUG.format(number=number),
            FAIL_TO_PASS=["test_calc.py::test_add"],
            environment=digest,
        )
        for number in range(6)
    ]


def test_its_batch_runner_gives_each_task_a_sandbox_of_its_own(
    tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets", reason="mini-swe-agent reads its tasks with it")
    file = tmp_path / "data" / "tasks.jsonl"
    save_tasks(tasks, file)
    monkeypatch.setattr(swebench, "get_model", lambda config: KnowsAll(tasks=str(file)))
    swebench.main(
        subset=str(file.parent),
        split="train",
        slice_spec="",
        filter_spec="",
        shuffle=False,
        output=str(tmp_path / "out"),
        workers=3,
        model=None,
        model_class=None,
        redo_existing=False,
        config_spec=["swebench_backticks.yaml", str(CONFIG), f"environment.tasks={file}"],
        environment_class=None,
    )
    predictions = json.loads((tmp_path / "out" / "preds.json").read_text())
    assert set(predictions) == {task.instance_id for task in tasks}
    for number, task in enumerate(tasks):
        patch = predictions[task.instance_id]["model_patch"]
        assert f"-    return a - b - {number}\n+    return a + b\n" in patch
        trajectory = tmp_path / "out" / task.instance_id / f"{task.instance_id}.traj.json"
        assert json.loads(trajectory.read_text())["info"]["exit_status"] == "Submitted"

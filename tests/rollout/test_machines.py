"""Task folders of Harbor's form: their machine is built, an agent works on it, their own script judges it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox_ray.cluster import Connection
from minisandbox_ray.environments import NodeStore, build_environment
from minisandbox_ray.errors import BuildError, ConfigError
from minisandbox_ray.rollout import EpisodePool, SandboxEnv
from minisandbox_ray.tasks import Task
from minisandbox_ray.tasks.datasets.harbor import harbor_task
from minisandbox_ray.tasks.recipes.script import script_recipe

DOCKERFILE = """\
FROM python:3.12-slim
RUN echo made > /etc/made && useradd -m worker && mkdir -p /data && echo in > /data/in && \\
    printf '#!/bin/sh\\necho tool' > /usr/bin/own-tool && chmod 755 /usr/bin/own-tool
ENV GREETING="two words"
WORKDIR /app
COPY data/ data/
COPY data/a.txt /etc/app.conf
"""
TEST = """\
check() { "$@" || { echo "not so: $*"; exit 1; }; }
check test "$(pwd)" = /app
check test "$GREETING" = "two words"
check test "$(cat /etc/app.conf)" = a
check test -f /tests/more/data
check test "$(own-tool)" = tool
check test "$(cat /etc/made)" = made
check id worker
check grep -q in /data/in
check python -c "import sys; assert sys.prefix == '/usr/local', sys.prefix"
check grep -q done /app/result
check grep -q other /etc/made.too
check test ! -e /solution
pgrep -f 'sleep 4242' > /dev/null && exit 1
echo 1 > /logs/verifier/reward.txt
"""
SOLVE = "set -e\necho done > result\necho other > /etc/made.too\n"


def folder_of(root: Path, dockerfile: str = DOCKERFILE, test: str = TEST) -> Path:
    for path, text in {
        "task.toml": 'version = "1.0"\n[environment]\nallow_internet = false\n',
        "instruction.md": "Write done to result.\n",
        "environment/Dockerfile": dockerfile,
        "environment/data/a.txt": "a",
        "tests/test.sh": test,
        "tests/more/data": "",
        "solution/solve.sh": SOLVE,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture(scope="module")
def machine(cache: Path, store: NodeStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Task]:
    task = harbor_task(folder_of(tmp_path_factory.mktemp("set") / "hello"))
    assert task.script is not None
    recipe = script_recipe(task.script)
    manifest = build_environment(recipe.spec, cache / "archives", store)
    assert manifest.unpacked_bytes < 100 << 20  # what lies over the system, and not the system
    yield recipe.complete(task, manifest.digest)


def play(pool: EpisodePool, task: Task, *actions: str) -> tuple[float, dict]:
    with SandboxEnv(pool) as env:
        env.reset(task)
        for action in actions:
            env.step(f"```bash\n{action}\n```")
        _, reward, terminated, _, info = env.step("```bash\nsubmit\n```")
    assert terminated
    return reward, info


def test_the_gold_solution_is_rewarded_and_nothing_is_not(
    local_cluster: Connection, pool: EpisodePool, machine: Task
) -> None:
    reward, info = play(pool, machine, machine.gold_command())
    assert (reward, info["graded"]["resolved"]) == (1.0, True), info["graded"]["log"]
    assert not info["graded"]["witnessed"]
    reward, info = play(pool, machine)
    assert (reward, info["failure_owner"]) == (0.0, None)
    assert "neither" in info["graded"]["reason"]


def test_a_reward_written_beforehand_and_what_runs_on_do_not_count(
    local_cluster: Connection, pool: EpisodePool, machine: Task
) -> None:
    forge = "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo true > /tests/test.sh"
    assert play(pool, machine, forge)[0] == 0.0
    # The check for the process would fail if it went with the files.
    assert play(pool, machine, machine.gold_command(), "setsid sleep 4242 &")[0] == 1.0


def test_the_tests_and_the_solution_are_not_there_for_the_agent(
    local_cluster: Connection, pool: EpisodePool, machine: Task
) -> None:
    with SandboxEnv(pool) as env:
        env.reset(machine)
        observation, *_ = env.step(
            "```bash\nls -d /tests /solution /verifier /testbed/verifier; pwd; touch /usr/x; id -un\n```"
        )
    assert "/app" in observation and "root" in observation
    assert observation.count("No such file") == 4


def test_a_failed_instruction_is_told_with_its_output(cache: Path, store: NodeStore, tmp_path: Path) -> None:
    task = harbor_task(folder_of(tmp_path / "bad", "FROM debian:12\nRUN echo this broke; exit 3\n"))
    assert task.script is not None
    with pytest.raises(BuildError, match=r"bad: `RUN echo this broke; exit 3` ended with status 3(.|\n)*this broke"):
        build_environment(script_recipe(task.script).spec, cache / "archives", store)


def test_a_folder_that_changed_since_it_was_read_is_refused(cache: Path, store: NodeStore, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "changed")
    task = harbor_task(folder)
    assert task.script is not None
    spec = script_recipe(task.script).spec
    (folder / "tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    with pytest.raises(ConfigError, match="is not what it was"):
        build_environment(spec, cache / "archives", store)


def test_a_machine_with_other_parts_is_refused(tmp_path: Path) -> None:
    task = harbor_task(folder_of(tmp_path / "both"))
    assert task.script is not None
    spec = script_recipe(task.script).spec.model_dump()
    with pytest.raises(ValueError, match="by its instructions alone, not by packages"):
        type(script_recipe(task.script).spec).model_validate({**spec, "packages": ["pytest"]})

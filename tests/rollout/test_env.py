import asyncio
from pathlib import Path

import pytest
import ray

from minisandbox_ray.cluster import ClusterConfig
from minisandbox_ray.environments import NodeStore
from minisandbox_ray.errors import ArchiveError, ConfigError, TaskError
from minisandbox_ray.rollout import EpisodeConfig, EpisodePool, SandboxEnv, validate_tasks
from minisandbox_ray.sandbox import Limits
from minisandbox_ray.tasks import GradingConfig, Task
from minisandbox_ray.tasks.validation import is_validated, load_validation

from .calc import FIX
from .play import SUBMIT, bash, kill, sandbox_init, sandbox_worker, until, used

UNCACHED = EpisodeConfig(grading=GradingConfig(cache=False))


def test_fixed_task_earns_one(pool: EpisodePool, task: Task) -> None:
    with SandboxEnv(pool, UNCACHED) as env:
        observation, info = env.reset(task, seed=7)
        assert observation == task.problem_statement
        assert (info["instance_id"], info["seed"]) == (task.instance_id, 7)
        assert set(info["seconds"]) == {"wait", "slots", "materialise", "derive", "sandbox"}
        observation, reward, terminated, truncated, info = env.step(bash("ls"))
        assert "calc.py" in observation
        assert (reward, terminated, truncated, info["exit_code"]) == (0.0, False, False, 0)
        env.step(bash(FIX))
        _, reward, terminated, truncated, info = env.step(SUBMIT)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["graded"]["resolved"]
    assert info["trainable"]
    assert info["failure_owner"] is None
    assert "+    return a + b" in info["diff"]
    assert not info["grade_cached"]
    assert info["seconds"].keys() >= {"diff", "grade"}
    assert until(lambda: used(pool) == 0)


def test_untouched_task_earns_zero(pool: EpisodePool, task: Task) -> None:
    with SandboxEnv(pool, UNCACHED) as env:
        env.reset(task)
        _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["diff"], info["trainable"]) == (0.0, True, "", True)
    assert info["graded"]["owner"] == "agent"


def test_malformed_action_costs_a_turn_and_the_last_turn_is_graded(pool: EpisodePool, task: Task) -> None:
    with SandboxEnv(pool, EpisodeConfig(max_turns=2)) as env:
        env.reset(task)
        observation, reward, terminated, truncated, info = env.step("I think that I will look around.")
        assert "exactly one command block" in observation
        assert "Turns left: 1." in observation
        assert (reward, terminated, truncated, info["turn"]) == (0.0, False, False, 1)
        observation, reward, terminated, truncated, info = env.step(bash(FIX))
    assert (reward, terminated, truncated, info["turn"]) == (1.0, False, True, 2)
    assert "last turn" in observation


def test_time_limit_of_a_command_leaves_the_session(pool: EpisodePool, task: Task) -> None:
    with SandboxEnv(pool, EpisodeConfig(command_timeout=1)) as env:
        env.reset(task)
        observation, *_, info = env.step(bash("echo begun; sleep 60"))
        assert info["timed_out"]
        assert "begun" in observation
        assert "took too long" in observation
        assert "fine" in env.step(bash("echo fine"))[0]


def test_time_limit_of_the_episode_truncates_and_grades(pool: EpisodePool, task: Task) -> None:
    with SandboxEnv(pool, EpisodeConfig(episode_timeout=2)) as env:
        env.reset(task)
        env.step(bash(FIX))
        _, reward, terminated, truncated, info = env.step(bash("sleep 60"))
    assert (reward, terminated, truncated, info["timed_out"]) == (1.0, False, True, True)


def test_long_output_is_cut(pool: EpisodePool, task: Task) -> None:
    with SandboxEnv(pool, EpisodeConfig(observation_chars=300)) as env:
        env.reset(task)
        observation = env.step(bash("seq 100000"))[0]
    assert "characters cut" in observation
    assert len(observation) < 600


def test_agent_that_exhausts_its_sandbox_has_only_itself_to_blame(pool: EpisodePool, task: Task) -> None:
    with SandboxEnv(pool, EpisodeConfig(limits=Limits(memory_mib=128), max_turns=2)) as env:
        env.reset(task)
        observation, *_, info = env.step(bash("python3 -c 'x = bytearray(10 ** 9)'"))
        assert info["limit"] == "memory"
        assert "out of memory" in observation
        _, reward, terminated, truncated, info = env.step(bash("kill -9 -1; kill -9 $$"))
    assert (reward, terminated or truncated, info["trainable"]) == (0.0, True, True)


def test_sandbox_killed_from_outside_is_not_the_agents_failure(pool: EpisodePool, task: Task) -> None:
    async def main() -> None:
        env = SandboxEnv(pool, EpisodeConfig(replays=0))
        await env.areset(task)
        step = asyncio.create_task(env.astep(bash("sleep 543.21")))
        await asyncio.to_thread(kill, sandbox_init, "543.21")
        _, reward, terminated, _, info = await step
        assert (reward, terminated) == (0.0, True)
        assert (info["failure_owner"], info["trainable"]) == ("sandbox", False)
        assert info["failure"]

    asyncio.run(main())
    assert until(lambda: used(pool) == 0)


def test_killed_worker_is_a_failure_of_the_cluster_and_leaves_nothing(pool: EpisodePool, task: Task) -> None:
    async def main() -> None:
        env = SandboxEnv(pool, EpisodeConfig(replays=0))
        await env.areset(task)
        step = asyncio.create_task(env.astep(bash("sleep 654.32")))
        await asyncio.to_thread(kill, sandbox_worker, "654.32")
        _, _, terminated, _, info = await step
        assert (terminated, info["failure_owner"], info["trainable"]) == (True, "cluster", False)
        with pytest.raises(ConfigError, match="call reset"):
            await env.astep(SUBMIT)
        await env.areset(task)
        assert (await env.astep(bash("echo again")))[4]["exit_code"] == 0
        await env.aclose()

    asyncio.run(main())
    assert until(lambda: sandbox_init("654.32") == 0)
    assert until(lambda: pool.capacity == 4 and used(pool) == 0)


def test_stepping_without_a_running_episode_is_refused(pool: EpisodePool, task: Task) -> None:
    with SandboxEnv(pool) as env:
        with pytest.raises(ConfigError, match="call reset"):
            env.step(SUBMIT)
        env.reset(task)
        env.step(SUBMIT)
        with pytest.raises(ConfigError, match="call reset"):
            env.step(SUBMIT)


def test_equal_diffs_are_graded_once(pool: EpisodePool, task: Task) -> None:
    before = pool.grade_counts()
    config = EpisodeConfig(max_turns=1, grading=GradingConfig(log_chars=1234))  # a key of this test's own

    async def play() -> tuple[float, bool]:
        env = SandboxEnv(pool, config)
        await env.areset(task)
        _, reward, _, _, info = await env.astep(bash(FIX))
        return reward, info["grade_cached"]

    async def main() -> list[tuple[float, bool]]:
        return await asyncio.gather(*(play() for _ in range(12)))

    assert sorted(asyncio.run(main())) == [(1.0, False)] + [(1.0, True)] * 11
    after = pool.grade_counts()
    assert (after["hits"] - before["hits"], after["misses"] - before["misses"]) == (11, 1)
    assert until(lambda: used(pool) == 0)


def test_lost_grade_service_costs_only_its_memory(pool: EpisodePool, cache: Path, task: Task) -> None:
    config = ClusterConfig(workers_per_node=1, sandboxes_per_worker=1)
    with EpisodePool(config, cache / "archives") as own, SandboxEnv(own) as env:
        env.reset(task)
        ray.kill(own._grades)
        assert env.step(SUBMIT)[4]["graded"]["reward"] == 0.0


def test_cold_environment_is_unpacked_once_for_all(pool: EpisodePool, task: Task, store: NodeStore) -> None:
    before = pool.stats()["unpacks"]
    assert until(lambda: store.evict(task.environment))

    async def play() -> dict:
        env = SandboxEnv(pool)
        _, info = await env.areset(task)
        await env.aclose()
        return info

    async def main() -> list[dict]:
        return await asyncio.gather(*(play() for _ in range(4)))

    infos = asyncio.run(main())
    assert pool.stats()["unpacks"] == before + 1
    assert all(info["seconds"]["materialise"] > 0 for info in infos)
    asyncio.run(play())
    assert pool.stats()["unpacks"] == before + 1


def test_unusable_tasks_are_typed_errors_and_cost_no_slot(pool: EpisodePool, task: Task) -> None:
    with SandboxEnv(pool) as env:
        with pytest.raises(ArchiveError):
            env.reset(task.model_copy(update={"environment": "0" * 64}))
        with pytest.raises(TaskError):
            env.reset(task.model_copy(update={"patch": task.patch.replace("a + b", "a * b")}))
        with pytest.raises(TaskError, match="not supported yet"):
            env.reset(task.model_copy(update={"graded_by": "script"}))
    assert until(lambda: used(pool) == 0)


def test_validation_tells_good_tasks_from_bad_ones(pool: EpisodePool, task: Task) -> None:
    always = task.model_copy(update={"instance_id": "always", "FAIL_TO_PASS": task.PASS_TO_PASS})
    never = task.model_copy(update={"instance_id": "never", "FAIL_TO_PASS": ["tests/test_calc.py::test_missing"]})
    seen: list[str] = []
    rows = validate_tasks([task, always, never], pool, on_row=lambda row: seen.append(row.instance_id), repeats=2)
    assert [(row.gold, row.empty, row.valid) for row in rows] == [
        ([True, True], [False, False], True),
        ([True, True], [True, True], False),
        ([False, False], [False, False], False),
    ]
    assert "pass without a fix" in rows[1].reason
    assert "gold" in rows[2].reason and rows[2].missing == never.FAIL_TO_PASS
    assert sorted(seen) == sorted([task.instance_id, "always", "never"])
    assert [is_validated(each) for each in (task, always, never)] == [True, False, False]
    assert load_validation(never) == rows[2]


def test_flaky_tests_are_found(pool: EpisodePool, task: Task) -> None:
    """A test that passes by chance: some repeats tell."""
    chance = "tests/test_chance.py::test_chance"
    text = "import os\n\ndef test_chance():\n    assert os.urandom(1)[0] % 2\n"
    extra = {"instance_id": "chance", "hidden_tests": {"tests/test_chance.py": text}}
    flaky = task.model_copy(update={**extra, "PASS_TO_PASS": [*task.PASS_TO_PASS, chance]})
    (row,) = validate_tasks([flaky], pool, repeats=8)
    assert (row.valid, row.flaky) == (False, [chance])
    assert "test_chance" in row.reason


def test_environment_brings_its_own_pool(pool: EpisodePool, cache: Path, task: Task) -> None:
    with SandboxEnv(archives=cache / "archives") as env:
        env.reset(task)
        env.step(bash(FIX))
        assert env.step(SUBMIT)[1] == 1.0

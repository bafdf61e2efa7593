"""Failures that are not the agent's: the episode is played again elsewhere, and comes out as without them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minisandbox_ray.config import load_config
from minisandbox_ray.errors import ClusterError, ConfigError, SandboxError
from minisandbox_ray.rollout import EpisodeConfig, EpisodePool, SandboxEnv
from minisandbox_ray.rollout.config import check_lifetime, grading_seconds, step_seconds
from minisandbox_ray.rollout.replay import DivergedError, Trail, digest
from minisandbox_ray.tasks import GradingConfig, Task, save_tasks

from .calc import FIX
from .play import SUBMIT, bash, diff_init, kill, sandbox_init, sandbox_worker, until, used, workers

UNCACHED = EpisodeConfig(grading=GradingConfig(cache=False))
UNTOUCHED = {"count": 0, "turns": [], "diverged_turns": []}
VICTIMS = {"init": sandbox_init, "worker": sandbox_worker}


def is_clean(pool: EpisodePool) -> bool:
    return pool.capacity == 4 and used(pool) == 0


@pytest.mark.parametrize("victim", VICTIMS)
def test_in_the_middle_of_a_step(pool: EpisodePool, task: Task, victim: str) -> None:
    with ThreadPoolExecutor() as threads, SandboxEnv(pool, UNCACHED) as env:
        _, info = env.reset(task, seed=3)
        assert info["replay"] == UNTOUCHED
        first = info["worker"]
        env.step(bash("echo kept > note; cd tests; export WORD=said"))
        env.step("no command at all")
        killing = threads.submit(kill, VICTIMS[victim], "3.2101")
        observation, reward, terminated, truncated, info = env.step(bash("sleep 3.2101; cat ../note; echo $WORD; pwd"))
        killing.result()
        assert "kept\nsaid\n/testbed/tests\n" in observation
        assert (reward, terminated, truncated, info["turn"], info["exit_code"]) == (0.0, False, False, 3, 0)
        assert info["replay"] == {"count": 1, "turns": [3], "diverged_turns": []}
        assert info["worker"] != first
        assert info["seconds"]["replay"] > 0
        *_, info = env.step(bash(f"cd /testbed; rm note; {FIX}"))
        assert "replay" not in info["seconds"]
        _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated, info["trainable"], info["failure_owner"]) == (1.0, True, True, None)
    assert info["replay"] == {"count": 1, "turns": [3], "diverged_turns": []}
    assert until(lambda: is_clean(pool))


def test_between_two_steps_of_asyncio(pool: EpisodePool, task: Task) -> None:
    async def main() -> None:
        env = SandboxEnv(pool, UNCACHED)
        await env.areset(task)
        await env.astep(bash(FIX))
        await env.astep(bash("sleep 1000.25 & disown"))
        await asyncio.to_thread(kill, sandbox_init, "1000.25")
        *_, info = await env.astep(bash("cat calc.py"))
        assert (info["exit_code"], info["replay"]["turns"]) == (0, [3])
        _, reward, _, _, info = await env.astep(SUBMIT)
        assert (reward, info["trainable"], info["replay"]["turns"]) == (1.0, True, [3])

    asyncio.run(main())
    assert until(lambda: is_clean(pool) and sandbox_init("1000.25") == 0)


def slow_to_grade(task: Task, marker: str) -> Task:
    command = ["sh", "-c", f'sleep {marker}; exec /venv/bin/pytest "$@"', "sh"]
    return task.model_copy(update={"test_command": command})


def test_worker_in_the_middle_of_grading(pool: EpisodePool, task: Task) -> None:
    # The worker had promised the grade to all who wait for it: nobody may wait until that promise is too old.
    config = EpisodeConfig(grading=GradingConfig(log_chars=1235))
    with ThreadPoolExecutor() as threads, SandboxEnv(pool, config) as env:
        env.reset(slow_to_grade(task, "2.7801"))
        env.step(bash(FIX))
        submitted = threads.submit(env.step, SUBMIT)
        kill(sandbox_worker, "2.7801")
        _, reward, terminated, _, info = submitted.result(timeout=120)
    assert (reward, terminated, info["trainable"], info["grade_cached"]) == (1.0, True, True, False)
    assert info["replay"] == {"count": 1, "turns": [2], "diverged_turns": []}
    assert until(lambda: is_clean(pool))


def test_sandbox_in_the_middle_of_a_diff(pool: EpisodePool, task: Task) -> None:
    with ThreadPoolExecutor() as threads, SandboxEnv(pool, UNCACHED) as env:
        env.reset(task)
        env.step(bash(f"{FIX}; head -c 120000000 /dev/zero > data"))
        submitted = threads.submit(env.step, SUBMIT)
        kill(lambda _: diff_init(), "")
        _, reward, _, _, info = submitted.result()
    assert (reward, info["trainable"]) == (1.0, True)
    assert until(lambda: is_clean(pool))


def test_sandbox_in_the_middle_of_grading(pool: EpisodePool, task: Task) -> None:
    with ThreadPoolExecutor() as threads, SandboxEnv(pool, UNCACHED) as env:
        env.reset(slow_to_grade(task, "2.7802"))
        killing = threads.submit(kill, sandbox_init, "2.7802")
        _, reward, terminated, _, info = env.step(SUBMIT)
        killing.result()
    assert (reward, terminated, info["trainable"]) == (0.0, True, True)
    assert info["graded"]["tests"]["tests/test_calc.py::test_zero"] == "passed"
    assert info["replay"]["turns"] == [1]
    assert until(lambda: is_clean(pool))


def test_worker_in_the_middle_of_reset(pool: EpisodePool, task: Task) -> None:
    async def main() -> None:
        stopped = workers()
        assert len(stopped) == 2
        for worker in stopped:
            os.kill(worker, signal.SIGSTOP)
        env = SandboxEnv(pool)
        reset = asyncio.create_task(env.areset(task))
        await asyncio.sleep(0.5)  # the call has been sent, and one of the two has it
        assert not reset.done()
        for worker in stopped:
            os.kill(worker, signal.SIGKILL)
        try:
            observation, info = await reset
            assert observation == task.problem_statement
            # It may be played again at the other one, before that is known to be dead, too.
            assert info["replay"]["turns"] in ([0], [0, 0])
            assert (await env.astep(bash("echo fine")))[4]["exit_code"] == 0
        finally:
            await env.aclose()

    asyncio.run(main())
    assert until(lambda: is_clean(pool))


@pytest.mark.parametrize(("command", "marker"), [("echo $RANDOM$RANDOM", "1000.75"), ("date +%N", "1000.76")])
def test_divergence_is_reported_and_the_episode_goes_on(
    pool: EpisodePool, task: Task, command: str, marker: str
) -> None:
    with SandboxEnv(pool, UNCACHED) as env:
        env.reset(task)
        env.step(bash("echo the same"))
        env.step(bash(f"sleep {marker} & disown; {command}"))
        kill(sandbox_init, marker)
        *_, info = env.step(bash(FIX))
        assert info["replay"] == {"count": 1, "turns": [3], "diverged_turns": [2]}
        _, reward, *_, info = env.step(SUBMIT)
    assert (reward, info["trainable"], info["replay"]["diverged_turns"]) == (1.0, True, [2])


def test_replay_that_ends_the_episode_is_a_typed_failure(pool: EpisodePool, task: Task) -> None:
    end = int(time.time()) + 3
    with SandboxEnv(pool, EpisodeConfig(episode_timeout=9)) as env:
        env.reset(task)
        env.step(bash(f"sleep 1000.85 & disown; [ $(date +%s) -lt {end} ] || sleep 900"))
        kill(sandbox_init, "1000.85")
        assert until(lambda: time.time() > end + 1)
        _, reward, terminated, _, info = env.step(bash("echo on"))
        with pytest.raises(ConfigError, match="call reset"):
            env.step(SUBMIT)
    assert (reward, terminated, info["failure_owner"], info["trainable"]) == (0.0, True, "sandbox", False)
    assert "ended at turn 1 of 1" in info["failure"]
    assert info["replay"] == {"count": 1, "turns": [2], "diverged_turns": [1]}
    assert until(lambda: is_clean(pool))


def test_what_a_failure_costs_is_not_the_agents_time(pool: EpisodePool, task: Task) -> None:
    with ThreadPoolExecutor() as threads, SandboxEnv(pool, EpisodeConfig(episode_timeout=16)) as env:
        env.reset(task)
        end = time.time() + 9
        step = threads.submit(env.step, bash(f"[ $(date +%s) -ge {int(end)} ] || sleep 900.5501"))
        assert until(lambda: time.time() > end)
        kill(sandbox_init, "900.5501")
        *_, info = step.result()
        assert (info["exit_code"], info["replay"]["count"]) == (0, 1)
        *_, terminated, truncated, info = env.step(bash("sleep 8"))  # 17 s in all
        assert (terminated, truncated, info["exit_code"]) == (False, False, 0)


def test_bound_of_replays(pool: EpisodePool, task: Task) -> None:
    with ThreadPoolExecutor() as threads, SandboxEnv(pool, EpisodeConfig(replays=1)) as env:
        env.reset(task)
        env.step(bash("sleep 1000.95 & disown"))
        kill(sandbox_init, "1000.95")
        step = threads.submit(env.step, bash("sleep 1000.96"))
        kill(sandbox_init, "1000.96")
        _, reward, terminated, _, info = step.result()
        with pytest.raises(ConfigError, match="call reset"):
            env.step(SUBMIT)
    assert (reward, terminated, info["failure_owner"], info["trainable"]) == (0.0, True, "sandbox", False)
    assert info["replay"] == {"count": 1, "turns": [2], "diverged_turns": []}
    assert until(lambda: is_clean(pool))


@pytest.mark.parametrize("at", ["between", "during"])
def test_lease_that_is_taken_back(pool: EpisodePool, task: Task, at: str) -> None:
    with ThreadPoolExecutor() as threads, SandboxEnv(pool, UNCACHED) as env:
        env.reset(task)
        env.step(bash(FIX))
        assert env._trail is not None
        taken = env._trail.lease
        assert taken is not None
        if at == "between":
            taken.release()
        step = threads.submit(env.step, bash("sleep 2.2201; ls"))
        assert until(lambda: sandbox_init("2.2201") > 0)
        if at == "during":
            taken.release()
        *_, info = step.result()
        assert (info["exit_code"], info["replay"]) == (0, {"count": 1, "turns": [2], "diverged_turns": []})
        assert env.step(SUBMIT)[1] == 1.0
    assert until(lambda: is_clean(pool))


@pytest.mark.slow
@pytest.mark.cluster
def test_node_that_is_lost(task: Task, tmp_path: Path) -> None:
    save_tasks([task], tmp_path / "tasks.jsonl")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:
        script = Path(__file__).with_name("raylets.py")
        ray = {"RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, str(script), str(tmp_path / "tasks.jsonl")]
        done = subprocess.run(command, env=os.environ | ray, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert "failed" not in results, results["failed"]
    outcomes = results["outcomes"]
    assert [(row["reward"], row["code"]) for row in outcomes] == [(1.0, 0)] * 8
    assert [row["replay"]["count"] for row in outcomes].count(1) == 4
    assert all(
        row["replay"]["diverged_turns"] == [] and row["moved"] == bool(row["replay"]["count"]) for row in outcomes
    )
    assert (results["used"], results["nodes"]) == (0, 1)


def test_cancelled_in_the_middle_of_a_replay(pool: EpisodePool, task: Task) -> None:
    async def main() -> None:
        env = SandboxEnv(pool)
        await env.areset(task)
        await env.astep(bash("sleep 1000.65 & disown; sleep 4.4401"))
        await asyncio.to_thread(kill, sandbox_init, "1000.65")
        step = asyncio.create_task(env.astep(bash("ls")))
        assert await asyncio.to_thread(until, lambda: sandbox_init("4.4401") > 0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        with pytest.raises(ConfigError, match="call reset"):
            await env.astep(SUBMIT)

    asyncio.run(main())
    assert until(lambda: is_clean(pool) and sandbox_init("4.4401") == 0)


def test_closed_in_the_middle_of_a_replay(pool: EpisodePool, task: Task) -> None:
    with ThreadPoolExecutor() as threads:
        env = SandboxEnv(pool)
        env.reset(task)
        env.step(bash("sleep 1000.55 & disown; sleep 4.4402"))
        kill(sandbox_init, "1000.55")
        step = threads.submit(env.step, bash("ls"))
        assert until(lambda: sandbox_init("4.4402") > 0)
        env.close()
        *_, info = step.result()
    assert (info["trainable"], info["replay"]["count"]) == (False, 1)
    assert until(lambda: is_clean(pool) and sandbox_init("4.4402") == 0)


def test_failures_of_agent_and_task_are_not_played_again(task: Task) -> None:
    trail = Trail(task, None, 2)
    for owner in ("agent", "task", "user", "model"):
        error = SandboxError("it failed")
        error.owner = owner  # type: ignore[assignment]
        assert not trail.fail(error)
    assert [trail.fail(SandboxError("died")), trail.fail(ClusterError("lost")), trail.fail(ClusterError("lost"))] == [
        True,
        True,
        False,
    ]
    assert trail.info()["count"] == 2


def test_comparison_of_what_was_observed(task: Task) -> None:
    trail = Trail(task, None, 2)
    for text in ("a", "b", "c"):
        trail.took(f"echo {text}", text)
    trail.compare([digest("a"), digest("x"), digest("c")], ClusterError("lost"))
    assert trail.info()["diverged_turns"] == [2]
    with pytest.raises(DivergedError, match="ended at turn 2 of 3") as error:
        trail.compare([digest("a")], ClusterError("lost"))
    assert error.value.owner == "cluster"
    assert not trail.fail(error.value)


def test_worker_counts_as_hung_when_a_step_takes_longer_than_it_can() -> None:
    config = EpisodeConfig(max_turns=5, command_timeout=7, episode_timeout=1000, grading=GradingConfig(timeout=50))
    command = step_seconds(config, 1, 0.0, bash("ls"))
    graded = command + grading_seconds(config.grading)
    assert 7 < command < 200
    assert step_seconds(config, 1, 0.0, SUBMIT) == graded
    assert step_seconds(config, 5, 0.0, bash("ls")) == graded
    assert step_seconds(config, 1, 990.0, bash("ls")) == graded


def test_lease_must_outlast_agent_and_grading() -> None:
    config = EpisodeConfig(episode_timeout=1000, grading=GradingConfig(timeout=50))
    enough = 1000 + grading_seconds(config.grading)
    check_lifetime(config, enough)
    with pytest.raises(ConfigError) as error:
        check_lifetime(config, enough - 1)
    for part in ("episode.episode_timeout=1000", "grading.timeout=50", f"cluster.lease_seconds={enough - 1:g}"):
        assert part in str(error.value)
    assert grading_seconds(GradingConfig(cache=False)) < grading_seconds(GradingConfig())
    quickstart = f"config={Path(__file__).parents[2] / 'configs' / 'quickstart.yaml'}"
    with pytest.raises(ConfigError, match=r"episode\.episode_timeout=7000 .* cluster\.lease_seconds=7200"):
        load_config([quickstart, "episode.episode_timeout=7000"])

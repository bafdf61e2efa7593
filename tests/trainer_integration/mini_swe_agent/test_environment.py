"""What mini-swe-agent asks of its own environments (tests/environments of its repository), and what ours adds."""

import gc
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed")

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

from minisandbox_ray.errors import ConfigError
from trainer_integration.mini_swe_agent import MiniSandboxEnvironment

CLASS = "trainer_integration.mini_swe_agent.MiniSandboxEnvironment"


@pytest.fixture(autouse=True)
def _supported(sandboxes: None) -> None:
    pass


@pytest.fixture(scope="module")
def env(sandboxes: None) -> Iterator[MiniSandboxEnvironment]:
    env = MiniSandboxEnvironment(env={"TEST_VAR": "test_value", "ANOTHER_VAR": "another value"}, timeout=20)
    yield env
    env.cleanup()


def out(env: MiniSandboxEnvironment, command: str, **options: object) -> str:
    result = env.execute({"command": command}, **options)  # type: ignore[arg-type]
    assert result["returncode"] == 0, result
    assert result["exception_info"] == ""
    return result["output"]


def test_a_command_s_output_and_status(env: MiniSandboxEnvironment) -> None:
    assert out(env, "echo 'hello world'") == "hello world\n"
    assert env.execute({"command": "exit 42"})["returncode"] == 42
    failed = env.execute({"command": "echo out; ls /nowhere; echo err >&2; false"})
    assert re.fullmatch(r"out\n.*/nowhere.*\nerr\n", failed["output"])
    assert failed["returncode"] == 1
    assert "not found" in env.execute({"command": "no_such_program"})["output"]


def test_quoting_newlines_and_unicode_arrive(env: MiniSandboxEnvironment) -> None:
    assert out(env, 'echo "it\'s" \'$HOME\' \\\n  && echo "ünïcödé 🎉"') == "it's $HOME\nünïcödé 🎉\n"
    assert "�" in out(env, "printf '\\xff\\xfe'")
    assert out(env, "cat <<'EOF'\n`x` $(y)\nEOF") == "`x` $(y)\n"


def test_variables_and_no_others(env: MiniSandboxEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "secret")
    assert out(env, 'echo "$TEST_VAR $ANOTHER_VAR [$HOST_SECRET]"') == "test_value another value []\n"
    out(env, "export TEST_VAR=changed")
    assert out(env, "echo $TEST_VAR") == "test_value\n"


def test_files_stay_and_directories_do_not(env: MiniSandboxEnvironment) -> None:
    assert out(env, "pwd") == "/testbed\n"
    out(env, "mkdir -p d && cd d && echo text > file")
    assert out(env, "pwd; cat d/file") == "/testbed\ntext\n"
    assert out(env, "pwd", cwd="/tmp") == "/tmp\n"
    assert not Path("/testbed/d").exists()


def test_a_time_limit_ends_what_the_command_started(env: MiniSandboxEnvironment) -> None:
    result = env.execute({"command": "echo before; sleep 300 & sleep 300"}, timeout=1)
    assert result["output"] == "before\n"
    assert result["returncode"] == -1
    assert "timed out after 1 s" in result["exception_info"]
    assert result["extra"]["exception_type"] == "TimeoutExpired"
    assert out(env, "pgrep -c sleep || true").strip() == "0"


def test_what_cannot_be_started_is_an_answer(env: MiniSandboxEnvironment) -> None:
    result = env.execute({"command": "echo \0"})
    assert result["returncode"] == -1
    assert result["exception_info"]
    assert out(env, "echo still here") == "still here\n"


def test_a_command_may_be_longer_than_an_argument(env: MiniSandboxEnvironment) -> None:
    text = "x" * 99 + "\n"
    assert out(env, f"cat <<'EOF'\n{text * 20_000}EOF") == text * 20_000


def test_too_much_output_is_bounded(env: MiniSandboxEnvironment) -> None:
    result = env.execute({"command": "yes | head -c 30000000"})
    assert len(result["output"]) <= 11 << 20
    assert "more than 10 MiB" in result["exception_info"]


def test_submission_ends_the_run_whole(env: MiniSandboxEnvironment) -> None:
    lines = "".join(f"line {number}\n" for number in range(40_000))
    with pytest.raises(Submitted) as caught:
        env.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && seq -f 'line %.0f' 0 39999"})
    message = caught.value.messages[0]
    assert message["extra"] == {"exit_status": "Submitted", "submission": lines}
    assert env.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; false"})["returncode"] == 1


def test_templates_and_trajectories_know_the_configuration(
    env: MiniSandboxEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "secret")
    known = env.get_template_vars(more="more")
    assert known["cwd"] == "/testbed"
    assert known["system"] == out(env, "uname -s").strip()
    assert known["node"] == out(env, "uname -n").strip()
    assert known["more"] == "more"
    assert "HOST_SECRET" not in known
    info = env.serialize()["info"]["config"]
    assert info["environment_type"].endswith(".MiniSandboxEnvironment")
    assert info["environment"]["env"]["TEST_VAR"] == "test_value"


def test_threads_share_it(env: MiniSandboxEnvironment) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda n=n: found.append(out(env, f"sleep 0.1; echo {n}"))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"{n}\n" for n in range(4)]


def test_it_ends_with_cleanup_and_with_the_object() -> None:
    mark = f"3{os.getpid()}"
    for last in (MiniSandboxEnvironment.cleanup, lambda env: None):
        env = MiniSandboxEnvironment()
        out(env, f"setsid -f sleep {mark}")
        assert subprocess.run(["pgrep", "-f", f"sleep {mark}"], check=False).returncode == 0
        last(env)
        del env
        gc.collect()
        gone = f"until ! pgrep -f 'sleep {mark[:-1]}[{mark[-1]}]'; do sleep 0.05; done"
        subprocess.run(["bash", "-c", gone], timeout=30, check=True, stdout=subprocess.DEVNULL)


def test_its_own_agent_runs_in_it_by_name() -> None:
    env = get_environment({"environment_class": CLASS, "timeout": 20})
    commands = ["echo fixed > file", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat file"]
    model = DeterministicModel(outputs=[make_output(text, [{"command": text}]) for text in commands])
    agent = DefaultAgent(model, env, system_template="You repair.", instance_template="{{task}} in {{cwd}}")
    assert agent.run("Fix it")["submission"] == "fixed\n"
    assert agent.messages[1]["content"] == "Fix it in /testbed"
    env.cleanup()


def test_bad_configurations_say_what_is_wrong(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"instance_id": "a", "repo": "r", "FAIL_TO_PASS": ["t.py::t"]}\n')
    with pytest.raises(ConfigError, match="no task b in"):
        MiniSandboxEnvironment(tasks=tasks, task="b")
    with pytest.raises(ConfigError, match="a names no environment"):
        MiniSandboxEnvironment(tasks=tasks, task="a")
    waiting = MiniSandboxEnvironment(tasks=tasks)
    with pytest.raises(ConfigError, match=r"run\.env_startup_command: minisandbox-task \{\{instance_id\}\}"):
        waiting.execute({"command": "ls"})
    with pytest.raises(ConfigError, match="no task c in"):
        waiting.execute({"command": "minisandbox-task c"})

"""The deployment: its states, its configuration, its end."""

import asyncio
import gc
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, ValidationError
from swerex.deployment.config import LocalDeploymentConfig, get_deployment
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError, SwerexException
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest, ReadFileRequest

from minisandbox_ray.environments import NodeStore
from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Limits, SandboxSpec
from trainer_integration.swe_agent import MiniSandboxDeployment, MiniSandboxDeploymentConfig, SandboxFailureError


def test_states() -> None:
    deployment = MiniSandboxDeployment()
    for _ in range(2):
        assert not asyncio.run(deployment.is_alive())
        with pytest.raises(DeploymentNotStartedError):
            _ = deployment.runtime
        asyncio.run(deployment.start())
        assert asyncio.run(deployment.is_alive(timeout=10))
        asyncio.run(deployment.stop())
    asyncio.run(deployment.stop())


def test_starting_again_is_another_sandbox(rex) -> None:
    rex.write("/tmp/x", "x")
    asyncio.run(rex.deployment.start())
    with pytest.raises(FileNotFoundError):
        asyncio.run(rex.deployment.runtime.read_file(ReadFileRequest(path="/tmp/x")))
    assert not asyncio.run(rex.runtime.is_alive())


def test_hooks_are_told() -> None:
    class Hook(DeploymentHook):
        messages: list[str] = []  # noqa: RUF012

        def on_custom_step(self, message: str) -> None:
            self.messages.append(message)

    deployment = MiniSandboxDeployment()
    deployment.add_hook(Hook())
    asyncio.run(deployment.start())
    asyncio.run(deployment.stop())
    assert Hook.messages == ["Starting sandbox"]


def test_configuration() -> None:
    class Caller(BaseModel):
        deployment: LocalDeploymentConfig | MiniSandboxDeploymentConfig = Field(discriminator="type")

    fields = {"type": "minisandbox", "sandbox": {"network": "host", "limits": {"pids": 100}}}
    config = Caller.model_validate({"deployment": fields}).deployment
    assert isinstance(config, MiniSandboxDeploymentConfig)
    again = MiniSandboxDeploymentConfig.model_validate_json(config.model_dump_json())
    assert again == config
    assert (again.sandbox.limits.pids, again.sandbox.limits.output_chars) == (100, 10 << 20)
    own = MiniSandboxDeploymentConfig(sandbox=SandboxSpec(limits=Limits(output_chars=1000), env={"A": "1"}))
    assert (own.sandbox.limits.output_chars, own.sandbox.env) == (1000, {"A": "1"})
    deployment = get_deployment(own)  # type: ignore[arg-type]
    assert isinstance(deployment, MiniSandboxDeployment)
    asyncio.run(deployment.start())
    asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest()))
    observation = asyncio.run(deployment.runtime.run_in_session(BashAction(command="echo $A; seq 1000")))
    assert observation.output.startswith("1\n1\n2\n")
    assert "bytes left out" in observation.output
    asyncio.run(deployment.stop())
    for wrong in ({"image": "python"}, {"sandbox": {"limits": {"pids": -1}}}, {"type": "docker"}):
        with pytest.raises(ValidationError):
            MiniSandboxDeployment(**wrong)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sandbox": {"binds": [{"source": "/nowhere", "target": "/x"}]}}, "/nowhere"),
        ({"environment": "/nowhere.yaml"}, "cannot read /nowhere.yaml"),
        ({"environment": "no digest"}, "no digest"),
        ({"environment": "0123456789abcdef"}, "0123456789ab"),
    ],
)
def test_a_start_that_fails(fields: dict, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path))
    deployment = MiniSandboxDeployment(**fields)
    with pytest.raises(DeploymentStartupError, match=reason):
        asyncio.run(deployment.start())
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime


def test_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "source").mkdir()
    (tmp_path / "source/module.py").write_text("x = 7\n")
    spec = tmp_path / "spec.yaml"
    source = {"kind": "path", "path": str(tmp_path / "source")}
    spec.write_text(json.dumps({"python": "3.12", "source": source, "variables": {"FLAVOUR": "plain"}}))
    names = [str(spec)]
    while names:
        name = names.pop()
        deployment = MiniSandboxDeployment(environment=name, sandbox={"env": {"MORE": "more"}})
        asyncio.run(deployment.start())
        command = "pwd; cd /testbed; python -c 'import module; print(module.x)'; echo $FLAVOUR $MORE;"
        command += "git rev-list --count HEAD"
        output = asyncio.run(deployment.runtime.execute(Command(command=command, shell=True))).stdout
        assert output == "/\n7\nplain more\n1\n"
        (stored,) = NodeStore(tmp_path / "cache/store").inventory()
        assert stored.in_use
        asyncio.run(deployment.stop())
        (stored,) = NodeStore(tmp_path / "cache/store").inventory()
        assert not stored.in_use
        if name != stored.digest:
            names.append(stored.digest)


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    async def impatient(deployment: MiniSandboxDeployment, seconds: float) -> None:
        try:
            await asyncio.wait_for(deployment.start(), seconds)
        except TimeoutError:
            assert not await deployment.is_alive()
        else:
            await deployment.stop()

    for number in range(20):
        asyncio.run(impatient(MiniSandboxDeployment(), 0.0015 * number))
    deadline = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > descriptors + 4:  # noqa: PTH208
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_after_the_end(shell) -> None:
    shell.stop()
    for call in (
        lambda: shell.run("true"),
        lambda: shell.execute("true"),
        lambda: shell.read("/etc/passwd"),
        lambda: shell.write("/tmp/x", ""),
        lambda: shell.upload("/etc/passwd", "/tmp/x"),
        lambda: shell.open("b"),
        shell.close_session,
    ):
        with pytest.raises(SandboxFailureError, match="closed") as error:
            call()
        assert isinstance(error.value, SwerexException | SandboxError)
    asyncio.run(shell.runtime.close())
    assert not asyncio.run(shell.runtime.is_alive())


def test_closing_the_runtime_ends_the_sessions(shell) -> None:
    shell.run("sleep 1000 &")
    asyncio.run(shell.runtime.close())
    assert shell.execute(["echo", "alive"]).stdout == "alive\n"
    assert shell.open() == ""


def test_stopping_while_calls_are_under_way(shell) -> None:
    shell.open("b")
    with ThreadPoolExecutor(4) as threads:
        calls = [
            threads.submit(shell.run, "sleep 1000"),
            threads.submit(shell.run, "cat", session="b", is_interactive_command=True, expect=["never"]),
            threads.submit(shell.execute, ["sleep", "1000"]),
        ]
        time.sleep(0.5)
        shell.stop()
        for call in calls:
            with pytest.raises(SandboxFailureError):
                call.result(60)


def test_a_sandbox_that_dies_is_told(shell) -> None:
    os.kill(shell.runtime._sandbox.init_pid, 9)
    with pytest.raises(SandboxFailureError):
        shell.run("sleep 1000")
    deadline = time.monotonic() + 60
    while asyncio.run(shell.deployment.is_alive()):
        assert time.monotonic() < deadline


def test_its_time_is_up() -> None:
    deployment = MiniSandboxDeployment(sandbox={"limits": {"wall_seconds": 1.5}})
    asyncio.run(deployment.start())
    asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest()))
    with pytest.raises(SandboxFailureError, match="time is up") as error:
        asyncio.run(deployment.runtime.run_in_session(BashAction(command="sleep 1000")))
    assert error.value.owner == "agent"
    asyncio.run(deployment.stop())


def test_garbage_ends_its_sandbox() -> None:
    deployment = MiniSandboxDeployment()
    asyncio.run(deployment.start())
    sandbox = deployment.runtime._sandbox
    deployment.me = deployment  # type: ignore[attr-defined]
    del deployment
    gc.collect()
    deadline = time.monotonic() + 60
    while sandbox.is_alive:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_threads_with_loops_of_their_own() -> None:
    failures = []

    def work(number: int) -> None:
        try:
            deployment = MiniSandboxDeployment()
            asyncio.run(deployment.start())
            asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest()))
            for turn in range(10):
                action = BashAction(command=f"x=$((${{x:-0}} + 1)); echo {number} {turn} $x", timeout=60)
                output = asyncio.run(deployment.runtime.run_in_session(action)).output
                assert output == f"{number} {turn} {turn + 1}\n"
            asyncio.run(deployment.stop())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []


def test_one_loop_for_many() -> None:
    async def work(deployment: MiniSandboxDeployment) -> str:
        await deployment.start()
        await deployment.runtime.create_session(CreateBashSessionRequest())
        output = (await deployment.runtime.run_in_session(BashAction(command="sleep 1; echo ok", timeout=60))).output
        await deployment.stop()
        return output

    async def all_() -> list[str]:
        return await asyncio.gather(*(work(MiniSandboxDeployment()) for _ in range(8)))

    assert asyncio.run(all_()) == ["ok\n"] * 8


def test_one_runtime_from_many_threads(rex) -> None:
    def work(number: int) -> str:
        rex.open(f"s{number}")
        rex.write(f"/tmp/{number}", str(number))
        rex.run(f"read x < /tmp/{number}", session=f"s{number}", check="silent")
        return rex.run("echo $x", session=f"s{number}").output + rex.execute(["cat", f"/tmp/{number}"]).stdout

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(16))) == [f"{number}\n{number}" for number in range(16)]

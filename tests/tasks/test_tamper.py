"""Nothing but a solution is rewarded, and nothing runs outside of a sandbox."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox_ray.environments import EnvSpec, NodeStore, Source, build_environment
from minisandbox_ray.errors import BuildError
from minisandbox_ray.sandbox import Limits, Sandbox
from minisandbox_ray.tasks import FactoryConfig, Grade, GradingConfig, Task, grade
from minisandbox_ray.tasks.source import unified_patch

from .attacks import ATTACKS, BROKEN, CORE, FAIL_TO_PASS, FILES, HONEST, PASS_TO_PASS, Change
from .conftest import Bench

LIMITS = Limits(memory_mib=512, disk_mib=128, pids=64)
ENDLESS = {
    "never ends",
    "takes every process",
    "tests rewritten in the background",
    "runner rewritten on disk and started anew",
}


@pytest.fixture(scope="module")
def shop(places: tuple[Path, NodeStore], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A package whose function total() is broken."""
    source = tmp_path_factory.mktemp("shop")
    for name, text in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(text.encode())
    purelib = "$(python -c \"import sysconfig; print(sysconfig.get_path('purelib'))\")"
    spec = EnvSpec(
        source=Source(kind="path", path=source),
        packages=list(FactoryConfig.model_fields["requirements"].get_default()),
        install=[f'echo /testbed > "{purelib}/testbed.pth"'],
    )
    archives, store = places
    try:
        manifest = build_environment(spec, archives, store)
    except BuildError as error:
        pytest.skip(f"no environment without a package index: {str(error).splitlines()[0]}")
    task = Task(
        instance_id="shop__1.total",
        repo="shop",
        patch=unified_patch("shop/core.py", CORE, BROKEN),
        FAIL_TO_PASS=FAIL_TO_PASS,
        PASS_TO_PASS=PASS_TO_PASS,
        environment=manifest.digest,
    )
    with store.use(manifest.digest, archives) as env:
        yield Bench(env, task, store.derive(env, task.patch), store, archives)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A path that must not come to be, not even by a git that the host runs."""
    canary = Path(f"{tmp_path}-canary")
    git = tmp_path / "git"
    git.write_text(f"#!/bin/sh\nmkdir -p {canary}\n")
    git.chmod(git.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    yield str(canary)
    assert not canary.exists()


def graded(shop: Bench, change: Change, canary: str) -> Grade:
    diff = change.diff.replace("{canary}", canary)
    if change.commands:
        with Sandbox(shop.env.sandbox_spec(limits=LIMITS, layer=shop.layer)) as sandbox:
            for command in change.commands:
                sandbox.run(command.replace("{canary}", canary), timeout=30)
            diff = sandbox.diff()
    config = GradingConfig(limits=LIMITS, timeout=5 if change.name in ENDLESS else 60)
    return grade(shop.task, diff, shop.env, shop.layer, config)


@pytest.mark.parametrize("change", ATTACKS, ids=lambda change: change.name)
def test_an_attack_is_not_rewarded(shop: Bench, change: Change, watched: str) -> None:
    result = graded(shop, change, watched)
    assert (result.resolved, result.reward, result.owner) == (False, 0.0, "agent")
    assert result.reason


@pytest.mark.parametrize("change", HONEST, ids=lambda change: change.name)
def test_an_honest_change_is_rewarded(shop: Bench, change: Change, watched: str) -> None:
    result = graded(shop, change, watched)
    assert (result.resolved, result.reward, result.reason) == (True, 1.0, ""), result.log
    assert result.tampered == []
    assert set(result.durations) == {"apply", "tests", "control"}


def test_there_are_enough() -> None:
    names = [change.name for change in [*ATTACKS, *HONEST]]
    assert len(ATTACKS) >= 25 and len(set(names)) == len(names)

"""A grading sandbox that somebody outside kills says nothing about the diff."""

import os
import signal
import threading
import time
from typing import Any

import pytest

from minisandbox_ray.environments import services
from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.tasks import grade
from minisandbox_ray.tasks.source import unified_patch

from .conftest import BROKEN, CALC, Bench

GOLD = unified_patch("calc.py", BROKEN, CALC)


@pytest.mark.parametrize("number", [1, 2], ids=["the tests", "the control run"])
def test_it_is_an_error_of_the_sandbox_and_no_grade(bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    started: list[Sandbox] = []

    class Noted(Sandbox):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            started.append(self)

    def kill() -> None:
        while len(started) < number:
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(started[-1].init_pid, signal.SIGKILL)

    monkeypatch.setattr(services, "Sandbox", Noted)
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(SandboxError):
        grade(bench.task, GOLD, bench.env, bench.layer)
    killer.join()

"""Where a bug may be, from which lines the failing and the passing tests run (spectrum-based fault localisation)."""

import json
import math
from pathlib import Path

from minisandbox_ray.environments import Environment
from minisandbox_ray.errors import TaskError
from minisandbox_ray.sandbox import Limits, Sandbox
from minisandbox_ray.tasks.cutdown import Protection
from minisandbox_ray.tasks.task import Task
from minisandbox_ray.tasks.testrun import run_tests

Place = tuple[str, int]
"""File relative to the repository, and line from 1."""

_PLUGIN = Path(__file__).with_name("spectrum_plugin.py")


def suspicious_lines(
    task: Task, env: Environment, layer: Path | None, *, timeout: float = 120, limits: Limits | None = None
) -> list[tuple[float, Place]]:
    """The lines that failing tests run, with their suspiciousness in (0, 1], most suspicious first.

    The measure is Ochiai's (Abreu et al., "On the accuracy of spectrum-based fault localization", 2007). The listed
    tests run on the task's own tree; its patch is not looked at. Raises TaskError if the run leaves no trace.
    """
    with Sandbox(env.sandbox_spec(layer=layer, limits=limits)) as sandbox:
        sandbox.write_file("/opt/spectrum/spectrum_plugin.py", _PLUGIN.read_bytes())
        run = run_tests(
            sandbox,
            task.test_command,
            task.listed_files,
            timeout=timeout,
            options=["-p", "spectrum_plugin"],
            variables={"PYTHONPATH": "/opt/spectrum", "SPECTRUM_FILE": "/opt/spectrum/lines.json"},
        )
        if not run.cases:
            raise TaskError(f"task {task.instance_id}: its tests cannot be traced: {run.log[-300:].strip()}")
        covered = json.loads(sandbox.read_file("/opt/spectrum/lines.json"))
    protection = Protection(task)
    failing, passing = set(task.FAIL_TO_PASS), set(task.PASS_TO_PASS)
    failures: dict[Place, int] = {}
    passes: dict[Place, int] = {}
    for test, lines in covered.items():
        if test in failing or test in passing:
            counts = failures if test in failing else passes
            for path, line in lines:
                counts[path, line] = counts.get((path, line), 0) + 1
    scored = [
        (count / math.sqrt(len(failing) * (count + passes.get(place, 0))), place)
        for place, count in failures.items()
        if not protection.covers(place[0])
    ]
    return sorted(scored, key=lambda item: (-item[0], item[1]))

"""Whether tests have the same status here and in podman containers with the same environment.

    python benchmarks/parity.py [--json FILE] [--tasks 20]

Tasks of the factory, from three packages. Each is graded four times: with nothing, with the gold fix, and with two
wrong diffs, which bring in the bug of another task of the package, once with this one's fixed and once not. In the
container the repository is a copy, the task's bug and the diff are applied by git, and pytest prints what became of
each test; of what this package does for a grade nothing happens there but that its environment variables are set.
Differences are listed by task, diff and test. Exit status 1 if there are any.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import podman as podman_module
from rich.console import Console
from rich.table import Table

PACKAGES = [
    {"name": "inflection", "version": "0.5.1", "modules": ["inflection"], "tests": ["test_inflection.py"]},
    {"name": "unidiff", "version": "0.7.5", "modules": ["unidiff"], "tests": ["tests"]},
    {
        "name": "cachetools",
        "version": "5.5.0",
        "modules": ["src/cachetools"],
        "tests": ["tests"],
        "import_path": "src",
    },
]
KINDS = ("nothing", "gold", "other bug", "both bugs")
_LINE = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S.*?)(?: - .*)?$")
_WORDS = {"PASSED": "passed", "FAILED": "failed", "ERROR": "error", "XFAIL": "xfailed", "XPASS": "passed"}
_SCRIPT = """
cd /testbed
for patch in /patches/*; do
    [ ! -s "$patch" ] || git -c safe.directory='*' apply --whitespace=nowarn "$patch" || exit 77
done
exec "$@"
"""


@dataclass(frozen=True)
class Case:
    """One grade to be had twice."""

    task: Any
    kind: str
    diff: str


def make(count: int) -> list[Any]:
    """The tasks; made into the cache, and read from it the next time."""
    from minisandbox_ray.environments import NodeStore, cache_root
    from minisandbox_ray.tasks import FactoryConfig
    from minisandbox_ray.tasks.factory import make_tasks

    per_package = -(-count // len(PACKAGES))
    config = FactoryConfig.model_validate({"packages": PACKAGES, "per_package": per_package, "workers": 2})
    tasks = make_tasks(config, cache_root() / "archives", NodeStore(cache_root() / "store"))
    return tasks[:count]


def cases_of(tasks: list[Any], store: Any, archives: Path) -> Iterator[Case]:
    """Four of each task. The diffs are made in sandboxes, as an agent would."""
    from minisandbox_ray.sandbox import Sandbox

    for task in tasks:
        others = [each for each in tasks if each.repo == task.repo and each.instance_id != task.instance_id]
        with store.use(task.environment, archives) as env:
            layer = store.derive(env, task.patch)
            yield Case(task, "nothing", "")
            for kind, is_fixed in (("gold", True), ("other bug", True), ("both bugs", False)):
                for other in others if kind != "gold" else [task]:
                    with Sandbox(env.sandbox_spec(layer=layer)) as box:
                        box.write_file("/tmp/own", task.patch.encode())
                        box.write_file("/tmp/other", other.patch.encode())
                        steps = ["git apply -R /tmp/own"] if is_fixed else []
                        steps += ["git apply /tmp/other"] if kind != "gold" else []
                        if box.run(" && ".join(steps)).exit_code == 0:
                            yield Case(task, kind, box.diff())
                            break


def statuses_here(case: Case, store: Any, archives: Path) -> dict[str, str]:
    """By the grader. Without its control run, which changes no status."""
    from minisandbox_ray.tasks.grading import GradingConfig, grade

    with store.use(case.task.environment, archives) as env:
        layer = store.derive(env, case.task.patch)
        return dict(grade(case.task, case.diff, env, layer, GradingConfig(control=False)).tests)


def statuses_there(case: Case, podman: Any, store: Any, archives: Path, scratch: Path) -> dict[str, str]:
    """By pytest's summary, in a container."""
    from minisandbox_ray.environments.interpreters import inside_prefix
    from minisandbox_ray.tasks.testrun import VARIABLES, functions_of

    with store.use(case.task.environment, archives) as env, copied(env.testbed, scratch) as place:
        patches = place / "patches"
        patches.mkdir()
        for number, text in enumerate((case.task.patch, case.diff)):
            (patches / str(number)).write_text(text)
        mounts = {"/venv": (env.venv, "ro"), "/testbed": (place / "testbed", "rw"), "/patches": (patches, "ro")}
        mounts[inside_prefix(env.manifest.interpreter.version)] = (env.interpreter, "ro")
        for target, source in {"/usr": "/usr", "/bin": "/usr/bin", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}.items():
            mounts[target] = (Path(source), "ro")
        words: list[str] = []
        for target, (source, mode) in mounts.items():
            words += ["--volume", f"{source}:{target}:{mode}"]
        variables = {
            "PATH": "/venv/bin:/usr/bin:/bin",
            "HOME": "/root",
            "USER": "root",
            "LANG": "C.UTF-8",
            **VARIABLES,
        }
        for name, value in {**variables, **env.manifest.spec.variables}.items():
            words += ["--env", f"{name}={value}"]
        files = sorted(functions_of(case.task.tests))
        tests = [*case.task.test_command, "-p", "no:cacheprovider", "-rA", "--continue-on-collection-errors", *files]
        command = ["/bin/bash", "-c", f"({_SCRIPT}); echo status $?", "bash", *tests]
        printed = podman.call("run", "--rm", "--network=none", *podman_module._LIMITS, *words, "benchmark", *command)
    if "status 77" in printed.splitlines()[-1:]:
        raise RuntimeError(f"{case.task.instance_id}: {case.kind}: the diff does not apply in the container")
    found: dict[str, str] = {}
    for line in printed.splitlines():
        if match := _LINE.match(line):
            found[match[2]] = _WORDS[match[1]]
    return {test: found.get(test, "missing") for test in case.task.tests}


@contextmanager
def copied(testbed: Path, scratch: Path) -> Iterator[Path]:
    """A directory with a copy of the repository."""
    place = Path(tempfile.mkdtemp(dir=scratch))
    try:
        subprocess.run(["cp", "-a", testbed, place / "testbed"], check=True)
        yield place
    finally:
        shutil.rmtree(place)


def run(count: int) -> dict[str, Any]:
    """The figures, with the differences."""
    from minisandbox_ray.environments import NodeStore, cache_root

    archives, store = cache_root() / "archives", NodeStore(cache_root() / "store")
    tasks = make(count)
    differences, compared = [], 0
    counts: dict[str, int] = dict.fromkeys(KINDS, 0)
    with tempfile.TemporaryDirectory(prefix="minisandbox-parity-") as scratch:
        place = Path(scratch)
        with podman_module.engine(place / "podman", lambda line: print(line, file=sys.stderr)) as podman:
            if podman is None:
                return {"parity_tasks": None, "parity_differences": None}
            for case in cases_of(tasks, store, archives):
                here = statuses_here(case, store, archives)
                there = statuses_there(case, podman, store, archives, place)
                counts[case.kind] += 1
                compared += len(here)
                for test, status in here.items():
                    if status != there[test]:
                        differences.append([case.task.instance_id, case.kind, test, status, there[test]])
                passed = sum(status == "passed" for status in here.values())
                print(f"{case.task.instance_id} {case.kind}: {passed}/{len(here)} pass", file=sys.stderr, flush=True)
    return {
        "parity_tasks": len(tasks),
        "parity_grades": counts,
        "parity_statuses": compared,
        "parity_differences": len(differences),
        "parity_list": differences,
    }


def main() -> int:
    """Print the figures; -> exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures by name to this file")
    parser.add_argument("--tasks", type=int, default=20, help="how many tasks (20)")
    arguments = parser.parse_args()
    figures = run(arguments.tasks)
    table = Table("task", "diff", "test", "here", "in the container", title="Differences")
    for row in figures.get("parity_list", []):
        table.add_row(*row)
    Console().print(table)
    print(json.dumps({name: value for name, value in figures.items() if name != "parity_list"}))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return int(bool(figures["parity_differences"]))


if __name__ == "__main__":
    sys.exit(main())

"""Make a task of a repository of your own: a folder in which a test fails."""

import argparse
import shlex
from pathlib import Path

from rich.console import Console

from minisandbox_ray.cli.inputs import add_isolation, archives_and_store, build_spec, check_writable, read_spec
from minisandbox_ray.environments import Environment, EnvSpec, Source
from minisandbox_ray.environments.services import open_sandbox
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.sandbox import Limits
from minisandbox_ray.tasks import Task, load_tasks, save_tasks
from minisandbox_ray.tasks.testrun import TestRun, run_tests

PYTEST = "pytest>=8,<9"
_COMMAND = ["/venv/bin/pytest"]
_LIMITS = Limits(memory_mib=2048)
# What makes a repository importable that cannot be installed.
_PATH_FILE = (
    "printf '/testbed\\n/testbed/src\\n' > "
    '"$(python -c "import sysconfig; print(sysconfig.get_path(\'purelib\'))")/testbed.pth"'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``new``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="new")
    text = "build the folder's environment, run its tests without and with the fix, and write the task"
    new = actions.add_parser("new", help=text, description=text)
    new.add_argument("folder", type=Path, metavar="FOLDER", help="the repository, with the bug and a test that fails")
    new.add_argument("--fix", type=Path, metavar="PATCH", help="git patch that mends it: the gold fix, for `validate`")
    new.add_argument(
        "--out", type=Path, default=Path("tasks.jsonl"), metavar="FILE", help="tasks file to add it to (%(default)s)"
    )
    new.add_argument("--id", metavar="ID", help="instance id (default: the folder's name and a number)")
    new.add_argument("--statement", metavar="TEXT|FILE", help="what the agent is told (default: which tests fail)")
    new.add_argument(
        "--tests", nargs="+", default=["."], metavar="PATH", help="files or directories of tests in FOLDER (all)"
    )
    new.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds that the tests may take (300)")
    how = new.add_argument_group("its environment")
    how.add_argument("--python", default="3.12", metavar="X.Y", help="interpreter (%(default)s)")
    how.add_argument(
        "--package", action="append", default=[], metavar="REQ", help=f"pip requirement; may be repeated ({PYTEST})"
    )
    how.add_argument("--spec", type=Path, metavar="FILE", help="an EnvSpec file in place of the two, for all the rest")
    add_isolation(new)


def run(arguments: argparse.Namespace) -> int:
    """Write the task and print what it is made of."""
    folder: Path = arguments.folder
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory")
    if not 0 < arguments.timeout <= 1e6:
        raise ConfigError(f"--timeout must be above 0 and at most 1e6 seconds, not {arguments.timeout:g}")
    for path in arguments.tests:
        if not (folder / path).exists():
            raise ConfigError(f"--tests: {folder / path} does not exist")
    check_writable(arguments.out, "--out")
    fix = _text(arguments.fix) if arguments.fix else ""
    if arguments.fix and not fix.strip():
        raise ConfigError(f"--fix {arguments.fix} holds no patch: a git diff is expected that makes the test pass")
    known = load_tasks(arguments.out) if arguments.out.exists() else []
    name = _name(arguments.id, folder, {task.instance_id for task in known}, arguments.out)
    manifest = build_spec(_spec(arguments), arguments.isolation)
    archives, store = archives_and_store(arguments.isolation)
    with store.use(manifest.digest, archives) as env, Console(stderr=True).status("running the tests"):
        before = _run(env, arguments, "")
        after = _run(env, arguments, fix) if fix else None
    failing = [test for test in before.cases if before.cases[test].status in ("failed", "error")]
    if not failing and not before.collection_errors:
        raise ConfigError(f"no test fails in {folder}: add one that shows the bug{_told(before)}")
    # Without the fix a file of tests may not even be collected: its tests are known by the run with it.
    solved = failing if after is None else [test for test in after.cases if test in after.passed - before.passed]
    if not solved:
        what = (
            f"{arguments.fix} makes no failing test pass" if fix else "no failing test is known by name without --fix"
        )
        raise ConfigError(f"{what}{_told(after or before)}")
    kept = [test for test in before.cases if test in before.passed and (after is None or test in after.passed)]
    task = Task(
        instance_id=name,
        repo=folder.resolve().name,
        problem_statement=_statement(arguments.statement, folder.resolve().name, solved),
        gold_patch=fix,
        FAIL_TO_PASS=solved,
        PASS_TO_PASS=kept,
        environment=manifest.digest,
    )
    try:
        save_tasks([*known, task], arguments.out)
    except OSError as error:
        raise ConfigError(f"cannot write {arguments.out}: {error.strerror}") from error
    left = len(set(failing) - set(solved))
    print(
        f"task {name}: {len(solved)} tests to make pass, {len(kept)} to keep"
        f"{f', {left} that fail with the fix as well left out' if left else ''} | {arguments.out}"
    )
    if not fix:
        print("it has no gold fix, so it cannot be validated; --fix PATCH gives one", flush=True)
    return 0


def _spec(arguments: argparse.Namespace) -> EnvSpec:
    source = Source(kind="path", path=arguments.folder.resolve())
    if arguments.spec:
        if arguments.package:
            raise ConfigError("--package and --spec: write the packages into the file")
        return read_spec(arguments.spec).model_copy(update={"source": source})
    is_project = any((arguments.folder / each).exists() for each in ("pyproject.toml", "setup.py"))
    install = ["pip install -e ."] if is_project else [_PATH_FILE]
    try:
        return EnvSpec(python=arguments.python, source=source, packages=[PYTEST, *arguments.package], install=install)
    except ValueError as error:
        raise ConfigError(f"--python or --package: {str(error).splitlines()[2].strip()}") from error


def _run(env: Environment, arguments: argparse.Namespace, fix: str) -> TestRun:
    """The tests in a fresh sandbox. Raises ConfigError if they do not come to their end."""
    with open_sandbox(env, limits=_LIMITS) as sandbox:
        if fix:
            applied = sandbox.execute(
                ["git", "apply", "--whitespace=nowarn", "-"],
                stdin=fix.encode("utf-8", "surrogateescape"),
                cwd="/testbed",
            )
            if applied.exit_code:
                said = " ".join(applied.stderr.decode("utf-8", "replace").split())[:300]
                raise ConfigError(f"{arguments.fix} does not apply to {arguments.folder}: {said}")
        found = run_tests(sandbox, _COMMAND, arguments.tests, timeout=arguments.timeout)
    if found.timed_out:
        raise ConfigError(
            f"the tests of {arguments.folder} take longer than {arguments.timeout:g} s: --timeout, --tests"
        )
    if not found.cases and (fix or not found.collection_errors):
        with_fix = " with the fix" if fix else ""
        raise ConfigError(f"no test of {arguments.folder} runs{with_fix}{_told(found)}")
    return found


def _told(found: TestRun) -> str:
    """The end of what the tests printed, in one line."""
    lines = [line.strip() for line in found.log.splitlines() if line.strip(" =")]
    return f" (pytest: {' / '.join(lines[-3:])[-300:]})" if lines else ""


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _name(wanted: str | None, folder: Path, known: set[str], out: Path) -> str:
    if wanted is None:
        base = folder.resolve().name
        return next(name for number in range(1, len(known) + 2) if (name := f"{base}-{number}") not in known)
    if wanted in known or not wanted:
        raise ConfigError(f"--id {shlex.quote(wanted)}: {out} has such a task" if wanted else "--id is empty")
    return wanted


def _statement(given: str | None, name: str, failing: list[str]) -> str:
    if given is not None:
        return _text(Path(given)) if "\n" not in given and len(given) < 256 and Path(given).is_file() else given
    listed = "".join(f"    {test}\n" for test in failing[:10])
    more = f"    ... and {len(failing) - 10} more\n" if len(failing) > 10 else ""
    tests = "this test fails" if len(failing) == 1 else "these tests fail"
    return f"In {name} {tests}:\n\n{listed}{more}\nThe tests are right. Find the fault in the code and fix it there.\n"

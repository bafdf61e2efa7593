"""Runs of a repository's own runner of tests, where our witness can listen to it: SymPy's, and those of unittest."""

from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Literal

from minisandbox_ray.sandbox import Sandbox
from minisandbox_ray.tasks.commandline import split_settings
from minisandbox_ray.tasks.testrun import PLACE, TestRun, functions_of, run_witnessed

Runner = Literal["sympy", "unittest"]
_FILES = {
    "minisandbox_witness.py": Path(__file__).with_name("witness.py"),
    "minisandbox_runner.py": Path(__file__).with_name("runner_witness.py"),
}


def runner_of(command: list[str]) -> Runner | None:
    """Which runner a test command starts; None if it is none that we can listen to."""
    _, words = split_settings(command)
    script = PurePosixPath(words[0]) if words else PurePosixPath()
    if script.parts[-2:] == ("bin", "test"):
        return "sympy"
    return "unittest" if script.name == "runtests.py" else None


def run_runner(
    sandbox: Sandbox,
    runner: Runner,
    test_command: list[str],
    targets: list[str],
    *,
    timeout: float,
    log_chars: int,
    files: Collection[str],
    touched: Collection[str],
    only: Collection[str] | None = None,
) -> TestRun:
    """Run the tests with the witness. The tests of `files` are watched; those of `only` (file::Class::name) are made
    to fail, and no others run. Raises SandboxError if the sandbox fails."""
    for name, path in _FILES.items():
        sandbox.write_file(f"{PLACE}/{name}", path.read_bytes())
    settings, words = split_settings(test_command)
    # In a process of its own, which SymPy's runner starts by default, nobody would listen.
    alone = ["--no-subprocess"] if runner == "sympy" else []
    program = ["/venv/bin/python", f"{PLACE}/minisandbox_runner.py", runner, *words, *alone, *targets]
    told = {
        "files": functions_of(only) if only is not None else dict.fromkeys(files, "*"),
        "only": sorted(only or ()),
        "control": only is not None,
        "touched": sorted(touched),
    }
    return run_witnessed(sandbox, program, told, timeout=timeout, log_chars=log_chars, variables=dict(settings))

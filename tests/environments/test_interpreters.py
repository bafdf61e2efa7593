import shutil
import subprocess
from pathlib import Path

import pytest

from minisandbox_ray.environments import find_interpreters
from minisandbox_ray.environments.interpreters import Interpreter, choose_interpreter, copy_interpreter
from minisandbox_ray.errors import BuildError


def some_interpreter() -> Interpreter:
    found = [each for each in find_interpreters() if each.complete and not each.is_system]
    if not found:
        pytest.skip("no Python outside /usr")
    return found[0]


def test_versions_match_exactly_or_by_minor_version() -> None:
    chosen = some_interpreter()
    minor = chosen.version.rpartition(".")[0]
    assert choose_interpreter(chosen.version).version == chosen.version
    assert choose_interpreter(minor).version.startswith(f"{minor}.")


def test_the_newest_match_wins_and_needs_venv() -> None:
    def fake(version: str, complete: bool = True) -> Interpreter:
        return Interpreter(version, Path("/x/bin/python3"), Path("/x"), None, complete)

    among = [fake("3.9.18"), fake("3.9.2"), fake("3.10.1", complete=False)]
    assert choose_interpreter("3.9", among).version == "3.9.18"
    with pytest.raises(BuildError, match="no venv or ensurepip") as caught:
        choose_interpreter("3.10", among)
    assert "\n" not in str(caught.value)


def test_a_missing_version_is_one_clear_line() -> None:
    with pytest.raises(BuildError, match=r"no python 3\.99 .*`uv python install 3\.99`") as caught:
        choose_interpreter("3.99")
    assert "\n" not in str(caught.value)
    assert some_interpreter().version in str(caught.value)


def test_a_copy_runs_anywhere_without_the_original(tmp_path: Path) -> None:
    original = some_interpreter()
    copy_interpreter(original, tmp_path / "copy")
    shutil.move(tmp_path / "copy", tmp_path / "moved")
    program = (
        "import sys, os, ssl, ctypes, ensurepip, test.support;"
        "print(sys.prefix); print(open('/proc/self/maps').read());"
        "assert not os.listdir(os.path.join(os.path.dirname(os.__file__), 'site-packages'))"
    )
    done = subprocess.run(
        [tmp_path / "moved/bin/python3", "-I", "-S", "-c", program], capture_output=True, text=True, env={}, check=True
    )
    assert done.stdout.splitlines()[0] == str(tmp_path / "moved")
    assert str(original.prefix) not in done.stdout
    config = next((tmp_path / "moved/lib").glob("python3*/_sysconfigdata*.py")).read_text()
    assert str(original.prefix) not in config
    assert f"/opt/python/{original.version}" in config

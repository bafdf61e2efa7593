from pathlib import Path

import pytest

from minisandbox_ray.sandbox import Overlay, Sandbox, SandboxSpec
from minisandbox_ray.tasks.written import changed, is_runner_s, written


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("true", []),
        ("cat a; ls d; test -e a", []),
        ("echo b > a", ["/testbed/a"]),
        ("cp -p a b && echo x > a && cp -p b a && rm b", ["/testbed/a"]),  # put back as it was
        ("chmod +x a", ["/testbed/a"]),
        ("touch d/new", ["/testbed/d/new"]),
        ("rm d/c", ["/testbed/d/c"]),
        ("mv d e && mkdir d && echo x > d/c", ["/testbed/d/c"]),
        ("mv d e", ["/testbed/d"]),
    ],
)
def test_what_was_written_is_found(tmp_path: Path, command: str, paths: list[str]) -> None:
    (tmp_path / "d").mkdir()
    for name in ("a", "d/c"):
        (tmp_path / name).write_text("x\n")
    with Sandbox(SandboxSpec(overlays=[Overlay(target="/testbed", lower=[tmp_path])])) as sandbox:
        before = written(sandbox)
        assert sandbox.execute(["sh", "-c", command]).exit_code == 0
        found = changed(before, written(sandbox))
    assert set(paths) <= set(found)
    assert bool(found) == bool(paths)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/venv/lib/python3.12/site-packages/x.py", True),
        ("/venv/lib/python3.12/site-packages/x.pth", True),
        ("/venv/bin/python", True),
        ("/venv/lib/python3.12/site-packages/_pytest/__pycache__/runner.cpython-312.pyc", True),
        ("/venv/lib/python3.12/site-packages/x/__pycache__/x.cpython-312.pyc", False),
        ("/venv/share/data.json", False),
        ("/testbed/bin/x.py", False),
    ],
)
def test_code_of_the_environment_is_told_from_data(path: str, code: bool) -> None:
    assert is_runner_s(path) == code


def test_what_cannot_be_looked_at_counts_as_configuration(tmp_path: Path) -> None:
    with Sandbox(SandboxSpec(overlays=[Overlay(target="/testbed", lower=[tmp_path])])) as sandbox:
        deep = "import os\nfor _ in range(30):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n"
        assert sandbox.execute(["/usr/bin/python3", "-c", deep]).exit_code == 0
        found = changed({}, written(sandbox))
    assert [path.rpartition("/")[2] for path in found] == ["conftest.py"]

"""One-shot commands, as subprocess.run() runs them."""

import pytest
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError


def test_shell_or_not(rex) -> None:
    assert rex.execute(["echo", "-n", "a  b", "$HOME"]).stdout == "a  b $HOME"
    assert rex.execute("echo a  b; echo $HOME", shell=True).stdout == "a b\n/root\n"
    assert rex.execute(["echo $0 $1", "x", "y"], shell=True).stdout == "x y\n"
    assert rex.execute("true").exit_code == 0
    for nothing in ("", "\n"):
        assert rex.execute(nothing, shell=True, check=True).exit_code == 0


def test_streams(rex) -> None:
    both = "echo out; echo err >&2; echo out again"
    response = rex.execute(both, shell=True)
    assert (response.stdout, response.stderr) == ("out\nout again\n", "err\n")
    response = rex.execute(both, shell=True, merge_output_streams=True)
    assert (response.stdout, response.stderr) == ("out\nerr\nout again\n", "")
    assert rex.execute(["printf", r"\xff\n"]).stdout == "\\xff\n"
    assert rex.execute("head -c 3000000 /dev/zero | tr '\\0' x", shell=True).stdout == "x" * 3_000_000


def test_checks(rex) -> None:
    assert rex.execute("exit 3", shell=True).exit_code == 3
    with pytest.raises(NonZeroExitCodeError, match=r"(?s)^oh: .*exit code 3.*'out\\n'.*'err\\n'"):
        rex.execute("echo out; echo err >&2; exit 3", shell=True, check=True, error_msg="oh")


def test_variables_and_directory(rex) -> None:
    assert rex.execute(["/usr/bin/env"], env={"A": "1 2", "B": "é"}).stdout == "A=1 2\nB=é\n"
    assert (
        rex.execute("echo $A $PATH", shell=True, env={"A": "x", "PATH": "/bin:/usr/bin"}).stdout == "x /bin:/usr/bin\n"
    )
    assert "PATH=" in rex.execute(["env"]).stdout
    assert rex.execute(["pwd"]).stdout == "/\n"
    assert rex.execute(["pwd"], cwd="/tmp").stdout == "/tmp\n"
    response = rex.execute("pwd; echo $A >&2", shell=True, cwd="/usr", env={"A": "a"}, merge_output_streams=True)
    assert response.stdout == "/usr\na\n"


def test_what_cannot_be_started(rex) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        rex.execute(["nothing-of-that-name", "x"])
    assert missing.value.filename == "nothing-of-that-name"
    with pytest.raises(FileNotFoundError):
        rex.execute(["true"], cwd="/nowhere")
    with pytest.raises(NotADirectoryError):
        rex.execute(["true"], cwd="/etc/passwd")
    rex.write("/tmp/plain", "#!/bin/sh\n")
    with pytest.raises(PermissionError):
        rex.execute("/tmp/plain")
    with pytest.raises(ValueError, match="NUL"):
        rex.execute(["echo", "a\0b"])
    assert rex.execute("nothing-of-that-name", shell=True).exit_code == 127


def test_timeout(rex) -> None:
    for fields in ({}, {"merge_output_streams": True}):
        with pytest.raises(CommandTimeoutError, match=r"0\.2s"):
            rex.execute("sleep 1000; true", shell=True, timeout=0.2, **fields)
    assert rex.execute(["pgrep", "sleep"]).exit_code == 1
    assert rex.execute("sleep 0.3; echo done", shell=True, timeout=None).stdout == "done\n"


def test_sessions_do_not_matter(shell) -> None:
    shell.run("cd /tmp; export A=1")
    assert shell.execute("pwd; echo [$A]", shell=True).stdout == "/\n[]\n"

"""One-shot programs."""

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Sandbox, SandboxSpec

from .conftest import Factory


@pytest.fixture
def sandbox(start: Factory) -> Sandbox:
    return start()


def test_streams_and_status(sandbox: Sandbox) -> None:
    result = sandbox.execute(["sh", "-c", "cat; echo error >&2; exit 3"], stdin=b"in\xff\n")
    assert (result.stdout, result.stderr, result.exit_code) == (b"in\xff\n", b"error\n", 3)
    assert not result.timed_out
    assert not result.truncated
    assert sandbox.execute(["sh", "-c", "kill -9 $$"]).exit_code == 137


def test_directory_and_environment(sandbox: Sandbox) -> None:
    assert sandbox.execute(["pwd"]).stdout == b"/testbed\n"
    result = sandbox.execute(["sh", "-c", "pwd; echo $A $HOME"], cwd="/tmp", env={"A": "b"})
    assert result.stdout == b"/tmp\nb /root\n"


def test_what_cannot_be_started(sandbox: Sandbox) -> None:
    missing = sandbox.execute(["no-such-program"])
    assert (missing.exit_code, missing.stderr) == (127, b"no-such-program: No such file or directory\n")
    assert sandbox.execute(["/testbed/a.txt"]).exit_code == 126
    assert sandbox.execute(["true"], cwd="/nowhere").exit_code != 0


def test_big_input_and_output_do_not_deadlock(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 20_000
    assert sandbox.execute(["cat"], stdin=data).stdout == data
    assert sandbox.execute(["true"], stdin=data).exit_code == 0
    assert sandbox.execute(["sh", "-c", "exec 0<&-; sleep 0.1; echo ok"], stdin=data).stdout == b"ok\n"


def test_output_is_bounded(sandbox: Sandbox) -> None:
    result = sandbox.execute(["sh", "-c", "echo start; yes | head -c 3000000; echo end"], max_output=10_000)
    assert result.truncated
    assert len(result.stdout) < 11_000
    assert result.stdout.startswith(b"start\n")
    assert result.stdout.endswith(b"end\n")
    assert b"bytes left out" in result.stdout


def test_timeout_ends_the_group_and_keeps_output(sandbox: Sandbox) -> None:
    result = sandbox.execute(["sh", "-c", "trap '' TERM INT; echo before; sleep 4321 | sleep 4321"], timeout=0.5)
    assert result.timed_out
    assert result.stdout == b"before\n"
    assert sandbox.execute(["pgrep", "-f", "sleep 4321"]).exit_code == 1


def test_background_children_do_not_hold_it(sandbox: Sandbox) -> None:
    result = sandbox.execute(["sh", "-c", "sleep 300 & echo ok"], timeout=100)
    assert (result.stdout, result.timed_out) == (b"ok\n", False)


def test_long_arguments(sandbox: Sandbox) -> None:
    arguments = ["x" * 100_000] * 10
    assert len(sandbox.execute(["echo", *arguments]).stdout) == 1_000_010
    assert sandbox.execute(["echo", "x" * 200_000]).exit_code == 126  # the kernel's limit of one argument


def test_has_no_terminal(sandbox: Sandbox) -> None:
    assert sandbox.execute(["tty"]).stdout == b"not a tty\n"
    assert sandbox.execute(["sh", "-c", "exec 3</dev/tty"]).exit_code != 0


def test_beside_a_session(sandbox: Sandbox) -> None:
    sandbox.run("cd /tmp; export A=1")
    assert sandbox.execute(["sh", "-c", "pwd; echo $A"]).stdout == b"/testbed\n\n"
    assert sandbox.run("pwd; echo $A").output == "/tmp\n1\n"


def test_bytes_that_are_no_text(sandbox: Sandbox) -> None:
    assert sandbox.execute(["printf", "%s", "\udcff\udcfe"]).stdout == b"\xff\xfe"


def test_after_close(sandbox: Sandbox) -> None:
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.execute(["true"])
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run("true")
    with pytest.raises(SandboxError, match="closed"):
        sandbox.read_file("/etc/passwd")


def test_no_output_is_kept_where_none_is_wanted(sandbox: Sandbox) -> None:
    seen = 0

    def on_output(_: int, data: bytes) -> None:
        nonlocal seen
        seen += len(data)

    result = sandbox.execute(["head", "-c", "50000000", "/dev/zero"], max_output=0, on_output=on_output)
    assert seen == 50_000_000
    assert len(result.stdout) < 100


def test_what_no_program_can_be_started_with(sandbox: Sandbox) -> None:
    for argv in ([], [""], ["a\0b"], ["true", "a\0b"]):
        with pytest.raises(ValueError, match="argv"):
            sandbox.execute(argv)
    with pytest.raises(ValueError, match="cwd"):
        sandbox.execute(["true"], cwd="/tmp\0")
    for env in ({"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "\0"}):
        with pytest.raises(ValueError, match="environment variable"):
            sandbox.execute(["true"], env=env)


def test_a_directory_that_does_not_exist_is_named(sandbox: Sandbox) -> None:
    for cwd, reason in (("/nowhere", b"No such file or directory"), ("/testbed/a.txt", b"Not a directory")):
        result = sandbox.execute(["true"], cwd=cwd)
        assert (result.exit_code, result.stderr) == (126, b"cannot start in %s: %s\n" % (cwd.encode(), reason))


def test_half_a_character(sandbox: Sandbox) -> None:
    result = sandbox.execute(["true", "\ud800"])
    assert result.exit_code == 126
    assert b"encode" in result.stderr


def test_without_a_shell() -> None:
    with Sandbox(SandboxSpec(), shell=False) as sandbox:
        assert sandbox.execute(["pgrep", "-c", "bash"]).stdout == b"0\n"
        assert sandbox.run("echo $BASH_SUBSHELL").output == "0\n"
        assert sandbox.execute(["pgrep", "-c", "bash"]).stdout == b"1\n"

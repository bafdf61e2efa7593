"""Sessions as SWE-ReX has them: exit codes, checks, syntax errors, output."""

import re

import pytest
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)


def test_state_persists_and_sessions_are_apart(rex) -> None:
    for name in ("a", "b/with a strange name"):
        assert rex.open(name) == ""
    rex.run("cd /tmp; x=1; export Y=2; f() { echo f; }", session="a")
    assert rex.run("pwd; echo $x $Y; f", session="a").output == "/tmp\n1 2\nf\n"
    assert rex.run('pwd; echo "[$x]"', session="b/with a strange name").output == "/\n[]\n"


def test_names(rex) -> None:
    for call in (lambda: rex.run("true"), rex.interrupt, rex.close_session):
        with pytest.raises(SessionDoesNotExistError, match="default"):
            call()
    rex.open()
    with pytest.raises(SessionExistsError, match="default"):
        rex.open()
    rex.run("x=1")
    rex.close_session()
    with pytest.raises(SessionDoesNotExistError):
        rex.close_session()
    rex.open()
    assert rex.run('echo "[$x]"').output == "[]\n"


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("true", 0),
        ("false", 1),
        ("nothing-of-that-name", 127),
        ("false || true", 0),
        ("(exit 42)", 42),
        ("a=1\nfalse", 1),
    ],
)
def test_checks(shell, command: str, exit_code: int) -> None:
    assert shell.run(command, check="silent").exit_code == exit_code
    assert shell.run(command, check="ignore").exit_code is None
    if exit_code == 0:
        assert shell.run(command, check="raise").exit_code == 0
    else:
        with pytest.raises(NonZeroExitCodeError, match=rf"^it broke: .*exit code {exit_code}"):
            shell.run(command, check="raise", error_msg="it broke")


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("", ""),
        ("\n \n\n", ""),
        ("# nothing but a remark", ""),
        ("printf '\\n  x'", "\n  x"),
        ("\n\n echo 1 \n \n  echo 2\n\n", "1\n2\n"),
        ("echo one \\\n two", "one two\n"),
        ("for i in 1 2; do\n echo $i\ndone", "1\n2\n"),
        ("cat <<'EOF'\na $x `b` \"c\nEOF\necho d", 'a $x `b` "c\nd\n'),
        ("cat <<EOF | tr a-z A-Z\nabc\nEOF", "ABC\n"),
        ("A=(); echo ${#A[@]}; [[ $A == $A ]]", "0\n"),
        ("printf '\\033[31mred\\033[0m \\033]0;title\\007plain'", "red plain"),
        ("echo 'grüße 🪴'", "grüße 🪴\n"),
        ("printf 'a\\r\\nb'", "a\r\nb"),
        ("echo SHELLPS1PREFIX; echo EXITCODESTART7EXITCODEEND; echo UNIQUESTRING29234", None),
        ("(sleep 1000 > /dev/null 2>&1) &", ""),
        ("echo to stderr >&2", "to stderr\n"),
    ],
)
def test_output(shell, command: str, output: str | None) -> None:
    observation = shell.run(command)
    assert observation.exit_code == 0
    if output is None:
        output = "SHELLPS1PREFIX\nEXITCODESTART7EXITCODEEND\nUNIQUESTRING29234\n"
    assert observation.output == output


def test_large_output_is_whole(shell) -> None:
    assert shell.run("seq 500000").output == "".join(f"{i}\n" for i in range(1, 500001))


def test_endless_output_is_bounded(shell) -> None:
    observation = shell.run("timeout 1 yes", check="silent")
    assert observation.exit_code == 124
    assert len(observation.output) < (11 << 20)


@pytest.mark.parametrize("command", ["(a", "a='", "for", "echo before; if", "echo before\necho )", "echo $(", "quit()"])
@pytest.mark.parametrize("check", ["raise", "silent", "ignore"])
def test_syntax_errors(shell, command: str, check: str) -> None:
    with pytest.raises(BashIncorrectSyntaxError) as error:
        shell.run(f"touch /testbed/ran; {command}", check=check)
    assert set(error.value.extra_info) == {"bash_stdout", "bash_stderr"}
    assert "line" in error.value.extra_info["bash_stderr"]
    assert shell.run("ls /testbed").output == ""


def test_what_is_no_syntax_error(shell) -> None:
    assert shell.run("ls nothing", check="silent").exit_code == 2
    assert shell.run('eval "("', check="silent").exit_code in (1, 2)
    assert shell.run("bash -n <<'EOF'\n(a\nEOF", check="silent").exit_code == 2
    assert "\n" in shell.run("shopt -s extglob\ntrue; echo; unalias -a").output


def test_the_shell_is_kept(shell) -> None:
    shell.run("export X=1; cd /tmp; env > /dev/null")
    assert shell.run("exit 3", check="silent").exit_code == 3
    assert shell.run("exec bash -c 'exit 4'", check="silent").exit_code == 4
    assert shell.run("kill -9 $$", check="silent").exit_code == 137
    assert shell.run("echo $X $PWD").output == "1 /tmp\n"


def test_startup_files(shell) -> None:
    shell.write(
        "/root/.rc", '[ -z "$PS1" ] && return\nPS1="mine> "\nexport X=from-rc\nalias greet="echo hi"\necho sourced\n'
    )
    shell.write("/root/other", "Y=2")
    assert shell.open("b", startup_source=["~/.rc", "/root/other"]) == "sourced\n"
    assert shell.run("echo $X $Y; greet", session="b").output == "from-rc 2\nhi\n"
    assert "No such file" in shell.open("c", startup_source=["/root/.bashrc-that-is-not-there"])
    assert shell.run("echo ok", session="c").output == "ok\n"


def test_startup_files_that_hang(shell) -> None:
    shell.write("/tmp/slow", "sleep 1000")
    with pytest.raises(CommandTimeoutError):
        shell.open("b", startup_source=["/tmp/slow"], startup_timeout=0.3)
    assert shell.open("b") == ""


def test_what_is_expected_of_a_command(shell) -> None:
    observation = shell.run("echo one two", expect=["never", r"o[a-z]e"], check="ignore")
    assert (observation.output, observation.expect_string, observation.exit_code) == ("", r"o[a-z]e", None)
    observation = shell.run("echo one; echo three; (exit 3)", expect=["owt|ee"], check="silent")
    assert (observation.output, observation.expect_string, observation.exit_code) == (" two\none\nthr\n", "owt|ee", 3)
    observation = shell.run("echo one", expect=["never"])
    assert (observation.output, observation.exit_code) == ("one\n", 0)
    assert observation.expect_string not in ("", "never")


def test_what_is_no_pattern(shell) -> None:
    with pytest.raises(re.error):
        shell.run("touch /testbed/ran", expect=["("])
    assert shell.run("ls /testbed").output == ""


def test_no_exit_code_while_it_runs(shell) -> None:
    with pytest.raises(NoExitCodeError):
        shell.run("echo ready; sleep 1000", expect=["ready"])
    assert shell.interrupt().exit_code == 0
    assert shell.run("echo ready; sleep 1000", expect=["ready"], check="silent").exit_code is None
    shell.interrupt()
    assert shell.run("echo ok").output == "ok\n"


def test_a_limit_is_told(rex) -> None:
    rex.stop()
    small = type(rex)(sandbox={"limits": {"disk_mib": 8}})
    try:
        small.open()
        observation = small.run("head -c 20m /dev/zero > /tmp/x", check="silent")
        assert (observation.exit_code, observation.failure_reason) == (1, "limit: disk")
    finally:
        small.stop()

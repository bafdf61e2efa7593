"""Programs that are typed to, and commands that are too late or interrupted."""

import asyncio
import threading
import time

import pytest
from swerex.exceptions import CommandTimeoutError, SessionDoesNotExistError
from swerex.runtime.abstract import BashAction, Command

PYTHON = "/usr/bin/python3 -q"


def type_(shell, command: str, *expect: str, **fields: object):
    return shell.run(command, is_interactive_command=True, expect=list(expect), **fields)


def test_python_in_turns_with_commands(shell) -> None:
    for number in range(3):
        observation = type_(shell, PYTHON, ">>> ")
        assert (observation.output, observation.exit_code, observation.expect_string) == ("", 0, ">>> ")
        assert type_(shell, f"print('hello', {number})", ">>> ").output == f"hello {number}"
        assert type_(shell, "for i in range(2): print(i)\n", ">>> $").output == "... 0\n1"
        shell.run("quit()\n", is_interactive_quit=True)
        assert shell.run(f"echo shell {number}").output == f"shell {number}\n"


def test_other_ways_to_leave(shell) -> None:
    type_(shell, PYTHON, ">>> ")
    assert type_(shell, "import sys; sys.exit(3)").expect_string not in ("", ">>> ")
    type_(shell, PYTHON, ">>> ")
    assert shell.run("import sys; sys.exit(3)", check="silent").exit_code == 3  # a command that should end it
    type_(shell, PYTHON, ">>> ")
    with pytest.raises(CommandTimeoutError):
        shell.run("print(1)", is_interactive_quit=True, timeout=0.3)
    shell.run("quit()", is_interactive_quit=True)
    assert shell.run("echo ok").output == "ok\n"


def test_a_program_that_reads_lines(shell) -> None:
    assert type_(shell, "echo name?; read name; echo hello $name; read", "name").expect_string == "name"
    assert type_(shell, "me", r"hello \w+").output == "?"
    assert shell.interrupt().output == ""
    assert shell.run("echo $name").output == "me\n"


def test_not_what_was_expected(shell) -> None:
    with pytest.raises(CommandTimeoutError, match=r"0\.3 seconds"):
        type_(shell, PYTHON, "never", timeout=0.3)
    assert type_(shell, "1 + 1", "2\n").expect_string == "2\n"
    assert type_(shell, "import time; print('go'); time.sleep(1000)", "go\n").expect_string == "go\n"
    assert shell.interrupt(expect=[">>> "], timeout=30).expect_string == ">>> "
    assert type_(shell, "40 + 2", "42").expect_string == "42"
    shell.interrupt()  # without a word to expect, the program has to go
    assert "Killed" in shell.run("echo ok").output


def test_a_command_that_is_too_late_runs_on(shell) -> None:
    with pytest.raises(CommandTimeoutError, match=r"timeout after 0.2 seconds while running command 'echo a; sleep 1"):
        shell.run("echo a; sleep 1; echo b", timeout=0.2)
    assert shell.run("echo c").output == "a\nb\nc\n"
    with pytest.raises(CommandTimeoutError):
        shell.run("sleep 1000", timeout=0.2)
    with pytest.raises(CommandTimeoutError, match="sleep 1000' still runs"):
        shell.run("echo d", timeout=0.2)
    assert shell.interrupt().expect_string
    assert shell.run("echo e").output == "e\n"


@pytest.mark.parametrize(
    ("command", "is_killed"),
    [
        ("echo a; sleep 1000", False),
        ("while :; do :; done", False),
        (f"x=1; {PYTHON} -c 'input()'", False),
        ("cat", False),
        ("trap '' INT TERM; sleep 1000", True),
        ("bash -c 'trap \"\" INT TERM; while :; do sleep 1; done'", True),
        ("seq 1000 | less -+F", True),
        ("stty raw -echo -isig; sleep 1000", True),
    ],
)
def test_interrupts(shell, command: str, is_killed: bool) -> None:
    with pytest.raises(CommandTimeoutError):
        shell.run(command, timeout=0.3)
    observation = shell.interrupt()
    assert (observation.exit_code, observation.expect_string != "") == (0, True)
    if command.startswith("echo"):
        assert observation.output == "a"
    following = shell.run("echo ok")
    assert ("Killed" in following.output) == is_killed
    assert following.output.endswith("ok\n")
    assert shell.run("echo ok").output == "ok\n"


def test_interrupt_with_nothing_running(shell) -> None:
    assert shell.interrupt().output == ""
    with pytest.raises(CommandTimeoutError):
        shell.run("sleep 0.3; echo late", timeout=0.1)
    time.sleep(0.5)  # it ends by itself
    assert shell.interrupt().output == "late"
    assert shell.run("echo ok").output == "ok\n"


def test_interrupt_of_a_call_in_another_thread(shell) -> None:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(shell.run("echo begun; sleep 1000", check="silent")))
    thread.start()
    time.sleep(0.5)
    shell.interrupt()
    thread.join(60)
    assert (seen[0].output.strip(), seen[0].exit_code) == ("begun", 130)
    assert shell.run("echo ok").output == "ok\n"


def test_calls_of_one_session_wait_for_one_another(shell) -> None:
    async def both() -> list[str]:
        actions = [BashAction(command=f"sleep 0.2; echo {name}", timeout=60) for name in "abc"]
        return [each.output for each in await asyncio.gather(*map(shell.runtime.run_in_session, actions))]

    assert asyncio.run(both()) == ["a\n", "b\n", "c\n"]


def test_a_cancelled_command_is_ended(shell) -> None:
    async def impatient(call) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.3)

    asyncio.run(impatient(shell.runtime.run_in_session(BashAction(command="sleep 12345"))))
    assert shell.run("echo ok").output == "ok\n"
    asyncio.run(impatient(shell.runtime.execute(Command(command=["sleep", "12345"]))))
    deadline = time.monotonic() + 60
    while shell.execute(["pgrep", "-f", "sleep 12345"]).exit_code == 0:
        assert time.monotonic() < deadline


def test_a_cancelled_call_that_waits_for_its_turn(shell) -> None:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(shell.run("sleep 1; echo mine")))
    thread.start()
    time.sleep(0.3)

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(shell.runtime.run_in_session(BashAction(command="touch /testbed/never")), 0.2)

    asyncio.run(impatient())
    thread.join(60)
    assert seen[0].output == "mine\n"
    assert shell.run("ls /testbed").output == ""


def test_closing_a_session_that_runs_something(shell) -> None:
    errors = []

    def run() -> None:
        try:
            shell.run("sleep 1000")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    shell.close_session()
    thread.join(60)
    assert isinstance(errors[0], SessionDoesNotExistError)
    shell.open()
    assert shell.run("pgrep sleep", check="silent").exit_code == 1

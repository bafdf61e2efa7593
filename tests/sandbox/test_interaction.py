"""Interactive programs as a session's step."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import InteractionTimeoutError, ProgramEndedError, Sandbox, SessionBusyError

from .conftest import Factory, eventually

ECHO = 'while read -r line; do echo "got $line"; done; echo end; (exit 4)'


@pytest.fixture
def sandbox(start: Factory) -> Sandbox:
    return start()


def test_python(sandbox: Sandbox) -> None:
    sandbox.run("X=5")
    with sandbox.interact("python3 -q; echo $X", timeout=30) as python:
        python.expect(">>> ")
        python.send_line("6 * 7")
        match = python.expect(["no", re.compile(r"(\d+)\r?\n")])
        assert (match.index, match.groups) == (1, ("42",))
        python.expect(">>> ")
        # short ones: a signal between the interpreter's look for signals and a sleep is seen after the sleep
        python.send_line("import time; print('sleeping'); [time.sleep(0.01) for _ in range(10**6)]")
        python.expect("sleeping\n")
        python.interrupt()
        python.expect("KeyboardInterrupt")
        python.expect(">>> ")
        python.send_eof()
        result = python.wait()
    assert result.exit_code == 0
    assert result.output.endswith("5\n")
    assert (result.stopped_by, result.restarted) == (None, False)
    assert sandbox.run("echo $X").output == "5\n"


def test_gdb_less_and_vi(sandbox: Sandbox) -> None:
    sandbox.run("seq 1000 > /tmp/lines")
    for command, steps in {
        "gdb -q -nx": [("(gdb) ", "print 6*7\n"), ("= 42", "quit\n")],
        "TERM=xterm less /tmp/lines": [("20", "G"), ("1000", "q")],
        "TERM=xterm vi /tmp/lines": [("20", "dd:wq\n")],
    }.items():
        program = command.split()[1 if "=" in command else 0]
        if sandbox.run(f"command -v {program}").exit_code != 0:
            continue
        with sandbox.interact(command, timeout=30) as interaction:
            for wanted, text in steps:
                interaction.expect(wanted)
                interaction.send(text)
            assert interaction.wait().exit_code == 0
    if sandbox.run("command -v vi").exit_code == 0:
        assert sandbox.run("head -n 1 /tmp/lines").output == "2\n"


def test_what_came_before(sandbox: Sandbox) -> None:
    with sandbox.interact(ECHO) as interaction:
        interaction.send_line("a b")
        interaction.send_line("hé")
        match = interaction.expect("b")
        assert (match.before, match.text) == ("got a ", "b")
        assert interaction.expect(re.compile("h(.)")).groups == ("é",)
        interaction.send(b"\xff\n")
        assert interaction.expect(b"\xff\n").before == "\ngot "
        interaction.send_line("one two")
        assert interaction.expect(["two", "one", re.compile(b"o")]).text == "o"
        interaction.send_eof()
        result = interaction.wait()
        assert result.exit_code == 4
        assert result.output.endswith("end\n")
        assert interaction.wait() == result


def test_timeout_and_end_are_told(sandbox: Sandbox) -> None:
    with sandbox.interact(ECHO, timeout=0.3) as interaction:
        interaction.send_line("a")
        with pytest.raises(InteractionTimeoutError, match=r"'nothing' did not come within 0.3 s.*got a") as late:
            interaction.expect("nothing")
        assert late.value.before == "got a\n"
        with pytest.raises(InteractionTimeoutError, match="did not end"):
            interaction.wait(0)
        assert interaction.expect("got a").before == ""
        interaction.send_eof()
        with pytest.raises(ProgramEndedError, match="exit status 4") as ended:
            interaction.expect("nothing", timeout=30)
        assert ended.value.result.exit_code == 4
        assert ended.value.before == "\nend\n"
        with pytest.raises(ProgramEndedError):
            interaction.send_line("x")
        assert ended.value.owner == "agent"
    assert sandbox.run("echo ok").output == "ok\n"


@pytest.mark.parametrize("pattern", ["", [], b"", [""], 5, [5]])
def test_what_is_no_pattern(sandbox: Sandbox, pattern: object) -> None:
    with sandbox.interact("cat") as interaction, pytest.raises((ValueError, TypeError)):
        interaction.expect(pattern)  # type: ignore[arg-type]


def test_one_step_at_a_time(sandbox: Sandbox) -> None:
    sandbox.open_session("b")
    with sandbox.interact("cat") as interaction:
        with pytest.raises(SessionBusyError, match="cat"):
            sandbox.run("true")
        with pytest.raises(SessionBusyError, match="cat"):
            sandbox.interact("cat")
        assert sandbox.run("echo ok", session="b").output == "ok\n"
        with sandbox.interact("cat", session="b") as other:
            other.send_line("other")
            interaction.send_line("this")
            other.expect("other")
            interaction.expect("this")
    assert sandbox.run("echo ok").output.endswith("ok\n")


@pytest.mark.parametrize("command", ["cat", "sh -c 'trap \"\" INT TERM; sleep 100; sleep 100'", "yes", "sleep 100"])
def test_closing_keeps_the_shell(sandbox: Sandbox, command: str) -> None:
    sandbox.run("X=1")
    interaction = sandbox.interact(command)
    interaction.close()
    interaction.close()
    result = interaction.wait()
    assert (result.stopped_by, result.restarted) == ("interrupt", False)
    assert sandbox.run("echo $X").output.endswith("1\n")


def test_closing_at_once_many_times(sandbox: Sandbox) -> None:
    sandbox.run("X=1")
    for _ in range(30):
        sandbox.interact("cat").close()
    assert sandbox.run("echo $X").output.endswith("1\n")


def test_what_nobody_read_is_not_read_by_the_next(sandbox: Sandbox) -> None:
    with sandbox.interact("sleep 0.3") as interaction:
        interaction.send_line("rm -rf /")
        interaction.send("half a line")
        interaction.wait(30)
    assert sandbox.run("read -t 0.2 x; echo $?").output == "142\n"


def test_endless_output_is_bounded(sandbox: Sandbox) -> None:
    with sandbox.interact("yes") as interaction:
        with pytest.raises(InteractionTimeoutError) as late:
            interaction.expect("never", timeout=1)
        assert len(late.value.before) < 1 << 20
        assert "bytes left out" in late.value.before
    assert interaction.wait().truncated
    assert sandbox.run("echo ok").output.endswith("ok\n")


def test_output_while_nobody_waits(sandbox: Sandbox) -> None:
    """The program must not block on a full terminal."""
    with sandbox.interact("seq 200000; touch /tmp/done; echo end; cat") as interaction:
        assert eventually(lambda: sandbox.execute(["test", "-e", "/tmp/done"]).exit_code == 0)
        interaction.expect("end\n", timeout=30)


def test_much_input(sandbox: Sandbox) -> None:
    lines = "".join(f"{number:0100}\n" for number in range(5000))
    with sandbox.interact("wc -c") as interaction:
        interaction.send(lines)
        interaction.send_eof()
        assert interaction.wait(30).output == f"{len(lines)}\n"


def test_input_that_nobody_reads(sandbox: Sandbox) -> None:
    with sandbox.interact("stty raw; sleep 100", timeout=1) as interaction:
        try:
            interaction.send("x" * 1_000_000)
        except InteractionTimeoutError as late:
            assert "does not read" in str(late)
    assert sandbox.run("echo ok").output.endswith("ok\n")


def test_resize(sandbox: Sandbox) -> None:
    command = "bash -c \"trap 'stty size' WINCH; while :; do sleep 0.05; done\""
    with sandbox.interact(command, timeout=30) as interaction:
        for _ in range(100):
            interaction.resize(12, 34)
            interaction.resize(56, 78)
            try:
                interaction.expect("56 78", timeout=1)
                break
            except InteractionTimeoutError:  # before the trap was there
                continue
        else:
            pytest.fail("no SIGWINCH")


def test_interrupt_of_the_session_from_another_thread(sandbox: Sandbox) -> None:
    sandbox.run("X=1")
    interaction = sandbox.interact("cat")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(interaction.expect, "never", 300)
        interaction_is_waiting = threading.Event()
        interaction_is_waiting.wait(0.2)
        sandbox.interrupt()
        with pytest.raises(ProgramEndedError) as ended:
            waiting.result(60)
    assert ended.value.result.stopped_by == "interrupt"
    idle = sandbox.interact("cat")
    sandbox.interrupt()
    assert idle.wait().stopped_by == "interrupt"
    assert sandbox.run("echo $X").output.endswith("1\n")


def test_a_program_that_ends_the_shell(sandbox: Sandbox) -> None:
    with sandbox.interact("kill -9 $$") as interaction:
        result = interaction.wait(30)
    assert (result.exit_code, result.restarted) == (137, True)
    assert sandbox.run("echo ok").output == "ok\n"


def test_after_close(sandbox: Sandbox) -> None:
    sandbox.open_session("b")
    interaction, other = sandbox.interact("cat"), sandbox.interact("cat", session="b")
    sandbox.close_session("b")
    with pytest.raises(SandboxError):
        other.expect("x")
    other.close()
    sandbox.close()
    with pytest.raises(SandboxError):
        interaction.expect("x")
    with pytest.raises(SandboxError):
        interaction.send("x")
    interaction.close()


def test_close_while_it_waits(sandbox: Sandbox) -> None:
    interaction = sandbox.interact("cat")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(interaction.expect, "never", 300)
        sandbox.close()
        with pytest.raises(SandboxError):
            waiting.result(60)

"""Several sessions, limits on time, interruption, streaming: what `run` takes beside the command."""

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Bind, Sandbox, SessionBusyError

from .conftest import Factory, eventually


@pytest.fixture
def sandbox(start: Factory) -> Sandbox:
    return start()


def test_sessions_are_apart(sandbox: Sandbox) -> None:
    sandbox.open_session("b", cwd="/tmp", env={"B": "1"})
    assert sandbox.sessions == ["b"]
    sandbox.run("A=1; cd /root")
    assert sandbox.sessions == ["b", "main"]
    assert sandbox.run("pwd; echo $A$B", session="b").output == "/tmp\n1\n"
    assert sandbox.run("pwd; echo $A$B").output == "/root\n1\n"
    assert sandbox.run("exit 3", session="b").restarted
    assert sandbox.run("pwd; echo $B", session="b").output == "/tmp\n1\n"
    assert sandbox.run("tty").output != sandbox.run("tty", session="b").output


def test_sessions_run_side_by_side(sandbox: Sandbox) -> None:
    names = [f"s{number}" for number in range(4)]
    for name in names:
        sandbox.open_session(name)

    def meet(name: str) -> str:
        wait = " && ".join(f"test -e /tmp/{other}" for other in names)
        return sandbox.run(f"touch /tmp/{name}; until {wait}; do sleep 0.02; done; echo met", session=name).output

    with ThreadPoolExecutor(len(names)) as threads:
        assert list(threads.map(meet, names)) == ["met\n"] * len(names)


def test_closing_a_session(sandbox: Sandbox) -> None:
    sandbox.open_session("b")
    sandbox.run("sleep 4321 & echo $$ > /tmp/pid", session="b")
    sandbox.close_session("b")
    assert sandbox.sessions == []
    assert sandbox.run("for i in $(seq 100); do kill -0 $(cat /tmp/pid) || break; sleep 0.05; done").exit_code == 0
    with pytest.raises(ValueError, match="no session 'b'"):
        sandbox.run("true", session="b")
    with pytest.raises(ValueError, match="no session 'b'"):
        sandbox.close_session("b")
    sandbox.open_session("b")
    assert sandbox.run("echo again", session="b").output == "again\n"


def test_closing_a_session_that_runs(sandbox: Sandbox) -> None:
    sandbox.open_session("b")
    errors = []

    def run() -> None:
        try:
            sandbox.run("touch /tmp/up; sleep 100", session="b")
        except SandboxError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    sandbox.run("until test -e /tmp/up; do sleep 0.02; done")
    sandbox.close_session("b")
    thread.join(30)
    assert errors == ["session 'b' was closed"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a\0", "a\nb", "x" * 65, "ä", "-a", " "])
def test_names_that_are_no_file_names(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(ValueError, match="no name for a session"):
        sandbox.open_session(name)


def test_what_a_session_cannot_be_opened_with(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="/nowhere"):
        sandbox.open_session("b", cwd="/nowhere")
    with pytest.raises(SandboxError, match=r"/testbed/a\.txt"):
        sandbox.open_session("b", cwd="/testbed/a.txt")
    with pytest.raises(ValueError, match="variable"):
        sandbox.open_session("b", env={"A": "x\0y"})
    with pytest.raises(ValueError, match="variable"):
        sandbox.open_session("b", env={"A=": "x"})
    with pytest.raises(ValueError, match="rows"):
        sandbox.open_session("b", rows=0)
    sandbox.open_session("b")
    with pytest.raises(ValueError, match="open already"):
        sandbox.open_session("b")
    assert sandbox.sessions == ["b"]


def test_directory_of_the_spec_that_does_not_exist(start: Factory) -> None:
    sandbox = start(spec={"cwd": "/nowhere"})
    with pytest.raises(SandboxError, match="/nowhere"):
        sandbox.run("true")
    assert sandbox.execute(["true"], cwd="/").exit_code == 0


def test_directory_that_is_gone_at_a_restart(sandbox: Sandbox) -> None:
    sandbox.run("mkdir -p /tmp/a/b/c; cd /tmp/a/b/c; rm -r /tmp/a/b")
    assert sandbox.run("exit 1").restarted
    assert sandbox.run("pwd").output == "/tmp/a\n"


def test_window(sandbox: Sandbox) -> None:
    sandbox.open_session("b", rows=12, columns=34)
    assert sandbox.run("stty size", session="b").output == "12 34\n"
    sandbox.resize(56, 78, "b")
    assert sandbox.run("stty size", session="b").output == "56 78\n"
    assert sandbox.run("exit 1", session="b").restarted
    assert sandbox.run("stty size", session="b").output == "56 78\n"
    assert sandbox.run("stty size").output == "50 200\n"
    with pytest.raises(ValueError, match="columns"):
        sandbox.resize(1, 65536)


def test_time_without_output(sandbox: Sandbox) -> None:
    result = sandbox.run("X=1; echo a; sleep 100", idle_timeout=0.5)
    assert (result.output.strip(), result.timed_out, result.stopped_by) == ("a", True, "idle_timeout")
    result = sandbox.run("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done", idle_timeout=5)
    assert (result.timed_out, result.stopped_by) == (False, None)
    result = sandbox.run("while :; do echo x; sleep 0.05; done", timeout=1, idle_timeout=60)
    assert result.stopped_by == "timeout"
    assert sandbox.run("echo $X").output == "1\n"


@pytest.mark.parametrize("limit", [float("nan"), -1, float("-inf"), -(10**400)])
def test_limits_that_are_no_time(sandbox: Sandbox, limit: float) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        sandbox.run("true", timeout=limit)
    with pytest.raises(ValueError, match="number of seconds"):
        sandbox.run("true", idle_timeout=limit)
    with pytest.raises(ValueError, match="number of seconds"):
        sandbox.execute(["true"], timeout=limit)


@pytest.mark.parametrize("limit", [float("inf"), 1e300, 10**400, 2**31, 2**63])
def test_limits_beyond_every_clock(sandbox: Sandbox, limit: float) -> None:
    assert sandbox.run("echo ok", timeout=limit, idle_timeout=limit).output == "ok\n"
    assert sandbox.execute(["echo", "ok"], timeout=limit).stdout == b"ok\n"


def test_no_time_at_all(sandbox: Sandbox) -> None:
    for _ in range(10):
        assert sandbox.run("sleep 100", timeout=0).stopped_by == "timeout"
    assert sandbox.run("echo ok").output.endswith("ok\n")


def test_output_as_it_comes(sandbox: Sandbox) -> None:
    pieces: list[bytes] = []
    seen = threading.Event()

    def on_output(data: bytes) -> None:
        pieces.append(data)
        if b"first" in b"".join(pieces) and not seen.is_set():
            seen.set()
            sandbox.write_file("/tmp/go", b"")

    result = sandbox.run("echo first; until test -e /tmp/go; do sleep 0.02; done; echo second", on_output=on_output)
    assert b"".join(pieces) == b"first\nsecond\n"
    assert result.output == "first\nsecond\n"


def test_callback_that_raises(sandbox: Sandbox) -> None:
    def on_output(data: bytes) -> None:
        raise LookupError("mine")

    sandbox.run("X=1")
    with pytest.raises(LookupError, match="mine"):
        sandbox.run("echo a; sleep 100; echo b", on_output=on_output)
    result = sandbox.run("echo $X")
    assert (result.output.strip(), result.restarted) == ("1", False)
    with pytest.raises(LookupError, match="mine"):
        sandbox.execute(["sh", "-c", "echo a; sleep 4321"], on_output=lambda *_: on_output(b""))
    assert eventually(lambda: sandbox.execute(["pgrep", "-f", "sleep 4321"]).exit_code == 1)


def test_callback_that_asks_its_own_session(sandbox: Sandbox) -> None:
    with pytest.raises(SessionBusyError):
        sandbox.run("echo a; sleep 100", on_output=lambda _: sandbox.run("echo b"))
    with pytest.raises(SessionBusyError):
        sandbox.run("echo a; sleep 100", on_output=lambda _: sandbox.close_session("main"))
    sandbox.run("echo a; sleep 0.1", on_output=lambda _: sandbox.interrupt())
    assert sandbox.run("echo ok").output.strip() == "ok"


def _interrupted(sandbox: Sandbox, command: str) -> object:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sandbox.run, f"touch /tmp/up; {command}", 300)
        assert eventually(lambda: sandbox.execute(["test", "-e", "/tmp/up"]).exit_code == 0)
        sandbox.interrupt()
        sandbox.interrupt()
        result = running.result(60)
    sandbox.run("rm -f /tmp/up")
    return result.stopped_by, result.timed_out, result.restarted


@pytest.mark.parametrize(
    "command",
    [
        "sleep 100",
        "cat",
        "while :; do :; done",
        "sh -c 'trap \"\" INT; sleep 100'",
        "sh -c 'trap \"\" INT TERM; sleep 100; sleep 100'",
        "yes",
        "sleep 100 & wait",
        "f() { sleep 100; }; f; f; sleep 100",
    ],
)
def test_interrupt(sandbox: Sandbox, command: str) -> None:
    sandbox.run("X=1")
    assert _interrupted(sandbox, command) == ("interrupt", False, False)
    assert sandbox.run("echo $X").output.endswith("1\n")


def test_interrupt_of_nothing(sandbox: Sandbox) -> None:
    sandbox.interrupt()
    sandbox.run("X=1")
    sandbox.interrupt()
    assert sandbox.run("echo $X").output == "1\n"
    with pytest.raises(ValueError, match="no session"):
        sandbox.interrupt("b")


def test_interrupts_at_any_moment(sandbox: Sandbox) -> None:
    """A late one must not hit the next step."""
    sandbox.run("X=1")
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.is_set():
            sandbox.interrupt()
            time.sleep(0.001)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        results = [sandbox.run("echo a") for _ in range(200)]
    finally:
        stop.set()
        thread.join(30)
    assert all(result.stopped_by == "interrupt" for result in results if "a" not in result.output)
    assert sandbox.run("echo $X").output.endswith("1\n")


def test_close_ends_every_session(start: Factory) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        sandbox = start()
        for name in ("a", "b", "c"):
            sandbox.open_session(name)
        with ThreadPoolExecutor(3) as threads:
            running = [threads.submit(sandbox.run, "sleep 100", session=name) for name in ("a", "b", "c")]
            sandbox.run("sleep 0.1")
            sandbox.close()
            for one in running:
                with pytest.raises(SandboxError):
                    one.result(30)
    assert len(os.listdir("/proc/self/fd")) <= before + 8  # noqa: PTH208  (the starter's socket, epoll, inotify)


def test_background_output_comes_with_the_next_step(sandbox: Sandbox) -> None:
    sandbox.run("(sleep 0.2; echo later) & :")
    sandbox.run("true", timeout=5)
    time.sleep(1)
    pieces: list[bytes] = []
    result = sandbox.run("echo own", on_output=pieces.append)
    assert "later\n" in result.output
    assert result.output.endswith("own\n")
    assert b"".join(pieces).decode() == result.output


def test_background_output_is_bounded(start: Factory) -> None:
    sandbox = start(output_chars=4000)
    sandbox.run("(sleep 0.1; seq 200000; touch /tmp/done) & :")
    assert eventually(lambda: sandbox.execute(["test", "-e", "/tmp/done"]).exit_code == 0)
    result = sandbox.run("echo own")
    assert result.truncated
    assert len(result.output) < 4200
    assert "bytes left out" in result.output
    assert result.output.endswith("own\n")


def test_commands_that_are_no_text(sandbox: Sandbox) -> None:
    result = sandbox.run("touch /tmp/x\0y")
    assert result.exit_code == 126
    assert "NUL" in result.output
    assert sandbox.run("echo $?; ls /tmp").output == "126\n"
    assert sandbox.run("echo '\ud83d\ude00'").output == "\U0001f600\n"
    assert sandbox.run("echo 'a\ud800b'").output == "a\ufffdb\n"


def test_trace_does_not_show_the_session(sandbox: Sandbox) -> None:
    sandbox.run("set -x")
    assert sandbox.run("echo a").output == "++ echo a\na\n"
    sandbox.run("set +x; set -v")
    assert sandbox.run("echo a").output.strip() == "echo a\na"


def test_a_bash_that_tells_nothing(start: Factory) -> None:
    static = Path("/bin/bash-static")
    if not static.exists():
        pytest.skip("no bash-static here")
    sandbox = start(spec={"binds": [Bind(source=static, target="/usr/bin/bash")]})
    for code in (0, 1, 7, 255):
        assert sandbox.run(f"(exit {code})").exit_code == code
        assert sandbox.run("echo $?").output == f"{code}\n"
    assert sandbox.run("cd /tmp; sleep 100", timeout=1).timed_out
    assert sandbox.run("exit 3").restarted
    assert sandbox.run("pwd").output == "/tmp\n"


@pytest.mark.parametrize("refused", [("syscall",), ("mem",), ("syscall", "mem")])
def test_a_kernel_that_shows_less_of_a_process(
    start: Factory, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...]
) -> None:
    """User-mode Linux has no /proc/PID/syscall; yama's ptrace_scope 3 refuses both to everybody."""
    open_really = os.open

    def open_there(path: str, flags: int, mode: int = 0o777, **how: int) -> int:
        if str(path).startswith("/proc/") and str(path).rpartition("/")[2] in refused:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        return open_really(path, flags, mode, **how)

    monkeypatch.setattr(os, "open", open_there)
    sandbox = start()
    for code in (0, 7, 255):
        assert sandbox.run(f"(exit {code})").exit_code == code
        assert sandbox.run("echo $?").output == f"{code}\n"
    assert sandbox.run("sleep 1; (sleep 0.3; echo late) & cd /tmp; wait; echo $(sleep 0.3)end").output.endswith("end\n")
    assert sandbox.run("cd /tmp; sleep 100", timeout=1).timed_out
    assert sandbox.run("read line < <(sleep 0.5; echo a); echo $line").output == "a\n"
    assert sandbox.run("exit 3").restarted
    assert sandbox.run("pwd").output == "/tmp\n"


def test_an_owner_without_limit_on_its_stack(repository: Path) -> None:
    """The kernel then lays memory out from the bottom, as with the sysctl vm.legacy_va_layout."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if hard != resource.RLIM_INFINITY:
        pytest.skip(f"the stack is limited to {hard} bytes")
    script = f"""
from minisandbox_ray.sandbox import Overlay, Sandbox, SandboxSpec
with Sandbox(SandboxSpec(overlays=[Overlay(target="/testbed", lower=[{str(repository)!r}])])) as sandbox:
    result = sandbox.run("export A=1; /bin/true; (exit 7)")
    with sandbox.fork() as fork:
        print(result.exit_code, result.restarted, fork.run("echo $A").output)
"""
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
    try:
        done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    assert done.stdout == "7 False 1\n\n", done.stderr


def test_a_fork_has_what_was_exported_last(sandbox: Sandbox) -> None:
    sandbox.run("export A='x y' B; C=3; unset LANG; f() { echo f; }; export -f f; cd /tmp; /bin/true")
    sandbox.run("export A=late D=4; B=5; cd /root")
    with sandbox.fork() as fork:
        assert fork.run("echo $A $B $C $D ${LANG-none}; f; pwd").output == "late 5 4 none\nf\n/root\n"
    assert sandbox.run("echo $A").output == "late\n"

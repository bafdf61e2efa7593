"""Nothing is left, however a sandbox or its owner ends; and nobody else's is touched."""

# ruff: noqa: PTH208

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Limits, Overlay, Sandbox, SandboxSpec
from minisandbox_ray.sandbox.starter import cgroups

from .conftest import Factory, eventually, namespace_of, processes_in, run_for_ever, still_alive

OWNER = """
import os, sys, time
from minisandbox_ray.sandbox import Sandbox, SandboxSpec
sandboxes = [Sandbox(SandboxSpec()) for _ in range(4)]
for sandbox in sandboxes:
    sandbox.run("(trap '' TERM INT HUP; setsid sleep 1000) & sleep 1000 &")
argv = ["readlink", "/proc/self/ns/mnt"]
print(*[sandbox.execute(argv).stdout.decode().strip() for sandbox in sandboxes], flush=True)
time.sleep(1000)
"""


def groups_of(pid: int) -> list[Path]:
    return list(cgroups.find_groups(re.compile(rf"minisandbox-\d+-{pid}-.*").fullmatch))


def in_use(pid: int) -> int:
    """The sandboxes of a living owner, as its groups tell; one is kept prepared and not counted."""
    return max(0, len({directory.name for directory in groups_of(pid)}) - 1)


def starters_of(pid: int) -> list[int]:
    return [int(p.name) for p in Path("/proc").glob("[0-9]*") if _command(p) == f"minisandbox starter of {pid}"]


def _command(directory: Path) -> str:
    try:
        return (directory / "cmdline").read_bytes().replace(b"\0", b"").decode()
    except OSError:
        return ""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_close(start: Factory) -> None:
    sandbox = start()
    sandbox.run("(trap '' TERM INT HUP; setsid sleep 1000) & sleep 1000 &")
    namespace = namespace_of(sandbox)
    assert eventually(lambda: len(processes_in(namespace)) >= 3)  # the shell forks after its command is over
    processes = processes_in(namespace)
    assert sandbox.is_alive
    mounts = Path("/proc/self/mounts").read_text()
    sandbox.close()
    sandbox.close()
    assert not sandbox.is_alive
    assert sandbox.init_pid == -1
    assert not still_alive(processes)
    assert eventually(lambda: in_use(os.getpid()) == 0)
    assert Path("/proc/self/mounts").read_text() == mounts


def test_exception_in_a_with_block(repository: Path) -> None:
    with pytest.raises(ZeroDivisionError), Sandbox(SandboxSpec()) as sandbox:
        raise ZeroDivisionError
    assert not sandbox.is_alive


def test_close_ends_a_running_command(start: Factory) -> None:
    sandbox = start()
    sandbox.run("true")
    (thread,), raised = run_for_ever(sandbox)
    sandbox.close()
    thread.join(30)
    assert "gone" in str(raised[0])


def test_close_in_the_middle_of_a_call_of_the_same_thread(start: Factory) -> None:
    """By an output callback, and by a signal handler; the call then does the rest."""
    before = descriptors()
    for call in (
        lambda sandbox: sandbox.run("echo a; sleep 1000", on_output=lambda _: sandbox.close()),
        lambda sandbox: sandbox.execute(["sh", "-c", "echo a; sleep 1000"], on_output=lambda *_: sandbox.close()),
        lambda sandbox: sandbox.run("sleep 1000"),
    ):
        sandbox = start()
        previous = signal.signal(signal.SIGALRM, lambda *_: sandbox.close())  # noqa: B023
        signal.setitimer(signal.ITIMER_REAL, 1)
        try:
            with pytest.raises(SandboxError, match="gone"):
                call(sandbox)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        assert not sandbox.is_alive
        with pytest.raises(SandboxError, match="closed"):
            sandbox.run("true")
    assert eventually(lambda: in_use(os.getpid()) == 0)
    assert eventually(lambda: descriptors() <= before + 1)  # the drain thread's, made once


def test_restore_in_the_middle_of_a_call_of_the_same_thread(start: Factory) -> None:
    sandbox = start()
    with sandbox.snapshot() as snapshot:
        with pytest.raises(SandboxError, match="middle"):
            sandbox.run("echo a", on_output=lambda _: sandbox.restore(snapshot))
        assert sandbox.run("echo ok").output == "ok\n"


def test_close_ends_a_running_diff(start: Factory) -> None:
    sandbox = start()
    sandbox.run("for i in $(seq 200); do head -c 200000 /dev/urandom > new$i; done")
    raised: list[BaseException] = []

    def diff() -> None:
        try:
            sandbox.diff()
        except SandboxError as error:
            raised.append(error)

    thread = threading.Thread(target=diff)
    thread.start()
    assert eventually(lambda: sandbox._fresh is not None)
    sandbox.close()
    thread.join(30)
    assert raised
    assert eventually(lambda: in_use(os.getpid()) == 0)


def test_a_failed_start_leaves_nothing() -> None:
    before = descriptors()
    with pytest.raises(SandboxError, match="/no/such/directory"):
        Sandbox(SandboxSpec(overlays=[Overlay(target="/testbed", lower=[Path("/no/such/directory")])]))
    assert eventually(lambda: descriptors() == before)
    assert eventually(lambda: in_use(os.getpid()) == 0)


def test_first_process_killed_from_outside(start: Factory) -> None:
    sandbox = start()
    sandbox.run("true")
    os.kill(sandbox.init_pid, signal.SIGKILL)
    assert eventually(lambda: not sandbox.is_alive)
    with pytest.raises(SandboxError, match="gone"):
        sandbox.run("true")
    sandbox.close()
    assert eventually(lambda: in_use(os.getpid()) == 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_death_of_the_owner(number: int) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout
    namespaces = owner.stdout.readline().split()
    assert len(namespaces) == 4
    assert eventually(lambda: all(len(processes_in(namespace)) >= 3 for namespace in namespaces))
    processes = set().union(*map(processes_in, namespaces))
    starters = starters_of(owner.pid)
    assert len(starters) == 1
    assert groups_of(owner.pid) or not cgroups.hierarchies()
    owner.send_signal(number)
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: not still_alive(processes))
    assert eventually(lambda: groups_of(owner.pid) == [])
    assert eventually(lambda: starters_of(owner.pid) == [])


def test_death_of_owner_and_starter_is_swept_later(start: Factory) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout
    namespaces = owner.stdout.readline().split()
    assert eventually(lambda: all(len(processes_in(namespace)) >= 3 for namespace in namespaces))
    processes = set().union(*map(processes_in, namespaces))
    for pid in starters_of(owner.pid):
        os.kill(pid, signal.SIGKILL)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: not still_alive(processes))
    mine = start()
    code = "from minisandbox_ray.sandbox import Sandbox, SandboxSpec; Sandbox(SandboxSpec()).close()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert groups_of(owner.pid) == []
    assert groups_of(os.getpid()) or not cgroups.hierarchies()  # the living are not swept
    assert mine.run("echo ok").output == "ok\n"


def test_starter_is_replaced() -> None:
    with Sandbox(SandboxSpec()) as old:
        for pid in starters_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):  # one may end with another
                os.kill(pid, signal.SIGKILL)
        with Sandbox(SandboxSpec()) as new:
            assert new.run("echo new").output == "new\n"
            assert old.run("echo old").output == "old\n"


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_child_has_its_own_starter(start: Factory) -> None:
    mine = start()
    mine.run("cd /tmp")
    pid = os.fork()
    if pid == 0:
        try:
            with Sandbox(SandboxSpec()) as sandbox:
                os._exit(0 if sandbox.run("echo child").output == "child\n" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert mine.run("pwd").output == "/tmp\n"
    assert eventually(lambda: groups_of(pid) == [])


def test_many_at_once(start: Factory, repository: Path) -> None:
    before = descriptors()

    def use(number: int) -> str:
        overlay = Overlay(target="/testbed", lower=[repository])
        with Sandbox(SandboxSpec(overlays=[overlay], limits=Limits(memory_mib=256))) as sandbox:
            sandbox.run(f"echo {number} > a.txt; export N={number}")
            outputs = [sandbox.run(f"echo {step} $N; cat a.txt").output for step in range(5)]
            assert outputs == [f"{step} {number}\n{number}\n" for step in range(5)]
            return sandbox.diff()

    with ThreadPoolExecutor(32) as threads:
        patches = list(threads.map(use, range(32)))
    assert all(f"+{number}\n" in patch for number, patch in enumerate(patches))
    assert eventually(lambda: in_use(os.getpid()) == 0)
    assert eventually(lambda: descriptors() <= before + 1)  # the drain thread's, made once


def test_no_drift() -> None:
    with Sandbox(SandboxSpec()) as sandbox:
        sandbox.run("true")
    assert eventually(lambda: in_use(os.getpid()) == 0)
    before = descriptors(), threading.active_count()
    for number in range(200):
        with Sandbox(SandboxSpec()) as sandbox:
            if number % 4 == 0:
                sandbox.run("true")
    assert eventually(lambda: descriptors() <= before[0] and threading.active_count() <= before[1])
    assert eventually(lambda: len(starters_of(os.getpid())) == 1)  # the next first process is called so, for a moment
    assert eventually(lambda: in_use(os.getpid()) == 0)


def test_close_ends_calls_that_wait_for_their_turn(start: Factory) -> None:
    """They would start a shell in what is gone, and wait for it while another process holds its socket."""
    sandbox = start()
    sandbox.run("true")
    threads, ended = run_for_ever(sandbox, threads=3)
    began = time.monotonic()
    sandbox.close()
    assert time.monotonic() - began < 30
    for thread in threads:
        thread.join(30)
    assert len(ended) == 3


@pytest.mark.parametrize("how", ["umask 077", "exec <&- 2>&-", "exec 1>&- 2>&-", "cd $(mktemp -d) && rmdir $PWD"])
def test_an_owner_in_odd_circumstances(how: str, tmp_path: Path) -> None:
    code = f"""
from minisandbox_ray.sandbox import Sandbox, SandboxSpec
with Sandbox(SandboxSpec()) as sandbox:
    sandbox.write_file("/tmp/new/file", b"x")
    output = sandbox.run("stat -c %a /tmp/new").output
    open({str(tmp_path / "out")!r}, "w").write(output)
"""
    (tmp_path / "program.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    command = f"{how}; exec {sys.executable} {tmp_path}/program.py"
    subprocess.run(["/bin/bash", "-c", command], env=environment, check=True)
    assert (tmp_path / "out").read_text() == "755\n"

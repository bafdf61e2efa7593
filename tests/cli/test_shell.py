"""A sandbox in the hand, as a person starts it: in a process of its own."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minisandbox_ray.cli.inputs import find_task
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import Task, save_tasks

SHELL = [sys.executable, "-m", "minisandbox_ray", "shell"]


def run(*arguments: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    kwargs = {"stdin": subprocess.DEVNULL, **kwargs}
    return subprocess.run([*SHELL, *arguments], capture_output=True, text=True, timeout=60, check=False, **kwargs)  # type: ignore[call-overload, no-any-return]


def test_command_runs_inside_and_its_status_and_streams_are_ours() -> None:
    done = run("-c", "cat /etc/minisandbox; pwd; echo oops >&2; exit 7", env={**os.environ, "PLANTED": "SECRET-1"})
    assert (done.returncode, done.stdout, done.stderr) == (7, "private root\n/testbed\n", "oops\n")
    assert "SECRET-1" not in run("-c", "env", env={**os.environ, "PLANTED": "SECRET-1"}).stdout


def test_input_is_relayed_and_an_open_input_does_not_hold_the_command() -> None:
    lines = "".join(f"{i}\n" for i in range(50_000))
    assert run("-c", "wc -l", stdin=None, input=lines).stdout.strip() == "50000"
    reader, writer = os.pipe()
    try:
        assert run("-c", "echo done", stdin=reader).stdout == "done\n"
    finally:
        os.close(reader)
        os.close(writer)


def test_terminal_is_interactive_and_ends_with_the_shells_status() -> None:
    pid, master = pty.fork()
    if pid == 0:
        os.execv(SHELL[0], SHELL)
    seen = b""
    deadline = time.monotonic() + 60
    for wanted, typed in ((b"sandbox:/testbed", b"tty; echo $((40 + 2))\r"), (b"42", b"exit 3\r")):
        while wanted not in seen and time.monotonic() < deadline:
            seen += os.read(master, 4096)
        assert wanted in seen, seen
        os.write(master, typed)
    _, status = os.waitpid(pid, 0)
    os.close(master)
    assert os.waitstatus_to_exitcode(status) == 3
    assert b"/dev/pts/" in seen


def test_bad_input_is_one_line_and_status_2() -> None:
    for arguments in (["--task", "no-such-task", "-c", "ls"], ["--env", "/no/such/file.yaml", "-c", "ls"]):
        done = run(*arguments)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert "Traceback" not in done.stderr


def test_a_file_of_tasks_without_one_of_its_ids_tells_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path / "cache"))
    task = Task(instance_id="calc-1", repo="calc", environment="a" * 64, FAIL_TO_PASS=["test_calc.py::test_add"])
    save_tasks([task.model_copy(update={"instance_id": f"calc-{number}"}) for number in range(1, 8)], "tasks.jsonl")
    save_tasks([], "none.jsonl")
    for name, said in (
        ("tasks.jsonl", "say which task: tasks.jsonl:calc-1; there are calc-1,"),
        ("tasks.jsonl:", "say which task: tasks.jsonl:calc-1; there are calc-1,"),
        (
            "tasks.jsonl:nope",
            "no task nope in tasks.jsonl; there are calc-1, calc-2, calc-3, calc-4, calc-5 and 2 more",
        ),
        ("tasks.jsonl:calc", "no task calc in tasks.jsonl; near it: calc-"),
        ("none.jsonl", "none.jsonl holds no tasks"),
        ("none.jsonl:nope", "no task nope in none.jsonl; it holds none"),
        ("other.jsonl", "cannot read the task file other.jsonl: No such file"),
        ("nope", "make the quickstart's with `make train`"),
        ("n" * 5000, "make the quickstart's with `make train`"),
    ):
        with pytest.raises(ConfigError) as caught:
            find_task(name)
        assert said in str(caught.value)


def test_without_a_terminal_it_reads_commands_like_bash() -> None:
    done = run(stdin=None, input="echo one\necho two; exit 4\n")
    assert (done.returncode, done.stdout) == (4, "one\ntwo\n")
    assert run().returncode == 0


def test_terminal_ends_with_its_shell_though_a_job_holds_it() -> None:
    pid, master = pty.fork()
    if pid == 0:
        os.execv(SHELL[0], SHELL)
    seen = b""
    while b"sandbox:/testbed" not in seen:
        seen += os.read(master, 4096)
    os.write(master, b"sleep 1000 & disown; exit 5\r")
    deadline = time.monotonic() + 60
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.close(master)
    assert done[0] == pid
    assert os.waitstatus_to_exitcode(done[1]) == 5


def test_a_reader_that_leaves_is_no_error() -> None:
    command = " ".join([*SHELL, "-c", "yes"])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("y\n141\n", "")

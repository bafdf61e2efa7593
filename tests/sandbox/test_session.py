"""Beyond the listed cases: what a result says, what survives a restart, what cannot be worn out."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from minisandbox_ray.sandbox import BrokenSandboxError, Sandbox

from .conftest import Factory, guard


@pytest.fixture
def sandbox(start: Factory) -> Sandbox:
    return start()


def test_result(sandbox: Sandbox) -> None:
    result = sandbox.run("cd /tmp; echo out; echo err >&2; (exit 5)")
    assert result.output == "out\nerr\n"
    assert result.exit_code == 5
    assert result.cwd == "/tmp"
    assert result.output_bytes == 8
    assert (result.timed_out, result.truncated, result.restarted, result.limit) == (False, False, False, None)


def test_status_of_a_signal(sandbox: Sandbox) -> None:
    assert sandbox.run("sh -c 'kill -9 $$'").exit_code == 137
    result = sandbox.run("kill -9 $$")
    assert (result.exit_code, result.restarted) == (137, True)


def test_restart_keeps_directory_and_exports(sandbox: Sandbox) -> None:
    sandbox.run("cd /tmp; export KEPT='a b\nc'; LOST=1; /bin/true")
    assert sandbox.run("exit 4").restarted
    result = sandbox.run('pwd; echo "$KEPT"; echo "$LOST"')
    assert result.output == "/tmp\na b\nc\n\n"
    assert not result.restarted


@pytest.mark.parametrize(
    "poison",
    [
        ".() { :; }; export -f .",
        "export LD_PRELOAD=/tmp/no.so",
        'for i in $(seq 30); do export "V$i=$(head -c 100000 /dev/zero | tr "\\0" x)"; done',
        "export BASHOPTS; shopt -s extdebug",
        "export SHELLOPTS; set -e -u -v",
        "export PATH=/nowhere",
        "export HOME=/nowhere ENV=/tmp/x BASH_ENV=/tmp/x PS4='$(exit)' PROMPT_COMMAND='exit 1'",
        "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone",
    ],
)
def test_poisoned_exports_do_not_outlive_the_shell(sandbox: Sandbox, poison: str) -> None:
    sandbox.run(poison)
    sandbox.run("/bin/true")
    sandbox.run("kill -9 $$")
    sandbox.run("set +euv; :")
    assert sandbox.run("builtin echo ok").output == "ok\n"


def test_a_root_that_starts_no_shell(start: Factory) -> None:
    sandbox = start()
    guard(sandbox)
    sandbox.run("echo 'int x = ;' > /tmp/x; echo changed > a.txt")
    # a library that ends every program that loads it
    sandbox.write_file("/tmp/end.c", b"#include <unistd.h>\n__attribute__((constructor)) void f(void) { _exit(9); }\n")
    if sandbox.run("cc -shared -fPIC -o /tmp/end.so /tmp/end.c").exit_code != 0:
        pytest.skip("no C compiler here")
    sandbox.run("builtin echo /tmp/end.so > /etc/ld.so.preload")
    result = sandbox.run("exit 3")
    assert (result.exit_code, result.restarted) == (3, True)
    with pytest.raises(BrokenSandboxError) as error:
        sandbox.run("true")
    assert error.value.owner == "agent"
    assert "+changed" in sandbox.diff()
    sandbox.write_file("/etc/ld.so.preload", b"")
    assert sandbox.run("echo ok").output == "ok\n"


def test_step_bytes_stolen_from_the_shell(sandbox: Sandbox) -> None:
    """A background job that reads the shell's own command pipe must not make a step look done."""
    sandbox.run(
        "(for i in $(seq 50); do for fd in /proc/$$/fd/*; do timeout 0.01 head -c 1 $fd; done; done) >/dev/null 2>&1 &"
    )
    for number in range(10):
        result = sandbox.run(f"echo {number}", timeout=20)
        assert result.output.endswith(f"{number}\n")


def test_input_of_the_terminal_is_empty(sandbox: Sandbox) -> None:
    result = sandbox.run("read -t 0.2 x; echo $?")
    assert result.output == "142\n"


def test_many_steps(sandbox: Sandbox) -> None:
    for number in range(500):
        assert sandbox.run(f"echo {number}; (exit {number % 256})").exit_code == number % 256


def test_steps_from_threads_do_not_mix(sandbox: Sandbox) -> None:
    def step(number: int) -> bool:
        return sandbox.run(f"for i in 1 2 3; do echo {number}; done").output == f"{number}\n" * 3

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(step, range(100)))


def test_sessions_of_threads_do_not_wait_for_each_other(start: Factory) -> None:
    slow, fast = start(), start()
    thread = threading.Thread(target=slow.run, args=("while [ ! -e /tmp/go ]; do sleep 0.05; done",))
    thread.start()
    assert fast.run("echo ok").output == "ok\n"

    slow.write_file("/tmp/go", b"")
    thread.join(30)
    assert not thread.is_alive()


def test_text_that_is_no_unicode(sandbox: Sandbox) -> None:
    assert sandbox.run("printf '%s' '\udcff' | od -An -tx1").output.strip() == "ff"
    assert sandbox.run("printf '\\377'").output == "\ufffd"
    assert "bytes" not in sandbox.run("echo a\0b").output

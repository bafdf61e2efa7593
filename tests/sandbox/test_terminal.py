"""A program on a terminal of its own."""

import os

import pytest

from minisandbox_ray.sandbox import Sandbox, Terminal

from .conftest import Factory


@pytest.fixture
def sandbox(start: Factory) -> Sandbox:
    return start()


def read_all(terminal: Terminal) -> bytes:
    data = b""
    while True:
        try:
            data += os.read(terminal.descriptor, 1 << 16)
        except OSError:
            return data


def read_until(terminal: Terminal, text: bytes) -> None:
    data = b""
    while text not in data:
        data += os.read(terminal.descriptor, 1 << 16)


def test_a_program_and_its_status(sandbox: Sandbox) -> None:
    terminal = sandbox.open_terminal(
        ["bash", "-c", "tty; stty size; echo $TERM $A; pwd; exit 7"], rows=33, env={"A": "b"}
    )
    output = read_all(terminal).decode().split()
    assert output[0].startswith("/dev/pts/")
    assert output[1:] == ["33", "80", "xterm", "b", "/testbed"]
    assert terminal.wait() == 7
    terminal.close()


def test_typing_and_resizing(sandbox: Sandbox) -> None:
    program = "trap 'exit 4' INT; trap 'stty size' WINCH; echo ready; while read -r line; do echo got $line; done"
    terminal = sandbox.open_terminal(["bash", "-c", program])
    read_until(terminal, b"ready")
    os.write(terminal.descriptor, b"typed\n")
    read_until(terminal, b"got typed")
    terminal.resize(50, 123)
    os.write(terminal.descriptor, b"more\n")
    read_until(terminal, b"50 123")
    os.write(terminal.descriptor, b"\x03")
    read_all(terminal)
    assert terminal.wait() == 4
    terminal.close()


def test_beside_a_session(sandbox: Sandbox) -> None:
    terminal = sandbox.open_terminal(["cat"])
    awaited = "for i in $(seq 200); do pgrep -c cat {} break; sleep 0.05; done | tail -n 1"
    assert sandbox.run(awaited.format("&&")).output == "1\n"
    terminal.close()
    assert sandbox.run(awaited.format("||")).output == "0\n"


def test_no_such_program(sandbox: Sandbox) -> None:
    terminal = sandbox.open_terminal(["no-such-program"])
    assert b"No such file" in read_all(terminal)
    assert terminal.wait() == 127
    terminal.close()

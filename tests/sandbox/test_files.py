"""The file interface resolves inside the root, whatever stands there."""

from pathlib import Path

import pytest

from minisandbox_ray.sandbox import Sandbox

from .conftest import Factory


@pytest.fixture
def sandbox(start: Factory) -> Sandbox:
    return start()


def test_round_trip(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 1000
    sandbox.write_file("/testbed/new/directory/file", data)
    assert sandbox.read_file("/testbed/new/directory/file") == data
    assert sandbox.read_file("new/directory/file") == data
    assert sandbox.execute(["cat", "/testbed/new/directory/file"]).stdout == data
    sandbox.write_file("a.txt", b"two\n")
    assert sandbox.run("cat a.txt; git diff --stat | wc -l").output == "two\n2\n"


def test_mode_is_for_new_files(sandbox: Sandbox) -> None:
    sandbox.write_file("/tmp/run", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert sandbox.run("/tmp/run").output == "ran\n"
    sandbox.write_file("/tmp/run", b"#!/bin/sh\necho again\n")
    assert sandbox.run("/tmp/run").output == "again\n"


def test_overwriting_shortens(sandbox: Sandbox) -> None:
    sandbox.write_file("/tmp/x", b"long content")
    sandbox.write_file("/tmp/x", b"short")
    assert sandbox.read_file("/tmp/x") == b"short"


def test_what_is_missing_or_no_file(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("/nothing")
    with pytest.raises(IsADirectoryError):
        sandbox.read_file("/testbed")
    with pytest.raises(IsADirectoryError):
        sandbox.write_file("/testbed", b"")
    with pytest.raises(NotADirectoryError):
        sandbox.write_file("/testbed/a.txt/b", b"")
    with pytest.raises(OSError, match="Read-only|Permission denied"):
        sandbox.write_file("/usr/bin/env", b"")


def test_size_is_bounded(sandbox: Sandbox) -> None:
    sandbox.run("head -c 1001 /dev/zero > /tmp/big")
    assert len(sandbox.read_file("/tmp/big", max_bytes=1001)) == 1001
    with pytest.raises(OSError, match="larger than 1000 bytes"):
        sandbox.read_file("/tmp/big", max_bytes=1000)


@pytest.mark.parametrize(
    "how", ["ln -s {path} link", "ln -s ../../../../../..{path} link", "ln -s {directory} d; ln -s d/{name} link"]
)
def test_links_do_not_lead_out(sandbox: Sandbox, tmp_path: Path, how: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    sandbox.run(how.format(path=secret, directory=tmp_path, name="secret"))
    for path in ("link", f"../../..{secret}", str(secret)):
        with pytest.raises(OSError, match="No such file"):
            sandbox.read_file(path)
    try:
        sandbox.write_file("link", b"inside")
    except OSError:
        pass
    assert secret.read_text() == "host"


@pytest.mark.parametrize(
    "path", ["/proc/self/root/etc/passwd", "/proc/1/root/etc/passwd", "/proc/1/environ", "/proc/1/mem"]
)
def test_no_process_files(sandbox: Sandbox, path: str) -> None:
    """The host may read them; whoever asks through this interface is not more than the agent."""
    with pytest.raises(OSError):
        sandbox.read_file(path)
    with pytest.raises(OSError):
        sandbox.write_file(path, b"x")


def test_pipes_devices_and_sockets_do_not_block(sandbox: Sandbox) -> None:
    sandbox.run(
        "mkfifo /tmp/fifo; /usr/bin/python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/tmp/socket')\""
    )
    for path in ("/tmp/fifo", "/dev/zero", "/dev/tty", "/tmp/socket"):
        with pytest.raises(OSError):
            sandbox.read_file(path)
        with pytest.raises(OSError):
            sandbox.write_file(path, b"x")


def test_races_do_not_lead_out(sandbox: Sandbox, tmp_path: Path) -> None:
    """A directory and a link to the host's path change places for ever."""
    (tmp_path / "file").write_text("host")
    swap = "while :; do mv -T d e; mv -T l d; mv -T d l; mv -T e d; done"
    sandbox.run(f"mkdir d; echo inside > d/file; ln -s {tmp_path} l")
    sandbox.run(f"({swap}) > /dev/null 2>&1 &")
    seen = set()
    for _ in range(300):
        try:
            seen.add(sandbox.read_file("d/file"))
            sandbox.write_file("d/file", b"inside\n")
        except OSError:
            continue
    assert seen <= {b"inside\n", b""}
    assert (tmp_path / "file").read_text() == "host"


def test_a_full_disk_is_an_error(start: Factory) -> None:
    sandbox = start(disk_mib=8)
    with pytest.raises(OSError, match="No space"):
        sandbox.write_file("/tmp/big", bytes(16 << 20))
    sandbox.run("rm /tmp/big")
    sandbox.write_file("/tmp/small", b"x")

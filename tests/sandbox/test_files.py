"""The file interface resolves inside the root, whatever stands there."""

import contextlib
import os
import resource
import subprocess
from concurrent.futures import ThreadPoolExecutor
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
    with pytest.raises(OSError, match=r"Read-only|Permission denied"):
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


def test_files_belong_to_root_inside(sandbox: Sandbox) -> None:
    sandbox.write_file("/testbed/new/directory/file", b"x", mode=0o600)
    sandbox.write_file("/testbed/a.txt", b"two\n")
    listed = "stat -c '%U:%G %a' new new/directory new/directory/file a.txt"
    assert sandbox.run(listed).output == "root:root 755\nroot:root 755\nroot:root 600\nroot:root 644\n"
    assert sandbox.run("echo y > new/directory/file; echo z > new/z; rm -r new").exit_code == 0


def test_upload_and_download(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "file").write_bytes(bytes(range(256)))
    (source / "deep" / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "deep" / "run").chmod(0o755)
    (source / "link").symlink_to("deep/run")
    (source / "dangling").symlink_to("/nowhere")
    (source / os.fsdecode(b"l\xe4tin")).write_text("odd")
    sandbox.upload(source, "/tmp/target")
    sandbox.upload(source, "/tmp/target")
    assert sandbox.run("/tmp/target/link; readlink /tmp/target/dangling; ls /tmp/target/deep").output == (
        "ran\n/nowhere\nempty  run\n"
    )
    for _ in range(2):
        sandbox.download("/tmp/target", tmp_path / "back")
    packed = [
        subprocess.run(["tar", "-c", "--sort=name", "--mtime=@0", "."], cwd=path, check=True, stdout=subprocess.PIPE)
        for path in (source, tmp_path / "back")
    ]
    assert packed[0].stdout == packed[1].stdout
    sandbox.upload(source / "file", "one")
    sandbox.download("one", tmp_path / "new" / "one")
    assert (tmp_path / "new" / "one").read_bytes() == bytes(range(256))
    with pytest.raises(FileNotFoundError):
        sandbox.upload(tmp_path / "nothing", "/tmp/x")
    with pytest.raises(FileNotFoundError):
        sandbox.download("/nothing", tmp_path / "x")
    with pytest.raises(OSError, match="larger than"):
        sandbox.download("/tmp/target", tmp_path / "small", max_bytes=100)
    with pytest.raises(ValueError, match="NUL"):
        sandbox.read_file("a.txt\0b")


def test_download_follows_no_link_out(sandbox: Sandbox, tmp_path: Path) -> None:
    """A directory becomes a link of the same name, here or there."""
    (tmp_path / "outside").mkdir()
    secret = tmp_path / "outside" / "secret"
    secret.write_text("host")
    sandbox.run(
        f"mkdir -p /tmp/d/sub; ln -s {tmp_path}/outside /tmp/d/out; ln -s {secret} /tmp/d/file; mkfifo /tmp/d/p"
    )
    sandbox.run("echo inside > /tmp/d/sub/secret; chmod 6755 /tmp/d/sub/secret")
    target = tmp_path / "target"
    sandbox.download("/tmp/d", target)
    assert (target / "out").is_symlink()
    assert not (target / "p").exists()
    assert (target / "sub" / "secret").stat().st_mode & 0o7777 == 0o755
    sandbox.run("rm /tmp/d/out; mkdir /tmp/d/out; echo overwritten > /tmp/d/out/secret")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        sandbox.download("/tmp/d", target)
    assert secret.read_text() == "host"
    sandbox.run(f"rm -r /tmp/d; ln -s {tmp_path}/outside /tmp/d")
    with pytest.raises(FileNotFoundError):
        sandbox.download("/tmp/d", tmp_path / "other")


def test_upload_follows_no_link_out(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "source" / "sub").mkdir(parents=True)
    (tmp_path / "source" / "sub" / "file").write_text("x")
    sandbox.run(f"mkdir /tmp/t; ln -s {tmp_path}/outside /tmp/t/sub; ln -s /proc/self/root /tmp/t/sub2")
    with contextlib.suppress(OSError):
        sandbox.upload(tmp_path / "source", "/tmp/t")
    assert list((tmp_path / "outside").iterdir()) == []


def test_download_of_many_directories_and_of_processes(start: Factory, tmp_path: Path) -> None:
    """Neither takes the host's descriptors, nor tells what of processes the host alone may read."""
    sandbox = start()
    sandbox.run("mkdir -p /tmp/d/{1..3000}; ln -s /proc/1 /tmp/results; ln -s /etc/passwd /tmp/d/7/link")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 100, hard))
    try:
        sandbox.download("/tmp/d", tmp_path / "d")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list((tmp_path / "d").iterdir())) == 3000
    for source in ("/proc/1", "/proc/1/task", "/tmp/results", "/proc"):
        with pytest.raises(OSError, match="not a directory of files"):
            sandbox.download(source, tmp_path / "processes")
    assert not (tmp_path / "processes").exists()


def test_what_is_no_file_is_not_uploaded(sandbox: Sandbox, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            sandbox.upload(source, "/tmp/x")


def test_nothing_is_left_of_what_is_too_large(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.run("truncate -s 1G /tmp/big")
    with pytest.raises(OSError, match="larger than"):
        sandbox.download("/tmp/big", tmp_path / "big", max_bytes=1000)
    assert list(tmp_path.iterdir()) == []


def test_threads_make_the_same_directories(sandbox: Sandbox) -> None:
    places = [f"/tmp/{turn}/a/b/c/d/e/{name}" for turn in range(20) for name in "wxyz"]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda place: sandbox.write_file(place, place.encode()), places))
    assert [sandbox.read_file(place).decode() for place in places] == places

"""Sandboxes where the machine gives no namespaces: the first test here runs the others in such a place."""

# ruff: noqa: PTH208

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Bind, Limits, Overlay, Sandbox, SandboxSpec
from minisandbox_ray.sandbox.mechanisms import probe, strict_failure
from minisandbox_ray.sandbox.starter import syscalls

from .conftest import eventually, run_for_ever, still_alive

_INSIDE = "TEST_WITHOUT_NAMESPACES"
confined = pytest.mark.skipif(_INSIDE not in os.environ, reason="run by test_without_namespaces")

OWNER = """
import sys, time
from minisandbox_ray.sandbox import Sandbox, SandboxSpec
sandboxes = [Sandbox(SandboxSpec(isolation="best-effort")) for _ in range(3)]
for sandbox in sandboxes:
    sandbox.run("(trap '' TERM INT HUP; setsid sleep 4711) & sleep 4711 &")
print(*[sandbox.init_pid for sandbox in sandboxes], flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="session", autouse=True)
def supported() -> None:
    """Strict sandboxes need not be."""


@pytest.mark.skipif(_INSIDE in os.environ, reason="is running")
def test_without_namespaces() -> None:
    try:
        syscalls.landlock_version()
    except OSError as error:
        pytest.skip(f"no Landlock: {error}")
    pytest_ = ["-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    result = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "without_namespaces.py"), *pytest_],
        check=False,
        env={**os.environ, _INSIDE: "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def spec(repository: Path | None = None, **fields: Any) -> SandboxSpec:
    overlays = [Overlay(target="/testbed", lower=[repository])] if repository else []
    return SandboxSpec(**{"isolation": "best-effort", "overlays": overlays, **fields})


def private_directories() -> list[str]:
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("minisandbox-")]


def descendants(pid: int) -> set[tuple[int, int]]:
    """(pid, start time) of a process and all below it."""
    table = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        table[int(name)] = int(fields[1]), int(fields[19])
    found = {pid}
    while more := {each for each, (parent, _) in table.items() if parent in found} - found:
        found |= more
    return {(each, table[each][1]) for each in found}


@pytest.fixture
def sandbox(repository: Path) -> Iterator[Sandbox]:
    with Sandbox(spec(repository)) as made:
        yield made


@confined
def test_strict_is_refused_with_one_line() -> None:
    with pytest.raises(SandboxError, match=r"namespaces?.*doctor.*best-effort") as caught:
        Sandbox(SandboxSpec())
    assert "\n" not in str(caught.value)
    assert not private_directories()


@confined
def test_commands_and_sessions(sandbox: Sandbox) -> None:
    result = sandbox.run("cat a.txt; cd ..; cd testbed; export A=1; (exit 7)")
    assert (result.output, result.exit_code, result.cwd) == ("one\n", 7, "/testbed")
    assert sandbox.run("echo $A; cd ~; echo x > $TMPDIR/y").cwd == "/root"
    assert sandbox.read_file("/tmp/y") == b"x\n"
    sandbox.open_session("b", cwd="/tmp", env={"B": "/testbed:/usr/bin"})
    assert sandbox.run("cat y; echo ${B##*:}; cat ${B%%:*}/a.txt", session="b").output == "x\n/usr/bin\none\n"
    assert sandbox.run("exec false", session="b").restarted
    assert sandbox.run("true", session="b").cwd == "/tmp"
    assert sandbox.run("sleep 1000", timeout=0.5).timed_out
    assert sandbox.run("echo $A").output == "1\n"
    with sandbox.interact("python3 -q") as program:
        program.expect(">>> ")
        program.send_line("6 * 7")
        program.expect("42")
    terminal = sandbox.open_terminal(["sh", "-c", "stty size </dev/tty; exit 3"], rows=7, columns=9)
    assert terminal.wait() == 3
    assert os.read(terminal.descriptor, 100) == b"7 9\r\n"
    terminal.close()


@confined
def test_programs_and_files(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.write_file("/testbed/run.sh", b"#!/bin/sh\necho out; echo error >&2; exit 3\n", 0o755)
    result = sandbox.execute(["/testbed/run.sh"], cwd="/root")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"error\n", 3)
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "file").write_text("x")
    sandbox.upload(tmp_path / "up", "/tmp/up")
    sandbox.download("/tmp/up", tmp_path / "down")
    assert (tmp_path / "down" / "file").read_text() == "x"
    sandbox.run(f"ln -s {tmp_path}/up/file link")
    with pytest.raises(FileNotFoundError):  # resolved inside
        sandbox.read_file("link")


@confined
def test_diff_fork_snapshot(sandbox: Sandbox, repository: Path) -> None:
    assert sandbox.diff() == ""
    sandbox.run("echo two > a.txt; pwd > where; mkdir sub; cd sub; export A=1")
    patch = sandbox.diff()
    assert "+two" in patch
    assert "+/testbed\n" in patch
    assert "minisandbox" not in patch
    with sandbox.fork() as child, sandbox.snapshot() as snapshot:
        result = child.run("cat ../a.txt; echo $A; test $HOME = $PWD/../../root || cd && pwd -P | grep -c root/root")
        assert (result.output, child.diff()) == ("two\n1\n1\n", patch)
        sandbox.run("rm -rf ../a.txt ../sub")
        sandbox.restore(snapshot)
        assert sandbox.diff() == patch
        assert len(private_directories()) == 3
    assert eventually(lambda: len(private_directories()) == 1)
    assert (repository / "a.txt").read_text() == "one\n"


@confined
def test_virtual_environment(repository: Path, tmp_path: Path) -> None:
    """Its programs, links and path files hold /venv, where it was built, and an interpreter that is bound."""
    venv, package = tmp_path / "venv", tmp_path / "package"
    python = os.path.realpath("/usr/bin/python3")
    packages = venv / "lib" / Path(python).name / "site-packages"
    for directory in (packages, venv / "bin", package):
        directory.mkdir(parents=True)
    (package / "bound.py").write_text("print('bound')\n")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (venv / "bin" / "python").symlink_to(python)
    (venv / "bin" / "also").symlink_to("/venv/bin/python")
    (venv / "bin" / "tool").write_text("#!/venv/bin/python\nimport here, bound\n")
    (venv / "bin" / "tool").chmod(0o755)
    (packages / "links.pth").write_text("/testbed\n/opt/package\n")
    tree = Path(tempfile.mkdtemp(dir=tmp_path))
    (tree / "here.py").write_text("import sys; print(sys.prefix == sys.argv[0].removesuffix('/bin/tool'))\n")
    fields: dict[str, Any] = {
        "overlays": [Overlay(target="/testbed", lower=[tree]), Overlay(target="/venv", lower=[venv])],
        "binds": [Bind(source=package, target="/opt/package")],
    }
    with Sandbox(spec(**fields)) as sandbox, sandbox.fork() as child:
        for each in (sandbox, child):
            assert each.run("tool; readlink $(dirname $(which tool))/also").output == "True\nbound\npython\n"
            assert each.run("also -c 'import here'").exit_code == 0
            assert each.run("echo > $(python -c 'import bound; print(bound.__file__)')").exit_code != 0


@confined
def test_writable_bind(tmp_path: Path) -> None:
    with Sandbox(spec(binds=[Bind(source=tmp_path, target="/data", writable=True)])) as sandbox:
        assert sandbox.run("echo x > ../data/file; cat ../data/file").output == "x\n"
    assert (tmp_path / "file").read_text() == "x\n"


@confined
def test_nothing_of_the_host_is_read_or_written(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("planted")
    at_home = Path.home() / f".secret-{os.getpid()}"
    at_home.write_text("planted")
    os.environ["PLANTED"] = "planted"
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        for path in (secret, at_home, f"/proc/{sleeper.pid}/environ", f"/proc/{os.getpid()}/environ"):
            result = sandbox.run(f"cat {path}")
            assert result.exit_code != 0
            assert "planted" not in result.output
        for path in (f"/proc/{sleeper.pid}/root/etc", f"/proc/{os.getpid()}/cwd/", tmp_path, Path.home(), "/etc"):
            assert sandbox.run(f"ls {path}").exit_code != 0
        for path in (secret, at_home):
            for command in ("echo x >{}", "rm {}", "mv {} x", "ln {} x", "truncate -s 0 {}", "setfattr -n user.x {}"):
                assert sandbox.run(command.format(path)).exit_code != 0
        for directory in (
            tmp_path,
            Path.home(),
            Path("/tmp"),
            Path("/dev/shm"),
            Path("/usr/bin"),
        ):
            assert sandbox.run(f"touch {directory}/new").exit_code != 0
            assert not (directory / "new").exists()
        assert "planted" not in sandbox.run("env").output
        assert sandbox.run("cat /etc/shadow || ls /dev/pts || ls ../../control && touch ../../control/x").exit_code != 0
        if syscalls.landlock_version() >= 6:
            assert sandbox.run(f"kill -9 {sleeper.pid} || kill -0 {os.getpid()}").exit_code != 0
            sandbox.run("kill -9 -1; pkill -9 -f .")
            assert sandbox.run("echo alive").output == "alive\n"
        assert sleeper.poll() is None
        assert (secret.read_text(), at_home.read_text()) == ("planted", "planted")
    finally:
        at_home.unlink()
        sleeper.kill()
        sleeper.wait()


@confined
def test_modes_and_times_of_its_own_files_only(sandbox: Sandbox, tmp_path: Path) -> None:
    """Landlock does not guard them."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o640)
    before = outside.stat()
    for command in (
        "chmod 777 {}",
        "chmod -R 777 {}/..",
        "touch -d @5 {}",
        "chown $(id -u) {}",
        "ln -s {} link; chmod 777 link",
        "(cd /; chmod 777 .{})",
        "python3 -c 'import os; os.fchmod(os.open(\"{}\", os.O_PATH), 511)'",
        "python3 -c 'import os; os.utime(\"{}\")'",
        "chmod 777 ../..; chmod 777 ../../control/main",
    ):
        assert sandbox.run(command.format(outside)).exit_code != 0
    after = outside.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    result = sandbox.run(
        "chmod 751 a.txt; touch -d @1000 a.txt; cp -p a.txt b; ln -s b c; touch -h -d @5 c;"
        "chown $(id -u):$(id -g) b; tar cf - b c | (mkdir d; tar xf - -C d); stat -c '%a %Y' b d/b; stat -c %Y d/c"
    )
    assert result.output == "751 1000\n751 1000\n5\n"
    code = "import os; f = os.open('b', 0); os.fchmod(f, 0o400); os.utime(f, (7, 7)); os.chmod('c', 0o500)"
    assert sandbox.run(f'python3 -c "{code}"; stat -c "%a %Y" b').output == "500 7\n"


@confined
def test_no_network_no_daemons(sandbox: Sandbox) -> None:
    for family in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"):
        result = sandbox.execute(["python3", "-c", f"import socket; socket.socket(socket.{family}, socket.SOCK_DGRAM)"])
        assert b"not supported" in result.stderr
    pair = "import socket; a, b = socket.socketpair({}); a.send(b'x'); print(b.recv(1))"
    assert sandbox.execute(["python3", "-c", pair.format("")]).stdout == b"b'x'\n"
    assert sandbox.execute(["python3", "-c", pair.format("type=socket.SOCK_DGRAM")]).exit_code != 0
    with Sandbox(spec(network="host")) as other:
        assert other.execute(["python3", "-c", "import socket; socket.socket()"]).exit_code == 0
        assert other.execute(["python3", "-c", "import socket; socket.socket(socket.AF_UNIX)"]).exit_code != 0


@confined
def test_limits() -> None:
    with Sandbox(spec(limits=Limits(memory_mib=128, disk_mib=16))) as sandbox:
        assert sandbox.run("head -c 100M /dev/zero > big").exit_code != 0
        assert sandbox.run("stat -c %s big").output == f"{16 << 20}\n"
        code = "import time; x = bytearray(400 << 20); time.sleep(20)"
        result = sandbox.run(f"python3 -c '{code}'", timeout=60)
        assert (result.exit_code, result.limit) == (137, "memory")
    with Sandbox(spec(limits=Limits(pids=32))) as sandbox:
        code = "import os, time; [os.fork() or time.sleep(30) or os._exit(0) for _ in range(100)]; time.sleep(30)"
        assert sandbox.run(f"python3 -c '{code}'", timeout=60).limit == "pids"
        assert sandbox.run("echo fine").output == "fine\n"


@confined
def test_close_leaves_nothing(repository: Path) -> None:
    sandbox = Sandbox(spec(repository))
    sandbox.run("(trap '' TERM INT HUP; setsid sleep 4711) & mkdir -p d/e; touch d/e/f; chmod 0 d/e d")
    inside = descendants(sandbox.init_pid)
    assert len(inside) >= 4
    (thread,), raised = run_for_ever(sandbox)
    sandbox.close()
    thread.join(30)
    assert raised
    assert not still_alive(inside)
    assert not private_directories()


@confined
def test_kill_of_its_first_process_leaves_nothing(sandbox: Sandbox) -> None:
    with Sandbox(spec()) as other:
        sandbox.run("(trap '' TERM INT HUP; setsid sleep 4711) & sleep 4711 &")
        inside = descendants(sandbox.init_pid)
        os.kill(sandbox.init_pid, signal.SIGKILL)
        assert eventually(lambda: not still_alive(inside))
        assert eventually(lambda: len(private_directories()) == 1)
        assert not sandbox.is_alive
        assert other.run("echo lives").output == "lives\n"


@confined
@pytest.mark.parametrize("with_starter", [False, True])
def test_death_of_the_owner_leaves_nothing(with_starter: bool) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    inside = set[tuple[int, int]]().union(*(descendants(int(pid)) for pid in owner.stdout.readline().split()))
    assert len(inside) >= 12
    assert len(private_directories()) == 3
    if with_starter:
        title = f"minisandbox starter of {owner.pid}".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            if path.read_bytes().rstrip(b"\0") == title:
                os.kill(int(path.parent.name), signal.SIGKILL)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: not still_alive(inside))
    assert eventually(lambda: not private_directories())


@confined
def test_the_next_starter_sweeps_what_the_dead_left() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    keepers = [int(pid) for pid in owner.stdout.readline().split()]
    inside = set[tuple[int, int]]().union(*map(descendants, keepers))
    starter = int(Path(f"/proc/{keepers[0]}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (starter, owner.pid, *keepers, *(pid for pid, _ in inside)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: not still_alive(inside))
    assert len(private_directories()) == 3
    command = "from minisandbox_ray.sandbox import *; Sandbox(SandboxSpec(isolation='best-effort')).close()"
    subprocess.run([sys.executable, "-c", command], check=True)
    assert not private_directories()


@confined
def test_doctor_says_degraded(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert strict_failure(found)
    (row,) = [each for each in found if each.name == "a best-effort sandbox"]
    assert row.available
    assert row.chosen
    assert "degraded only" in row.detail

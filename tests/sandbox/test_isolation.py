"""One test per property: what runs inside sees nothing of the host and cannot reach it."""

# ruff: noqa: PTH115

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Bind, Sandbox, SandboxSpec

from .conftest import Factory

SECRET = "PLANTED-SECRET-9c1f"


@pytest.fixture
def sandbox(start: Factory) -> Sandbox:
    return start()


def python(sandbox: Sandbox, code: str) -> str:
    """Run the system's Python inside; -> what it prints."""
    result = sandbox.execute(["/usr/bin/python3", "-c", code], cwd="/")
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode().strip()


@pytest.mark.parametrize("kind", ["mnt", "pid", "ipc", "uts", "net", "cgroup"])
def test_namespace_is_private(sandbox: Sandbox, kind: str) -> None:
    inside = sandbox.execute(["readlink", f"/proc/self/ns/{kind}"]).stdout.decode().strip()
    assert inside.startswith(f"{kind}:[")
    assert inside != os.readlink(f"/proc/self/ns/{kind}")


def test_environment_is_clean(start: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    sandbox = start(spec={"env": {"GIVEN": "yes"}})
    for text in (sandbox.run("env").output, sandbox.execute(["env"]).stdout.decode()):
        names = {line.partition("=")[0] for line in text.splitlines()} - {"_", "PWD", "OLDPWD", "SHLVL"}
        assert names == {"PATH", "HOME", "USER", "LANG", "TERM", "PAGER", "GIT_PAGER", "MANPAGER", "GIVEN"}


def test_no_memory_of_the_owner(tmp_path: Path) -> None:
    """A process with a secret in its environment and on its heap starts a sandbox; all that is readable is searched."""
    search = """
import glob, re
found = []
for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/auxv'):
    try:
        found.append((path, open(path, 'rb').read()))
    except OSError:
        pass
for pid in {path.split('/')[2] for path in glob.glob('/proc/[0-9]*/maps')}:
    try:
        for line in open(f'/proc/{pid}/maps'):
            low, high = (int(x, 16) for x in line.split()[0].split('-'))
            with open(f'/proc/{pid}/mem', 'rb', 0) as memory:
                memory.seek(low)
                found.append((pid, memory.read(high - low)))
    except (OSError, ValueError, OverflowError):
        pass
needle = b'-'.join([b'PLANTED', b'SECRET', b'9c1f'])
print([where for where, data in found if needle in data], any(where == '1' for where, _ in found))
"""
    program = f"""
import sys
from minisandbox_ray.sandbox import Sandbox, SandboxSpec
heap = {SECRET!r} * 3
with Sandbox(SandboxSpec()) as sandbox:
    sandbox.run("sleep 100 &")
    print(sandbox.execute(["/usr/bin/python3", "-c", {search!r}]).stdout.decode())
"""
    command = [sys.executable, "-c", program, SECRET]
    environment = {**os.environ, "PLANTED": SECRET}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    # the searching process has the parts of the needle, never the whole
    assert result.stdout.strip() == "[] False"


@pytest.mark.parametrize("what", ["environ", "mem", "maps", "auxv", "root/", "cwd/", "exe", "stack", "syscall"])
def test_first_process_tells_nothing(sandbox: Sandbox, what: str) -> None:
    path = f"/proc/1/{what}"
    command = f"ls {path}" if what.endswith("/") else f"cat {path}"
    result = sandbox.run(command)
    assert result.exit_code != 0
    missing = not Path(f"/proc/self/{what}").exists()  # some kernels lack syscall or stack
    assert missing or "ermission denied" in result.output or "not permitted" in result.output


def test_first_process_keeps_its_descriptors(sandbox: Sandbox) -> None:
    """Their numbers can be listed, but neither named nor opened."""
    assert sandbox.run("readlink /proc/1/fd/*").output == ""
    assert sandbox.run("for fd in /proc/1/fd/*; do head -c 1 $fd && echo opened; done 2>/dev/null").output == ""


def test_first_process_hides_its_command_line(sandbox: Sandbox) -> None:
    assert sandbox.run("tr -d '\\0' < /proc/1/cmdline").output == "minisandbox"


def test_first_process_cannot_be_killed_or_traced(sandbox: Sandbox) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGSEGV, signal.SIGHUP):
        sandbox.run(f"kill -{int(number)} 1")
    code = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"  # PTRACE_ATTACH
    assert python(sandbox, code) == "-1"
    assert sandbox.run("echo ok").output == "ok\n"
    assert sandbox.is_alive


def test_host_processes_are_invisible(sandbox: Sandbox) -> None:
    assert len(sandbox.run("ls /proc | grep '^[0-9]'").output.split()) < 12
    assert sandbox.run(f"kill -0 {os.getpid()}").exit_code != 0 or os.getpid() < 20


def test_no_inherited_descriptor(start: Factory, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        sandbox = start()
        for text in (
            sandbox.run("ls -l /proc/self/fd | grep -- '->'").output,
            sandbox.execute(["ls", "-l", "/proc/self/fd"]).stdout.decode(),
        ):
            targets = [line.partition(" -> ")[2] for line in text.splitlines() if " -> " in line]
            kinds = {target.split(":")[0] for target in targets}
            assert kinds <= {"/dev/pts/0", "pipe"} | {target for target in kinds if target.startswith("/proc/")}


def test_host_file_system_is_out_of_reach(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "marker").write_text("host")
    assert sandbox.run(f"cat {tmp_path}/marker").exit_code != 0
    assert sandbox.run("ls /old /layers /control /new").exit_code != 0
    assert sandbox.run("ls -A /home /mnt /srv /root /tmp /opt").output.replace(":", "").split() == [
        *("/home", "/mnt", "/opt", "/root", "/srv", "/tmp")
    ]
    assert sandbox.run("touch /usr/x").exit_code != 0
    paths = sandbox.run("cat /proc/mounts").output
    assert str(tmp_path.parent) not in paths


def test_no_secret_of_etc(sandbox: Sandbox) -> None:
    assert sandbox.run("cat /etc/shadow /etc/gshadow /etc/sudoers /etc/ssh/* /etc/ssl/private/*").exit_code != 0
    assert sandbox.run("wc -l < /etc/passwd").output == "4\n"
    assert "agent" in sandbox.run("git config user.name").output


def test_network_none_has_only_its_loopback(sandbox: Sandbox) -> None:
    assert python(sandbox, "import socket; print([name for _, name in socket.if_nameindex()])") == "['lo']"
    code = "from socket import *; s = create_server(('127.0.0.1', 80)); create_connection(('127.0.0.1', 80)); print(1)"
    assert python(sandbox, code) == "1"
    code = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"
    assert sandbox.execute(["/usr/bin/python3", "-c", code]).exit_code != 0


def test_abstract_sockets_of_the_host_are_out_of_reach(sandbox: Sandbox) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0minisandbox-test-{os.getpid()}")
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0minisandbox-test-{os.getpid()}')"
        assert sandbox.execute(["/usr/bin/python3", "-c", code]).exit_code != 0


def test_network_host_reaches_the_host(start: Factory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)"
        argv = ["/usr/bin/python3", "-c", code]
        assert start(spec={"network": "host"}).execute(argv).exit_code == 0
        assert start().execute(argv).exit_code != 0


def test_no_new_privileges_and_few_capabilities(sandbox: Sandbox) -> None:
    status = dict(line.split(":\t", 1) for line in sandbox.run("cat /proc/self/status").output.splitlines())
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    kept = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 10))
    for name in ("CapBnd", "CapPrm", "CapEff"):
        assert int(status[name], 16) == kept
    assert int(status["CapAmb"], 16) == 0


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs x /mnt",
        "mount --bind /etc /mnt",
        "umount -l /proc/sys",
        "unshare -U true",
        "unshare -m true",
        "unshare -n true",
        "nsenter -t 1 -m true",
        "chroot / true",
        "mknod /tmp/d b 8 0",
        "mknod /tmp/d c 1 1",
        "echo 1 > /proc/sys/kernel/sysrq",
        "echo x > /proc/sys/kernel/core_pattern",
        "hostname other",
        "date -s @0",
        "dmesg",
        "swapon /testbed/a.txt",
        "touch /proc/1/oom_score_adj && echo -1000 > /proc/1/oom_score_adj",
        "touch /dev/x",
        "rm /dev/null",
        "rm -rf /dev/minisandbox/main",
        "echo x > /dev/minisandbox/main",
    ],
)
def test_is_refused(sandbox: Sandbox, command: str) -> None:
    assert sandbox.run(command).exit_code != 0


@pytest.mark.parametrize("path", ["kcore", "keys", "kmsg", "timer_list", "kpagecount", "sysrq-trigger"])
def test_proc_is_masked(sandbox: Sandbox, path: str) -> None:
    result = sandbox.run(f"head -c 10 /proc/{path}")
    assert result.output == "" or "No such file" in result.output
    assert sandbox.run(f"[ ! -e /proc/{path} ] || [ /proc/{path} -ef /dev/null ]; echo $?").output == "0\n"


@pytest.mark.parametrize("name", ["bpf", "keyctl", "perf_event_open", "open_by_handle_at", "io_uring_setup", "setns"])
def test_system_call_is_refused(sandbox: Sandbox, name: str) -> None:
    from minisandbox_ray.sandbox.starter import seccomp, syscalls

    number = seccomp._DENIED[name][seccomp._MACHINES[syscalls.MACHINE][1]]
    call = f"ctypes.CDLL(None, use_errno=True).syscall({number}, 0, 0, 0, 0, 0)"
    code = f"import ctypes; print({call}, ctypes.get_errno())"
    assert python(sandbox, code) == "-1 1"


def test_typing_into_a_terminal_is_refused(sandbox: Sandbox) -> None:
    code = "import fcntl; fcntl.ioctl(0, 0x5412, b'x')"  # TIOCSTI
    result = sandbox.run(f'/usr/bin/python3 -c "{code}"')
    assert "Operation not permitted" in result.output


def test_devices_are_the_harmless_set(sandbox: Sandbox) -> None:
    listing = sandbox.run(
        "cd /dev; for f in $(find . | sort); do [ ! -L $f ] && [ -c $f -o -b $f ] && echo $f; done;"
        "echo x > null; head -c 3 zero | wc -c"
    ).output.split()
    devices = {name.removeprefix("./") for name in listing[:-1]}
    assert devices == {"null", "zero", "full", "random", "urandom", "tty", "pts/0", "pts/ptmx"}
    assert listing[-1] == "3"


def test_lower_files_cannot_be_changed(sandbox: Sandbox, repository: Path) -> None:
    sandbox.run("ln a.txt b; echo two > b; chmod 777 a.txt; mv a.txt c; rm -rf .git")
    assert (repository / "a.txt").read_text() == "one\n"
    assert (repository / ".git" / "HEAD").exists()


def test_binds_are_read_only_unless_asked(start: Factory, tmp_path: Path) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "single").write_text("single")
    (tmp_path / "link").symlink_to("/etc")
    binds = [
        Bind(source=tmp_path / "read", target="/data/read"),
        Bind(source=tmp_path / "write", target="/data/write", writable=True),
        Bind(source=tmp_path / "single", target="/data/single"),
    ]
    sandbox = start(spec={"binds": binds})
    assert sandbox.run("cat /data/read/file /data/write/file /data/single").output == "readwritesingle"
    assert sandbox.run("echo x > /data/read/file").exit_code != 0
    assert sandbox.run("echo x > /data/single").exit_code != 0
    assert sandbox.run("echo new > /data/write/file").exit_code == 0
    assert (tmp_path / "write" / "file").read_text() == "new\n"


def test_mount_targets_do_not_follow_links_out(start: Factory, tmp_path: Path) -> None:
    """An environment may hold a link where a spec mounts something."""
    lower, outside = tmp_path / "lower", tmp_path / "outside"
    lower.mkdir()
    outside.mkdir()
    (lower / "data").symlink_to(f"/old{outside}")
    (tmp_path / "source").mkdir()
    with contextlib.suppress(SandboxError):
        start(lower=lower, spec={"binds": [Bind(source=tmp_path / "source", target="/testbed/data/made")]})
    assert list(outside.iterdir()) == []


def test_set_user_id_files_of_an_archive_are_inert(start: Factory, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "tool").write_bytes(Path("/usr/bin/id").read_bytes())
    (tmp_path / "tool").chmod(0o4755)
    sandbox = start(lower=tmp_path)
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandbox has one user: setuid(1000) is EINVAL")
    code = "import os; os.setgid(1000); os.setuid(1000); os.execv('/testbed/tool', ['id', '-u'])"
    assert sandbox.execute(["/usr/bin/python3", "-c", code]).stdout.strip() == b"1000"


def test_sandboxes_do_not_see_each_other(start: Factory) -> None:
    one, two = start(), start()
    one.run("touch /testbed/mine /tmp/mine /dev/shm/mine; sleep 1234 &")
    assert two.run("ls /testbed/mine /tmp/mine /dev/shm/mine").exit_code != 0
    assert two.run("pgrep -f 'sleep 1234'").exit_code == 1


def test_control_groups_are_out_of_sight(sandbox: Sandbox) -> None:
    for line in sandbox.run("cat /proc/self/cgroup").output.splitlines():
        assert "minisandbox" not in line
    assert sandbox.run("ls -A /sys").output == ""


def test_host_name_is_its_own(start: Factory) -> None:
    assert start(spec={"hostname": "box-7"}).run("hostname; cat /etc/hostname").output == "box-7\nbox-7\n"


def test_unknown_spec_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="privileged"):
        SandboxSpec.model_validate({"privileged": True})

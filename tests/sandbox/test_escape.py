"""Ways out that were tried against containers before. Each runs inside a sandbox, which first proves to be one."""

import ctypes
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minisandbox_ray.sandbox import Bind, Sandbox
from minisandbox_ray.sandbox.starter import seccomp, syscalls

from .conftest import Factory, eventually, guard, is_there

NEED_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what this needs")


@pytest.fixture
def sandbox(start: Factory) -> Sandbox:
    sandbox = start()
    guard(sandbox)
    return sandbox


def python(sandbox: Sandbox, code: str) -> str:
    """Run the system's Python inside, with `syscall(number, ...)` -> errno at hand; -> what it prints."""
    prelude = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    result = libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return 0 if result >= 0 else ctypes.get_errno()
def attempt(function, *arguments, **options):
    try:
        return function(*arguments, **options)
    except OSError as error:
        return error.errno
"""
    result = sandbox.execute(["/usr/bin/python3", "-c", prelude + code], cwd="/")
    assert result.exit_code == 0, result.stderr.decode()
    return result.stdout.decode().strip()


def number(name: str) -> int:
    found = seccomp._DENIED[name][seccomp._MACHINES[syscalls.MACHINE][1]]
    assert found is not None
    return found


def test_chroot_and_climb(sandbox: Sandbox, tmp_path: Path) -> None:
    """chroot into a directory while holding a descriptor of one above, then climb: needs chroot."""
    (tmp_path / "marker").write_text("host")
    code = f"""
os.mkdir("/tmp/x")
outside = os.open("/", os.O_RDONLY)
print(attempt(os.chroot, "/tmp/x"))
os.fchdir(outside)
for _ in range(200):
    os.chdir("..")
print(os.path.exists(".{tmp_path}/marker"), sorted(os.listdir(".")) == sorted(os.listdir("/")))
"""
    assert python(sandbox, code) == "1\nFalse True"


@pytest.mark.parametrize(
    "path",
    ["/proc/1/root", "/proc/1/cwd", "/proc/self/root/..", "/proc/self/cwd/../../../..", "/proc/thread-self/root/.."],
)
def test_roots_in_proc(sandbox: Sandbox, tmp_path: Path, path: str) -> None:
    (tmp_path / "marker").write_text("host")
    assert sandbox.run(f"cat {path}{tmp_path}/marker").exit_code != 0
    assert sandbox.run(f"ls {path}/old {path}/layers {path}/proc/1/root/home").exit_code != 0


def test_descriptors_in_proc(sandbox: Sandbox) -> None:
    """Of every process, each descriptor that can be opened again leads to something that is inside."""
    code = r"""
import glob, stat
for path in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        target = os.readlink(path)
    except OSError:
        continue
    if target.startswith("/") and not os.path.lexists(target) and "deleted" not in target:
        print(path, target)
"""
    sandbox.run("sleep 100 &")
    assert python(sandbox, code) == ""


@pytest.mark.parametrize(
    "name",
    [
        *("mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsmount", "mount_setattr"),
        *("unshare", "setns", "kexec_load", "init_module", "finit_module", "delete_module", "bpf", "perf_event_open"),
        *("keyctl", "add_key", "request_key", "open_by_handle_at", "name_to_handle_at", "userfaultfd", "fanotify_init"),
        *("io_uring_setup", "swapon", "reboot", "syslog", "quotactl", "acct", "settimeofday", "sethostname"),
    ],
)
def test_system_call(sandbox: Sandbox, name: str) -> None:
    assert python(sandbox, f"print(syscall({number(name)}, 0, 0, 0, 0, 0))") == "1"  # EPERM


@pytest.mark.parametrize("flag", ["NEWUSER", "NEWNS", "NEWPID", "NEWNET", "NEWIPC", "NEWUTS", "NEWCGROUP"])
def test_new_namespace(sandbox: Sandbox, flag: str) -> None:
    value = getattr(os, f"CLONE_{flag}")
    clone = seccomp._MACHINES[syscalls.MACHINE][2]
    code = f"""
libc.syscall.restype = ctypes.c_long
result = libc.syscall({clone}, ctypes.c_long({value} | 17), 0, 0, 0, 0)
if result == 0:
    os._exit(0)
print(result, ctypes.get_errno(), syscall(435, ctypes.create_string_buffer(88), 88))
"""
    assert python(sandbox, code) == "-1 1 38"  # EPERM; clone3: ENOSYS, so that libraries fall back to clone


def test_other_architectures_numbers(sandbox: Sandbox) -> None:
    """`int 0x80` enters the 32-bit table, where mount is 21."""
    if syscalls.MACHINE != "x86_64":
        pytest.skip("an x86-64 way out")
    code = """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\xb8\\x15\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 21; int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    assert sandbox.execute(["/usr/bin/python3", "-c", "import ctypes" + code], cwd="/").exit_code == 128 + 31  # SIGSYS


@pytest.mark.parametrize("path", ["uid_map", "gid_map", "setgroups", "projid_map"])
def test_user_namespace_maps(sandbox: Sandbox, path: str) -> None:
    assert sandbox.run(f"echo '0 0 4294967295' > /proc/self/{path}").exit_code != 0


def test_root_inside_is_not_root_outside(sandbox: Sandbox) -> None:
    first, outside, _ = sandbox.run("cat /proc/self/uid_map").output.split()[:3]
    assert first == "0"
    assert int(outside) >= 1 << 30 or os.geteuid() != 0
    inside = sandbox.execute(["readlink", "/proc/self/ns/user"]).stdout.decode().strip()
    assert inside != str(Path("/proc/self/ns/user").readlink())


def test_files_of_root_outside_cannot_be_written(start: Factory, tmp_path: Path) -> None:
    """Even in a directory that is mounted writable, what belongs to somebody else does."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user owns no file of somebody else")
    (tmp_path / "file").write_text("theirs")
    os.chown(tmp_path / "file", 4321, 4321)
    (tmp_path / "file").chmod(0o600)
    sandbox = start(spec={"binds": [Bind(source=tmp_path, target="/data", writable=True)]})
    assert sandbox.run("stat -c %u /data/file").output == "4321\n"


def test_set_user_id_in_a_writable_bind(start: Factory, tmp_path: Path) -> None:
    """A program of root's that makes root of whoever starts it outside."""
    tmp_path.chmod(0o755)
    sandbox = start(spec={"binds": [Bind(source=tmp_path, target="/data", writable=True)]})
    guard(sandbox)
    code = """
os.chdir("/data")
os.umask(0)
open("f", "w").close()
directory = os.open(".", os.O_RDONLY)
file = os.open("f", os.O_RDWR)
os.chmod("f", 0o755)
os.close(os.open("plain", os.O_CREAT, 0o755))
for bits in (0o4755, 0o2755, 0o6777):
    for call in (
        lambda: os.chmod("f", bits), lambda: os.fchmod(file, bits), lambda: os.chmod("f", bits, dir_fd=directory),
        lambda: os.open(f"a{bits}", os.O_CREAT | os.O_WRONLY, bits), lambda: os.mknod(f"b{bits}", bits | 0o100000),
        lambda: os.open(f"c{bits}", os.O_CREAT | os.O_EXCL, bits, dir_fd=directory),
        lambda: os.open(".", os.O_TMPFILE | os.O_RDWR, bits),
    ):
        assert attempt(call) == 1, bits
    if os.uname().machine == "x86_64":
        assert [syscall(85, b"d", bits), syscall(90, b"f", bits), syscall(268, -100, b"f", bits)] == [1, 1, 1]
    assert syscall(452, -100, b"f", bits, 0) == 1
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, bits, 0)
    assert syscall(437, -100, b"e", how, 24) == 38
print(attempt(os.chmod, "f", 0o1777), attempt(os.open, "f", os.O_RDWR, 0o4755) > 0)
"""
    assert python(sandbox, code) == "None True"
    assert all(not path.stat().st_mode & 0o6000 for path in tmp_path.iterdir())
    assert (tmp_path / "plain").stat().st_mode & 0o777 == 0o755
    assert start().run("touch /tmp/f && chmod 4755 /tmp/f").exit_code == 0


def test_signals_to_outside(sandbox: Sandbox) -> None:
    with subprocess.Popen(["sleep", "100"]) as victim:
        sandbox.run(f"kill -9 {victim.pid}; kill -9 -{victim.pid}")
        sandbox.execute(["/bin/sh", "-c", "kill -9 -1"])
        assert victim.poll() is None
        victim.kill()
    assert sandbox.is_alive
    assert sandbox.run("echo ok").output == "ok\n"


def test_pidfd_and_memory_of_the_first_process(sandbox: Sandbox) -> None:
    code = """
handle = os.pidfd_open(1)
print(syscall(438, handle, 0, 0), syscall(438, handle, 3, 0))  # pidfd_getfd
buffer = ctypes.create_string_buffer(16)
local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
remote = (ctypes.c_void_p * 2)(0x400000, 16)
print(syscall(310, 1, local, 1, remote, 1, 0), syscall(311, 1, local, 1, remote, 1, 0))  # process_vm_readv, writev
"""
    if syscalls.MACHINE != "x86_64":
        pytest.skip("numbers of x86-64")
    assert python(sandbox, code) == "1 1\n1 1"


def test_tracing_another_user(sandbox: Sandbox) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandbox has one user: setuid(1000) is EINVAL")
    code = """
import time
ready, wake = os.pipe()
pid = os.fork()
if pid == 0:
    os.setgid(1000); os.setuid(1000)
    os.write(wake, b".")
    time.sleep(100)
os.read(ready, 1)
print(libc.ptrace(16, pid, 0, 0))
os.kill(pid, 9)
"""
    assert python(sandbox, code) == "-1"


def test_tracer_that_hides_an_end(sandbox: Sandbox) -> None:
    """It never waits for what it traces, which so looks as if it did not end."""
    code = """
victim, ready = int(sys.argv[1]), os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(ready[1], b"%d" % (libc.ptrace(0x4206, victim, 0, 0) == 0))  # PTRACE_SEIZE
    for descriptor in (0, 1, 2, *ready):
        os.close(descriptor)
    while True:
        os.read(os.pipe()[0], 1)
assert os.read(ready[0], 1) == b"1"
"""
    sandbox.write_file("/tmp/trace.py", f"import ctypes, os, sys\nlibc = ctypes.CDLL(None)\n{code}".encode())
    result = sandbox.execute(["sh", "-c", "/usr/bin/python3 /tmp/trace.py $$ && sleep 1000"], cwd="/", timeout=1)
    assert result.timed_out
    result = sandbox.execute(["sh", "-c", "/usr/bin/python3 /tmp/trace.py $$ && exit 3"], cwd="/", timeout=2)
    assert result.timed_out
    assert sandbox.run("/usr/bin/python3 /tmp/trace.py $$ && kill -9 $$; sleep 1000", timeout=1).timed_out
    assert sandbox.run("echo ok").output == "ok\n"


def test_terminals(sandbox: Sandbox) -> None:
    """Only those of the sandbox exist, and nobody types into one or makes one its own by force."""
    assert sandbox.run("ls /dev/pts").output.split() == ["0", "ptmx"]
    code = "import fcntl; fcntl.ioctl(0, 0x5412, b'x')"  # TIOCSTI
    assert "not permitted" in sandbox.run(f'/usr/bin/python3 -c "{code}"').output
    code = """
import fcntl
terminal = os.open("/dev/pts/0", os.O_RDWR | os.O_NOCTTY)
print(attempt(fcntl.ioctl, terminal, 0x540E, 1))  # TIOCSCTTY, steal it
print(attempt(fcntl.ioctl, terminal, 0x5423, b"\\x1b\\0\\0\\0"), attempt(fcntl.ioctl, terminal, 0x541C, b"\\3"))
"""
    sandbox.run("true")
    assert python(sandbox, code) == "1\n1 1"  # nor another line discipline (TIOCSETD), nor TIOCLINUX
    assert sandbox.run("echo ok").output == "ok\n"


def test_store_behind_an_overlay(start: Factory, tmp_path: Path) -> None:
    """What the lower layer holds is the same afterwards, whatever is done to it above: times and links included."""
    lower = tmp_path / "lower"
    (lower / "d").mkdir(parents=True)
    (lower / "f").write_text("one")
    (lower / "d" / "g").write_text("two")
    os.link(lower / "f", lower / "h")
    describe = ["find", str(lower), "-printf", "%p %i %n %m %U %T@ %C@\n"]
    before = subprocess.run(describe, check=True, stdout=subprocess.PIPE).stdout
    sandbox = start(lower=lower)
    guard(sandbox)
    result = sandbox.run(
        "ln f link && echo x >> link; echo x >> h; chmod 777 d/g; touch d; mv d e; rm -r e; truncate -s 0 f;"
        "exec 5<> f; echo more >&5; exec 5>&-; cp --reflink=auto f g2; setfattr -n user.x -v y f; chown 5:5 f;"
        "rm -rf ./*"
    )
    assert sandbox.run("ls -A").output == ""
    assert subprocess.run(describe, check=True, stdout=subprocess.PIPE).stdout == before, result.output


def test_memory_map_of_a_lower_file(start: Factory, repository: Path) -> None:
    sandbox = start()
    code = """
import mmap
with open("/testbed/a.txt", "rb") as file:
    shared = attempt(mmap.mmap, file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    print(shared)
"""
    assert python(sandbox, code) == "13"
    assert (repository / "a.txt").read_text() == "one\n"


@NEED_ROOT
def test_devices_in_an_archive(start: Factory, tmp_path: Path) -> None:
    """A block device's node in a lower layer opens nothing."""
    tmp_path.chmod(0o755)
    os.mknod(tmp_path / "memory", 0o20666, os.makedev(1, 1))
    os.mknod(tmp_path / "null", 0o20666, os.makedev(1, 3))
    for name in ("memory", "null"):
        (tmp_path / name).chmod(0o666)
    assert start(lower=tmp_path).run("cat memory").exit_code != 0
    assert start(lower=tmp_path).run("cat null").exit_code != 0


@NEED_ROOT
def test_capabilities_of_a_file_in_an_archive(start: Factory, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    tool = tmp_path / "tool"
    tool.write_bytes(Path("/usr/bin/cat").read_bytes())
    tool.chmod(0o755)
    everything = b"\x01\x00\x00\x02" + b"\xff\xff\xff\xff\xff\xff\xff\xff" + b"\xff\x01\x00\x00\xff\x01\x00\x00"
    os.setxattr(tool, "security.capability", everything)
    output = start(lower=tmp_path).run("./tool /proc/self/status").output
    effective = next(line for line in output.splitlines() if line.startswith("CapEff"))
    assert int(effective.split()[1], 16) & ~0x4FB == 0


def test_new_devices_and_programs_that_raise_privileges(sandbox: Sandbox) -> None:
    code = """
for kind in (0o20666, 0o60666):
    print(attempt(os.mknod, "/tmp/device", kind, os.makedev(1, 1)))
print(attempt(os.setxattr, "/tmp", "security.capability", b"\\x00" * 20) not in (None, 0))
print(attempt(os.setxattr, "/tmp", "trusted.overlay.opaque", b"y"))
"""
    assert python(sandbox, code) == "1\n1\nTrue\n1"


@pytest.mark.parametrize(
    "path",
    [
        *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory"),
        *("/proc/sys/kernel/panic", "/proc/irq/default_smp_affinity"),
        *("/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/shmmax", "/proc/acpi/wakeup", "/proc/mtrr"),
    ],
)
def test_settings_of_the_kernel(sandbox: Sandbox, path: str) -> None:
    before = _content(path)
    assert sandbox.run(f"echo 1 > {path}").exit_code != 0
    assert _content(path) == before


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    "name", ["cmdline", "kcore", "kmsg", "keys", "key-users", "timer_list", "interrupts", "config.gz"]
)
def test_what_proc_tells_of_the_host(sandbox: Sandbox, name: str) -> None:
    assert sandbox.execute(["head", "-c", "100", f"/proc/{name}"]).stdout == b""


def test_host_network_without_the_hosts_abstract_sockets(start: Factory) -> None:
    sandbox = start(spec={"network": "host"})
    guard(sandbox)
    name = f"minisandbox-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        code = f"print(attempt(socket.socket(socket.AF_UNIX).connect, '\\0{name}'))"
        result = python(sandbox, code)
    if result == "None" and not _can_scope():
        pytest.skip("Landlock here cannot scope abstract sockets: it needs Linux 6.12")
    assert result == "1"


def _can_scope() -> bool:
    return ctypes.CDLL(None).syscall(444, None, 0, 1) >= 6  # landlock_create_ruleset, its version


def test_host_network_without_privileges(start: Factory) -> None:
    ports = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    before = ports.read_text()
    sandbox = start(spec={"network": "host"})
    code = """
print(attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1), attempt(socket.socket, 17, socket.SOCK_RAW, 0))
print(attempt(socket.create_server, ("127.0.0.1", 81)))
"""
    assert python(sandbox, code) == "1 97\n13"
    assert ports.read_text() == before
    assert sandbox.run("ip link set lo down").exit_code != 0


def test_file_interface_races(sandbox: Sandbox, tmp_path: Path) -> None:
    """A directory is swapped for a link out, again and again, while the host reads and writes below it."""
    (tmp_path / "file").write_text("host")
    inside = f"""
import os
os.makedirs("/tmp/real", exist_ok=True)
open("/tmp/real/file", "w").write("inside")
os.symlink("{tmp_path}", "/tmp/link")
os.symlink("/tmp/real", "/tmp/d")
while not os.path.exists("/tmp/stop"):
    for target in ("/tmp/link", "/tmp/real", "/proc/self/root{tmp_path}"):
        os.symlink(target, "/tmp/new")
        os.rename("/tmp/new", "/tmp/d")
"""
    thread = threading.Thread(target=sandbox.execute, args=(["/usr/bin/python3", "-c", inside],))
    thread.start()
    seen = set()
    for step in range(2000):
        try:
            seen.add(sandbox.read_file("/tmp/d/file"))
            if step % 4 == 0:
                sandbox.write_file("/tmp/d/file", b"inside")
        except OSError:
            continue
    sandbox.write_file("/tmp/stop", b"")
    thread.join(60)
    assert seen <= {b"inside", b""}
    assert (tmp_path / "file").read_text() == "host"


def test_control_directory(sandbox: Sandbox) -> None:
    """What the host tells a shell cannot be changed, nor its pipe be kept from it for good."""
    sandbox.run("true")
    directory = sandbox.run("findmnt -rno TARGET,OPTIONS | grep minisandbox").output
    assert " ro," in directory
    place = directory.split()[0]
    for attack in (f"rm -rf {place}/*", f"echo x > {place}/main", f"mv {place} /tmp/x", f"chmod -R 777 {place}"):
        assert sandbox.run(attack).exit_code != 0
    assert sandbox.run("echo ok").output == "ok\n"


STARVING = """
import ctypes, fcntl, os, select, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def descriptors_under_way():
    kept = []
    while True:
        kept.append(pair := socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        pair[0].setblocking(False)
        for _ in range(5):
            socket.send_fds(pair[0], [b"x"], [0] * 250)
def inotify():
    while libc.inotify_init1(0) >= 0:
        pass
def signals():
    while libc.sigqueue(os.getpid(), 34, ctypes.c_void_p(1)) == 0:
        pass
def pipes():
    for _ in range(1900):
        os.pipe()
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [34])
for attack in (descriptors_under_way, inotify, signals, pipes):
    if os.fork() == 0:
        try:
            attack()
        except OSError:
            pass
        open(f"/tmp/{attack.__name__}", "w").close()
        time.sleep(1000)
"""
FEELING = """
import ctypes, fcntl, os, socket
libc = ctypes.CDLL(None, use_errno=True)
pair = socket.socketpair()
socket.send_fds(pair[0], [b"x"], [0])
assert libc.inotify_init1(0) >= 0
assert libc.timer_create(1, None, ctypes.byref(ctypes.c_int())) == 0
assert fcntl.fcntl(os.pipe()[1], 1032) >= 65536  # F_GETPIPE_SZ
"""


@NEED_ROOT
def test_what_the_kernel_counts_by_user(start: Factory) -> None:
    """Nobody inside eats it up for another sandbox or for the host; an ordinary user's sandboxes share its account."""
    other, sandbox = start(), start()
    guard(sandbox)
    sandbox.execute(["/usr/bin/python3", "-c", STARVING], cwd="/")
    names = ("descriptors_under_way", "inotify", "signals", "pipes")
    assert eventually(lambda: all(is_there(sandbox, f"/tmp/{name}") for name in names))
    for victim in (other, start()):
        result = victim.execute(["/usr/bin/python3", "-c", FEELING])
        assert result.exit_code == 0, result.stderr.decode()
        victim.open_session("another")
        assert victim.run("echo ok", session="another").output == "ok\n"
    subprocess.run([sys.executable, "-c", FEELING], check=True)


def test_inotify_instances(start: Factory) -> None:
    """What is left of the user's is enough for the user, whoever that is."""
    sandbox = start()
    guard(sandbox)
    code = "import ctypes\nlibc = ctypes.CDLL(None)\nwhile libc.inotify_init1(0) >= 0: pass\nopen('/tmp/full', 'w')"
    sandbox.write_file("/tmp/inotify.py", f"{code}\nimport time; time.sleep(1000)".encode())
    sandbox.execute(["/bin/sh", "-c", "setsid /usr/bin/python3 /tmp/inotify.py >/tmp/log 2>&1 &"])
    assert eventually(lambda: is_there(sandbox, "/tmp/full"))
    code = (
        "from minisandbox_ray.sandbox import *; s = Sandbox(SandboxSpec()); print(s.run('echo ok').output); s.close()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout == b"ok\n\n"


@NEED_ROOT
def test_owners_in_a_fork(start: Factory) -> None:
    """Each sandbox has ids of its own; what belonged to whom is the same in a fork and in what a snapshot brings."""
    sandbox = start()
    sandbox.run(
        "for user in 0 33 70000; do for place in /tmp /testbed; do touch $place/$user; "
        "chown $user:$user $place/$user; ln -s x $place/l$user; chown -h $user:$user $place/l$user; done; done"
    )
    look = "stat -c '%n %u %g' / /tmp /root /testbed /tmp/*[03] /testbed/*[03] /etc/passwd"
    expected = sandbox.run(look).output
    assert " 33 33\n" in expected and " 70000 70000\n" in expected and "65534" not in expected
    child = sandbox.fork()
    with child, child.fork() as grandchild, sandbox.snapshot() as snapshot:
        assert child.run("cat /proc/self/uid_map").output != sandbox.run("cat /proc/self/uid_map").output
        for one in (child, grandchild, Sandbox(sandbox.spec, snapshot=snapshot)):
            with one:
                assert one.run(look).output == expected
                assert one.run("echo x > /tmp/0 && echo x >> /etc/passwd && rm /testbed/33").exit_code == 0


def test_terminals_eaten_up(start: Factory) -> None:
    """The machine has few thousand for all sandboxes; one that took all of its own still gets shells."""
    sandbox = start()
    guard(sandbox)
    code = "import os, time\ntry:\n while True: os.open('/dev/ptmx', 2)\nexcept OSError: open('/tmp/full', 'w')\n"
    sandbox.execute(["/bin/sh", "-c", f'setsid /usr/bin/python3 -c "{code}\ntime.sleep(1000)" >/tmp/log 2>&1 &'])
    assert eventually(lambda: is_there(sandbox, "/tmp/full"))
    count = sandbox.execute(["sh", "-c", "ls /dev/pts | wc -l"]).stdout
    assert 2 < int(count) < 100
    sandbox.open_session("another")
    assert sandbox.run("echo ok", session="another").output == "ok\n"


def test_descriptors_that_nobody_receives(start: Factory) -> None:
    """So many are under way that the first process may send no more: a shell is started all the same."""
    sandbox = start(open_files=256)
    guard(sandbox)
    sandbox.execute(["/usr/bin/python3", "-c", STARVING], cwd="/")
    assert eventually(lambda: is_there(sandbox, "/tmp/descriptors_under_way"))
    sandbox.open_session("another")
    assert sandbox.run("echo ok", session="another").output == "ok\n"


def test_kernel_memory_that_outlives_processes(sandbox: Sandbox) -> None:
    """No killing would free it: message queues, semaphores, empty files in /dev/shm."""
    code = """
queues = sets = files = 0
while libc.msgget(0, 0o1600) >= 0:
    queues += 1
while libc.semget(0, 250, 0o1600) >= 0:
    sets += 1
try:
    while True:
        os.close(os.open(f"/dev/shm/{files}", os.O_CREAT))
        files += 1
except OSError:
    print(queues <= 64, sets <= 64, files <= 16384)
"""
    assert python(sandbox, code) == "True True True"


@pytest.mark.parametrize("symbol", ["export_env", "shell_variables"])
def test_memory_of_a_shell_that_was_written_to(sandbox: Sandbox, symbol: str) -> None:
    """What the host reads there may be anything."""
    code = f"""
import os, re, struct, sys
def symbol(name):
    data = open("/bin/bash", "rb").read()
    at, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + 64 * number) for number in range(count)]
    for section in [section for section in sections if section[1] == 11]:
        strings = sections[section[6]][4]
        for offset in range(section[4], section[4] + section[5], 24):
            where, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, offset)
            if data[strings + where :].startswith(name + b"\\0"):
                return value
shell = os.getppid()
with open(f"/proc/{{shell}}/maps") as maps, open(f"/proc/{{shell}}/mem", "r+b", buffering=0) as memory:
    memory.seek(int(maps.readline().split("-")[0], 16) + symbol(b"{symbol}"))
    memory.write(struct.pack("Q", int(sys.argv[1], 0)))
"""
    sandbox.write_file("/tmp/poke.py", code.encode())
    for address in ("0xf000000000000000", "0x7fffffffffffffff", "0xfff", "0"):
        sandbox.run(f"/usr/bin/python3 /tmp/poke.py {address}")
        sandbox.fork().close()
        sandbox.run("true")
    sandbox.close_session("main")
    assert sandbox.run("echo ok").output == "ok\n"


@pytest.mark.parametrize("sections", [(0, 60_000, 20 << 20), (999, 2, 2400), (1, 3, 1 << 62)])
def test_shell_that_became_a_hostile_program(sandbox: Sandbox, sections: tuple[int, int, int]) -> None:
    """It reads commands as a shell would, and its symbol tables are endless or lead nowhere."""
    link, count, size = sections
    code = f"""
import struct
data = bytearray(open("/usr/bin/cat", "rb").read())
struct.pack_into("<Q", data, 40, len(data)); struct.pack_into("<H", data, 60, {count})
data += struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, 0, {size}, {link}, 0, 0, 0) * {count} + bytes(25 << 20)
open("/tmp/hostile", "wb").write(data)
"""
    python(sandbox, code)
    sandbox.run("chmod +x /tmp/hostile")
    become = "for f in /proc/$$/fd/*; do case $(readlink $f) in pipe*) exec 7<$f;; esac; done; exec /tmp/hostile <&7"
    sandbox.open_session("hostile")
    sandbox.run(become, session="hostile", timeout=5)
    assert sandbox.run("echo ok", session="hostile", timeout=5).output == "ok\n"

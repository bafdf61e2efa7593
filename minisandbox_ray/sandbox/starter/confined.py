"""A sandbox where the machine gives no namespaces, as in an unprivileged container: degraded, best effort only.

A private directory holds copies of the overlays' directories and links to what is bound. The programs run confined by
Landlock and two system call filters, without capabilities. What they see is the host's tree: /testbed inside is really
<private>/root/testbed. Directories, programs, and paths in environment variables that a request names are changed to
that, and so are `#!` lines, links and path files of virtual environments; a command that names /testbed itself fails.

Lost besides: the host's processes are in sight (their command lines, not their memory), and so are all files' names
and sizes (stat); signals reach processes of the same user before Linux 6.12; no loopback, no Unix sockets, no terminals
made inside, no /dev/shm (and so no semaphores of Python's multiprocessing), no System V objects, no extended
attributes, one user; the disk limit holds for each file at once, for all together after some seconds; where there are
no control groups either, memory and processes are watched, not held. Before Linux 5.19 rename(2) between directories
gives EXDEV, after which mv copies.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH108, PTH114, PTH115, PTH119
# ruff: noqa: PTH123, PTH208, PTH211

import _thread
import contextlib
import fcntl
import functools
import os
import re
import resource
import select
import signal
import socket
import stat
import termios
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import attributes, cgroups, etc, first, init, landlock, paths, seccomp, sources, syscalls, tree, watchdog, wire

LOST = (
    "no path is remapped (/testbed is <private directory>/root/testbed); the host's processes and all files' names are "
    "in sight; no loopback, Unix sockets, /dev/shm, System V objects, new terminals; one user"
)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PLACES = ("testbed", "root", "home", "mnt", "opt", "srv", "run", "tmp", "var/tmp", "var/log", "var/lib", "dev/shm")
_READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc")
_ETC = (*etc.HOST_FILES, *etc.ETC_DIRECTORIES, "passwd", "group", "nsswitch.conf", "hosts", "hostname", "mtab")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# what holds its own path in a virtual environment or an editable installation
_PATH_FILES = re.compile(r"pyvenv\.cfg|.*\.pth|.*\.egg-link|__editable__.*\.py|activate.*", re.DOTALL)
_LARGEST_TEXT = 1 << 20  # bytes
_LOOK_SECONDS, _LOOK_SHARE = 2.0, 0.02  # between two looks at the disk, and of one processor for them


@functools.cache
def is_needed() -> bool:
    """Whether this machine gives this process no namespaces, or no /proc for them; tried out by forked children."""
    told, tell = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        try:
            os.unshare(os.CLONE_NEWPID)
            if os.fork() == 0:
                os.unshare(os.CLONE_NEWNS | os.CLONE_NEWIPC | os.CLONE_NEWUTS)
                syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
                syscalls.mount("tmpfs", "/tmp", "tmpfs")
                syscalls.mount("proc", "/tmp", "proc")
                os.write(tell, b"no")
        finally:
            os._exit(0)
    os.close(tell)
    try:
        return os.read(told, 2) != b"no"
    finally:
        os.close(told)


def start(plan: wire.Message, descriptors: list[int], name: str, **about: Any) -> tuple[int, str]:
    """Fork the keeper of a sandbox, or of a snapshot; -> (its pid, the private directory)

    Raises OSError where nothing would protect the host.
    """
    try:
        syscalls.landlock_version()
    except OSError as error:
        raise OSError(f"this machine gives neither namespaces nor Landlock ({error.strerror})") from None
    directory = f"{plan['scratch']}/{name}"
    pid = os.fork()
    if pid == 0:
        try:
            _keep(plan, descriptors, directory, **about)
        finally:
            os._exit(1)
    return pid, directory


def _keep(plan: wire.Message, descriptors: list[int], directory: str, **about: Any) -> None:
    """Make the directory, have it used, end all that uses it and remove it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _close_all_but(*descriptors[:2])
    syscalls.hide_command_line("minisandbox")
    syscalls.set_dumpable(True)  # the owner looks into the shells, and the domain keeps those inside from here
    os.setsid()
    syscalls.adopt_orphans()
    control = socket.socket(fileno=descriptors[0])
    try:
        os.mkdir(directory, 0o700)
        if plan["op"] == "snapshot":
            _keep_snapshot(control, descriptors[1], directory)
        else:
            _keep_sandbox(control, plan, descriptors[1:2], directory, **about)
    except Exception as error:
        first.report(control, str(error) or type(error).__name__)
    finally:
        control.close()
        _end_descendants()
        remove(directory)


def _close_all_but(*kept: int) -> None:
    for number in set(map(int, os.listdir("/proc/self/fd"))).difference(kept, (0, 1, 2)):
        with contextlib.suppress(OSError):  # the one of that list itself
            os.close(number)


def _keep_snapshot(control: socket.socket, origin: int, directory: str) -> None:
    """As long as somebody holds the second descriptor: the end of a pipe."""
    ended, held = os.pipe2(os.O_CLOEXEC)
    root = _copy_root(origin, directory)
    wire.send(control, {}, [root, held])
    os.close(held)
    control.close()
    os.read(ended, 1)


def _keep_sandbox(
    control: socket.socket,
    plan: wire.Message,
    origin: list[int],
    directory: str,
    hierarchies: list[cgroups.Hierarchy],
    filters: list[bytes],
) -> None:
    groups = cgroups.make(hierarchies, os.path.basename(directory))
    cgroups.write_settings(groups, cgroups.open_all(groups), plan["group_settings"])
    root = _copy_root(origin[0], directory) if origin else _make_root(plan, directory)
    os.mkdir(f"{directory}/control", 0o755)
    with open(f"{directory}/gitconfig", "wb") as file:
        file.write(etc.GITCONFIG.encode())
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _serve(control, plan, directory, root, groups, filters, keeper)
        finally:
            os._exit(1)
    _watch(pid, control, f"{directory}/root", plan["disk_mib"] << 20)


def _watch(pid: int, control: socket.socket, root: str, limit: int) -> None:
    """Until the sandbox's first process ends or the owner hangs up; who goes on writing beyond the limit is killed."""
    poller = select.poll()
    poller.register(os.pidfd_open(pid), select.POLLIN)
    poller.register(control, 0)
    most = before = _size(root) + limit
    wait = _LOOK_SECONDS
    while not poller.poll(wait * 1000):
        began = time.monotonic()
        size = _size(root)
        if size > most and size > before:
            for each in watchdog.descendants():
                if each != pid:
                    init.kill(each, signal.SIGKILL)
        before = size
        wait = max(_LOOK_SECONDS, (time.monotonic() - began) / _LOOK_SHARE)


def _size(root: str) -> int:
    total = 0
    for directory, _, files in os.walk(root):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{directory}/{name}").st_blocks * 512
    return total


def _end_descendants() -> None:
    """Kill them until none is left; orphans among them come to this process."""
    while True:
        for pid in watchdog.descendants():
            init.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


# The private directory.


def _make_root(plan: wire.Message, directory: str) -> int:
    """-> the descriptor of what is / inside"""
    place = f"{directory}/root"
    for name in _PLACES:
        os.makedirs(f"{place}/{name}")
    root = os.open(place, _DIRECTORY)
    for overlay in plan["overlays"]:
        sources.refuse_copy(overlay["target"])
        os.close(paths.make_directories(root, overlay["target"]))
        copy = paths.open_in_root(root, overlay["target"], _DIRECTORY)
        for path, *_ in overlay["lower"][::-1]:
            lower = os.open(path, _DIRECTORY)
            tree.copy(lower, copy, merge=True, owners=False)
            os.close(lower)
        os.close(copy)
    for bind in plan["binds"]:
        parent, _, name = bind["target"].rstrip("/").rpartition("/")
        above = paths.make_directories(root, parent) if parent else os.dup(root)
        tree.remove(above, name, missing_ok=True)
        os.symlink(bind["source"][0], name, dir_fd=above)
        os.close(above)
    shown = [each["target"].rstrip("/") for each in (*plan["overlays"], *plan["binds"])]
    places = sorted({*shown, "/testbed"}, key=len, reverse=True)
    known = b"|".join(re.escape(os.fsencode(path)) for path in places)
    pattern, prefix = re.compile(rb"(?<![\w./-])(?=(?:%s)(?![\w.-]))" % known), os.fsencode(place)
    for overlay in plan["overlays"]:
        _relocate(os.path.realpath(place + overlay["target"]), lambda text: pattern.sub(lambda _: prefix, text))
        _make_relative(place, os.path.realpath(place + overlay["target"]), places)
    return root


def _copy_root(origin: int, directory: str) -> int:
    """Likewise, a copy of another sandbox's or snapshot's."""
    place, old = f"{directory}/root", os.readlink(f"/proc/self/fd/{origin}")
    os.mkdir(place)
    source, root = paths.open_in_root(origin, ".", _DIRECTORY), os.open(place, _DIRECTORY)
    tree.copy(source, root, owners=False)
    os.close(source)
    os.close(origin)
    _relocate(place, lambda text: text.replace(os.fsencode(old), os.fsencode(place)))
    return root


def _relocate(top: str, change: Callable[[bytes], bytes]) -> None:
    """Change the paths in what cannot do without: the first lines of programs, and the files above."""
    for directory, _, files in os.walk(top):
        for name in files:
            is_text = _PATH_FILES.fullmatch(name) is not None
            if not is_text and not directory.endswith("/bin"):
                continue
            path = f"{directory}/{name}"
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_TEXT:
                    continue
                with open(path, "rb") as file:
                    old = file.read()
                if b"\0" in old if is_text else not old.startswith(b"#!"):
                    continue
                head, tail = (old, b"") if is_text else (old[:512], old[512:])  # some begin with sh, to exec a long one
                if (new := change(head) + tail) != old:
                    os.chmod(path, 0o600)
                    with open(path, "wb") as file:
                        file.write(new)
                    os.chmod(path, stat.S_IMODE(status.st_mode))


def _make_relative(root: str, top: str, places: Iterable[str]) -> None:
    """Links that name a place inside hold where it is, from within and for the file interface alike."""
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = f"{directory}/{name}"
            if os.path.islink(path):
                target = os.path.normpath(os.readlink(path))
                if any(f"{target}/".startswith(f"{place}/") for place in places):
                    os.unlink(path)
                    os.symlink(os.path.relpath(root + target, directory), path)


def remove(directory: str) -> None:
    """With all below it, however deep and whatever the modes; nothing runs there any more."""
    try:
        top = os.open(directory, _DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    count = 0
    while names := os.listdir(top):
        for name in names:
            if _unlink(name, top):
                continue
            inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            for below in os.listdir(inner):
                if not _unlink(below, inner):  # brought up here: so no path grows long
                    count += 1
                    os.rename(below, f"removed-{os.getpid()}-{count}", src_dir_fd=inner, dst_dir_fd=top)
            os.close(inner)
            os.rmdir(name, dir_fd=top)
    os.close(top)
    os.rmdir(directory)


def _unlink(name: str, parent: int) -> bool:
    """Else it is a directory, and can be entered now."""
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        os.chmod(name, 0o700, dir_fd=parent)
        return False
    return True


def remove_of(is_wanted: Callable[[str], object], scratch: str) -> None:
    """Private directories of this user whose names are wanted."""
    for name in os.listdir(scratch):
        path = f"{scratch}/{name}"
        with contextlib.suppress(OSError):
            if is_wanted(name) and os.lstat(path).st_uid == os.geteuid():
                remove(path)


# The sandbox's first process.


def _serve(
    control: socket.socket,
    plan: wire.Message,
    directory: str,
    root: int,
    groups: dict[str, tuple[str, int]],
    filters: list[bytes],
    keeper: int,
) -> None:
    try:
        syscalls.end_with_parent()
        if os.getppid() != keeper:
            return
        syscalls.adopt_orphans()
        watchdog.lower_limit(resource.RLIMIT_NOFILE, plan["open_files"])
        watchdog.lower_limit(resource.RLIMIT_FSIZE, plan["disk_mib"] << 20)
        watch = watchdog.start(plan, groups, counts_processes=False, has_one_id=False)
        accesses = _accesses(plan, directory)
        domain = _Domain(landlock.make(accesses, network=plan["network"] == "host"), filters)
        controls = os.open(f"{directory}/control", _DIRECTORY)
        shown = {"root": root, "layers": os.dup(root), "control": controls}
        if watch:
            shown["hits"] = watch.descriptor
        born = os.fstat(controls).st_ctime_ns
        message = {"descriptors": list(shown), "born": born, "copies": True, "directory": directory, "groups": groups}
        wire.send(control, message, [os.pidfd_open(keeper), *shown.values()])
        _close_all_but(control.fileno(), domain.listener)
        own = [path for path, wanted in accesses.items() if wanted == landlock.ALL]
        _thread.start_new_thread(attributes.serve, (domain.listener, [os.path.realpath(path) for path in own]))
    except Exception as error:
        first.report(control, str(error) or type(error).__name__, groups)
        return
    _Init(control, plan, watch, directory, domain).serve()


def _accesses(plan: wire.Message, directory: str) -> dict[str, int]:
    found = dict.fromkeys(_READABLE, landlock.READ_ONLY)
    found |= {f"/etc/{name}": landlock.READ_ONLY for name in _ETC}
    if plan["network"] == "host":
        found["/etc/resolv.conf"] = landlock.READ_ONLY
    found |= {f"/dev/{name}": landlock.DEVICE for name in _DEVICES}
    found |= {f"{directory}/{name}": landlock.READ_ONLY for name in ("control", "gitconfig")}
    for bind in plan["binds"]:
        found[bind["source"][0]] = landlock.ALL if bind["writable"] else landlock.READ_ONLY
    return {**found, f"{directory}/root": landlock.ALL}


class _Domain:
    """A thread that is confined, as all is that it forks: in one domain, whose members may signal and trace each other.

    Credentials are a thread's: the process, as signals see it, is its first thread, which stays outside.
    """

    def __init__(self, ruleset: int, filters: list[bytes]) -> None:
        self.listener = -1
        self._work: Callable[[], int] = lambda: self._enter(ruleset, filters)
        self._result: int | BaseException = 0
        self._asked, self._answered = _thread.allocate_lock(), _thread.allocate_lock()
        self._answered.acquire()
        _thread.start_new_thread(self._run, ())
        self._await()

    def call(self, work: Callable[[], int]) -> int:
        self._work = work
        self._asked.release()
        return self._await()

    def _await(self) -> int:
        self._answered.acquire()
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            try:
                self._result = self._work()
            except BaseException as error:
                self._result = error
            self._answered.release()

    def _enter(self, ruleset: int, filters: list[bytes]) -> int:
        program = seccomp.build_listener_filter(syscalls.MACHINE, truncates=syscalls.landlock_version() >= 3)
        self.listener = syscalls.install_seccomp_listener(program)
        syscalls.enter_ruleset(ruleset)
        os.close(ruleset)
        with contextlib.suppress(PermissionError):  # needs one itself; no new privileges is enough
            syscalls.drop_from_bounding_set(frozenset())
        syscalls.set_capabilities(frozenset())
        for program in filters:
            syscalls.install_seccomp_filter(program)
        return 0


class _Init(init.Init):
    """Not pid 1, but its descendants cannot leave it; and all that is in the private directory is named as if in /."""

    terminals = "/dev/ptmx"

    def __init__(
        self,
        control: socket.socket,
        plan: wire.Message,
        watch: watchdog.Watchdog | None,
        directory: str,
        domain: _Domain,
    ) -> None:
        super().__init__(control, {}, plan["wall_seconds"], watch)
        self._domain, self._directory, self._root = domain, directory, f"{directory}/root"
        self._tops = {f"/{name}" for name in os.listdir(self._root)}
        self._usual = {"TMPDIR": "/tmp", "GIT_CONFIG_SYSTEM": f"{directory}/gitconfig"}

    def _adapt(self, message: dict[str, Any]) -> None:
        environment = {**self._usual, **message["env"]}
        message["env"] = {name: ":".join(map(self._place_of, value.split(":"))) for name, value in environment.items()}
        message["cwd"] = self._place_of(message["cwd"])
        if "argv" in message:
            message["argv"][0] = self._place_of(message["argv"][0])

    def _place_of(self, path: str) -> str:
        if path == "/":
            return self._root
        top = "/".join(path.split("/", 2)[:2])
        is_inside = top in self._tops and not path.startswith(f"{self._directory}/")
        return self._root + path if is_inside else path

    def _fork(self, fork: Callable[[], int], evict: bool) -> int:
        pid = super()._fork(lambda: self._domain.call(fork), evict)
        with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write("500")
        return pid

    def _spawn_shell(self, message: dict[str, Any], slave: int, script: int) -> int:
        return init.fork_to(lambda: _become_shell(message, slave, script))


def _become_shell(message: dict[str, Any], slave: int, script: int) -> None:
    """On a terminal that it may not open itself: of /dev/pts it sees nothing."""
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    syscalls.let_anybody_trace()
    init.become(init.SHELL, message, {0: slave, 1: slave, 2: slave, 9: script}, strict=False)

"""What this machine can do for sandboxes: each mechanism is tried for real, in child processes that are thrown away."""

# ruff: noqa: PTH104

import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minisandbox_ray.errors import SandboxError

from .sandbox import Sandbox
from .spec import SandboxSpec
from .starter import cgroups, identity, seccomp, syscalls

_SECONDS = 20  # for one attempt
_NAMESPACES = {
    # name: (flag, what would be lost)
    "mount namespace": (os.CLONE_NEWNS, "the host's files would be in sight"),
    "pid namespace": (os.CLONE_NEWPID, "the host's processes would be in sight, and what is started would be left"),
    "ipc namespace": (os.CLONE_NEWIPC, "System V objects would be shared with the host"),
    "uts namespace": (os.CLONE_NEWUTS, "the host's name would be in sight"),
    "network namespace": (os.CLONE_NEWNET, "the host's network would be in reach"),
    "control group namespace": (os.CLONE_NEWCGROUP, "the host's control groups would be in sight"),
}


class _Useless(Exception):
    """It can be done here, and has no effect."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One of the things that sandboxes are made of."""

    name: str
    available: bool
    """Whether it worked a moment ago."""
    detail: str
    """Which kind there is; where it is not available, why: the kernel's reason."""
    chosen: bool
    """Whether sandboxes on this machine use it."""
    strict: bool
    """Whether strict isolation needs it."""
    lost: str
    """What there is not without it."""
    remedy: str
    """What an administrator would run, or do, to have it."""


def probe(directory: Path) -> list[Mechanism]:
    """Try everything; `directory` is where environments are to lie: it matters what its file system can do.

    Takes about a second. Never raises for what a machine lacks.
    """
    scratch = _scratch(directory)
    try:
        return list(_probe(scratch))
    finally:
        _attempt(lambda: _remove(scratch))


def strict_failure(found: list[Mechanism]) -> Mechanism | None:
    """The first of those that strict isolation needs and this machine lacks; None if it works."""
    return next((each for each in found if each.strict and not each.available), None)


def _probe(scratch: Path) -> Iterator[Mechanism]:
    is_root = identity.is_privileged()
    kinds, why = _attempt(partial(os.unshare, os.CLONE_NEWUSER))
    if kinds is not None:
        kinds, why = _attempt(lambda: " ".join(identity.find()))
    yield Mechanism(
        "user namespace",
        kinds is not None,
        why or ("of root" if is_root else "of an ordinary user"),
        chosen=True,
        strict=True,
        lost="root inside would be root outside" if is_root else "an ordinary user can have none of the below",
        remedy=_remedy_for_user_namespaces(),
    )
    shifted = "shifted" in (kinds or "")
    mapped, why = _attempt(lambda: _overlay(scratch, shifted=True)) if shifted else (None, "")
    yield Mechanism(
        "ids that nobody has",
        mapped is not None,
        why
        or ("id-mapped mounts" if shifted else "only root can give them" if not is_root else "not in this namespace"),
        chosen=mapped is not None,
        strict=False,
        lost="root inside has root's number, without its privileges" if is_root else "root inside has your number",
        remedy="run as root, environments on ext4, xfs, btrfs or tmpfs; Linux 5.19",
    )
    yield Mechanism(
        "several ids inside",
        kinds is not None and is_root,
        "" if is_root else _subordinate_ids(),
        chosen=is_root,
        strict=False,
        lost="chown and su to others than root fail inside",
        remedy="run as root: ranges of newuidmap are not used",
    )
    for name, (flag, lost) in _NAMESPACES.items():
        result, why = _attempt(partial(_private, flag))
        yield Mechanism(name, result is not None, why, True, True, lost, _remedy_for_namespaces())
    for name, work, lost in (
        ("private root", lambda: _pivot(scratch), "the host's files would be in sight"),
        ("proc", lambda: _proc(scratch), "the host's processes would be in sight"),
        ("system call filter", _filter, "all of the kernel would be in reach"),
        ("disk limit", lambda: _full_disk(scratch), "what is written would not be bounded"),
    ):
        result, why = _attempt(work)
        remedy = _remedy_for_namespaces() if name != "system call filter" else "a kernel with CONFIG_SECCOMP_FILTER"
        yield Mechanism(name, result is not None, why, True, True, lost, remedy)
    yield from _overlays(scratch)
    yield from _groups()
    yield from _whole()
    version, why = _attempt(lambda: f"version {syscalls.landlock_version()}")
    lost = "nothing: no mechanism here builds on it"
    yield Mechanism("landlock", version is not None, version or why, False, False, lost, "a kernel with it in its lsm=")


def _overlays(scratch: Path) -> Iterator[Mechanism]:
    is_root = identity.is_privileged()
    steps = {
        "overlay": ("", True, "no copy-on-write view: environments would have to be copied for each sandbox"),
        "rm -r of a lower directory": ("remove", True, "files of the environment could not be removed"),
        "mv of a lower directory": ("mv", True, "directories of the environment could not be moved"),
        "rename(2) of a lower directory": ("rename", False, "rename(2) gives EXDEV, after which mv copies"),
    }
    for name, (step, strict, lost) in steps.items():
        result, why = _attempt(partial(_overlay, scratch, step))
        detail = why or ("an upper layer in memory" + ("" if is_root else ", userxattr") if not step else "")
        remedy = "modprobe overlay; Linux 5.11 for ordinary users"
        if step:
            remedy = "Linux 6.6, whose tmpfs has user xattrs; or run as root" if strict else "run as root"
        yield Mechanism(name, result is not None, detail, result is not None, strict, lost, remedy)
        if name == "overlay" and result is None:
            break  # and so with all that is done in one
    if not is_root:
        result, why = _attempt(lambda: _user_attributes(scratch))
        lost = "an ordinary user's overlay keeps its notes in them: rm -r and mv of lower directories"
        yield Mechanism("user xattrs on tmpfs", result is not None, why, True, False, lost, "Linux 6.6")


def _groups() -> Iterator[Mechanism]:
    name = cgroups.new_name(cgroups.owner_key(os.getpid()))
    result, _ = _attempt(lambda: " ".join(f"{key}={version}" for key, (_, version) in _enter_groups(name).items()))
    made = dict(pair.split("=") for pair in (result or "").split())
    for directory in cgroups.find_groups(lambda found: found == name):
        cgroups.remove(directory, patience=2)
    lost = {
        "memory": "a look at all processes now and then kills the biggest: bursts overshoot",
        "pids": "a limit per user, and a look now and then",
        "cpu": "no limit on processor time, and no equal shares",
    }
    for controller in cgroups.CONTROLLERS:
        available = controller in made
        place, why, remedy = _why_no_group(controller)
        yield Mechanism(
            f"{controller} control group",
            available,
            f"version {made[controller]}, below {place}" if available else why,
            chosen=available,
            strict=False,
            lost=lost[controller],
            remedy=remedy,
        )
    missing = [controller for controller in ("memory", "pids") if controller not in made]
    _, why = _attempt(_process_limit)
    detail = "for " + " and ".join(missing) if missing else "not needed"
    detail += (
        f"; process limit per user namespace: {why or 'works'}" if missing and not identity.is_privileged() else ""
    )
    yield Mechanism("watchdog", True, detail, bool(missing), False, "", "")


def _whole() -> Iterator[Mechanism]:
    """A sandbox as it is used."""
    is_readable, has_git, why = False, False, ""
    try:
        with Sandbox(SandboxSpec()) as sandbox:
            result = sandbox.run("(exit 7)", timeout=30)
            if result.exit_code != 7:
                why = f"`(exit 7)` gave {result.exit_code}: {result.output.strip()[:200]}"
            shell = sandbox._sessions["main"]._shell
            is_readable = bool(shell and shell.state and shell.state.is_readable)
            has_git = sandbox.execute(["git", "--version"]).exit_code == 0
    except SandboxError as error:
        why = str(error)
    yield Mechanism("a whole sandbox", not why, why, True, True, "everything", "see the first line above that says no")
    if why:
        return
    yield Mechanism(
        "the shell's memory",
        is_readable,
        "" if is_readable else "/bin/bash tells no symbols",
        chosen=is_readable,
        strict=False,
        lost="each step asks the shell for its exit code, and exported variables are lost with it",
        remedy="install the distribution's own bash",
    )
    yield Mechanism(
        "git inside",
        has_git,
        "" if has_git else "no git in /usr",
        has_git,
        False,
        "no diffs, no grading",
        "install git",
    )


def _scratch(directory: Path) -> Path:
    for parent in (directory, *directory.parents):
        if os.access(parent, os.W_OK):
            with contextlib.suppress(OSError):
                made = Path(tempfile.mkdtemp(prefix=".doctor-", dir=parent))
                made.chmod(0o755)
                return made
    return Path(tempfile.mkdtemp(prefix="doctor-"))


def _remove(scratch: Path) -> str:
    shutil.rmtree(scratch)
    return ""


def _attempt(work: Callable[[], str | None]) -> tuple[str | None, str]:
    """Do it in a child; -> (what it says, "") or (None, why it failed)."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        answer = "-it ended without a word"
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_SECONDS)
            answer = f"+{work() or ''}"
        except OSError as error:
            answer = f"-{os.strerror(error.errno) if error.errno else error}"
        except _Useless as error:
            answer = f"-{error}"
        except Exception as error:
            answer = f"-{type(error).__name__}: {error}"
        finally:
            os.write(writer, answer.encode(errors="replace")[:4096])
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:  # noqa: PTH123
        answer = file.read().decode()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    if not answer:
        return None, f"it was killed, or took more than {_SECONDS} s"
    text = " ".join(answer[1:].split())
    return (text, "") if answer[0] == "+" else (None, text)


def _private(flags: int = 0) -> str:
    """Namespaces of its own, in which it may mount; raises OSError."""
    if not identity.is_privileged():
        identity.find()
    os.unshare(os.CLONE_NEWNS | flags)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    return ""


def _memory(scratch: Path, options: str = "") -> Path:
    """Mount a tmpfs."""
    place = scratch / "memory"
    place.mkdir(exist_ok=True)
    syscalls.mount("tmpfs", str(place), "tmpfs", 0, f"mode=755{options}")
    return place


def _pivot(scratch: Path) -> str:
    _private()
    place = _memory(scratch)
    (place / "old").mkdir()
    syscalls.pivot_root(str(place), str(place / "old"))
    os.chdir("/")
    syscalls.unmount("/old")
    if Path("/usr").exists():
        raise _Useless("the host's files are still in sight")
    return ""


def _proc(scratch: Path) -> str:
    _private(os.CLONE_NEWPID)
    place = _memory(scratch)
    result, why = _attempt(lambda: syscalls.mount("proc", str(place), "proc"))
    if result is None:
        raise _Useless(why)
    return ""


def _filter() -> str:
    syscalls.set_no_new_privileges()
    syscalls.install_seccomp_filter(seccomp.build_filter(syscalls.MACHINE))
    try:
        os.unshare(os.CLONE_NEWUSER)
    except PermissionError:
        return ""
    raise _Useless("a filter was installed, but it filters nothing")


def _full_disk(scratch: Path) -> str:
    _private()
    place = _memory(scratch, ",size=64k")
    try:
        (place / "file").write_bytes(bytes(1 << 20))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return ""
        raise
    raise _Useless("a tmpfs took more than its size")


def _user_attributes(scratch: Path) -> str:
    _private()
    place = _memory(scratch)
    os.setxattr(place, "user.test", b"1")
    return ""


def _overlay(scratch: Path, step: str = "", *, shifted: bool = False) -> str:
    """Mount one over a directory of the scratch file system and change it."""
    lower = scratch / "lower"
    for name in ("removed", "moved"):
        (lower / name / "deep").mkdir(parents=True, exist_ok=True)
        (lower / name / "deep" / "file").touch()
    is_root = identity.is_privileged()
    namespace = identity.find()["shifted"].namespace if shifted else None
    _private()
    place = _memory(scratch)
    for name in ("upper", "work", "merged", "lower"):
        (place / name).mkdir()
    if shifted:
        mount = syscalls.clone_mount(os.open(lower, os.O_PATH), recursive=False)
        syscalls.set_mount_attributes(mount, syscalls.ATTR_RDONLY, recursive=False, user_namespace=namespace)
        lower = place / "lower"
        syscalls.attach_mount(mount, os.open(lower, os.O_PATH))
    how = "redirect_dir=on,metacopy=off" if is_root else "userxattr"
    options = f"lowerdir={lower},upperdir={place}/upper,workdir={place}/work,{how}"
    merged = place / "merged"
    syscalls.mount("overlay", str(merged), "overlay", 0, options)
    (merged / "removed" / "deep" / "file").write_text("changed")
    if step == "remove":
        shutil.rmtree(merged / "removed")
        (merged / "removed").mkdir()
        if os.listdir(merged / "removed"):  # noqa: PTH208
            raise _Useless("what was removed comes back")
    elif step == "mv":
        done = subprocess.run(
            ["mv", merged / "moved", merged / "elsewhere"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise _Useless(done.stderr.strip().splitlines()[-1])
    elif step == "rename":
        os.rename(merged / "moved", merged / "elsewhere")
    return ""


def _enter_groups(name: str) -> dict[str, tuple[str, int]]:
    return cgroups.make(cgroups.hierarchies(), name)


def _why_no_group(controller: str) -> tuple[str, str, str]:
    """(where its groups would be made, why they cannot be, what would help)"""
    place, why = "", "no hierarchy with it is mounted here"
    remedy = "mount the control groups; in a container: --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw"
    for mount in cgroups.read_mounts():
        own = mount.target / (mount.own or "")
        try:
            has = mount.controllers if mount.version == 1 else (mount.target / "cgroup.controllers").read_text().split()
            if controller not in has:
                continue
            places = [at for each in cgroups.hierarchies([mount]) for at, has in each.candidates if controller in has]
            if places:
                return str(places[0]), f"{places[0]} takes no process of ours", _delegation(mount)
            if os.statvfs(mount.target).f_flag & os.ST_RDONLY:
                return place, f"{mount.target} is mounted read-only", f"mount -o remount,rw {mount.target}"
            if mount.version == 1 or not os.access(own, os.W_OK):
                why, remedy = f"{own} and what is above it is not ours to write", _delegation(mount)
                continue
            (own / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            why, remedy = f"{own} does not delegate: {os.strerror(error.errno or 0)}", _delegation(mount)
            if error.errno == errno.EBUSY:  # the rule of no internal processes: the kernel's cgroup-v2.rst
                why = f"{own} holds processes itself, and so cannot have groups below it"
                remedy = (
                    f"mkdir {own}/all; for p in $(cat {own}/cgroup.procs); do echo $p > {own}/all/cgroup.procs; done"
                )
    return place, why, remedy


def _delegation(mount: cgroups.Mount) -> str:
    if mount.version == 2:
        return "start it in a delegated group: systemd-run --user --scope -p 'Delegate=cpu memory pids' COMMAND"
    at = mount.target / "users"
    return f"mkdir -p {at}; chown -R {os.getuid()} {at}; echo PID_OF_YOUR_SHELL > {at}/cgroup.procs"


def _process_limit() -> str:
    """RLIMIT_NPROC in a user namespace of its own counts that one's processes alone."""
    identity.find()
    resource.setrlimit(resource.RLIMIT_NPROC, (3, 3))
    children = []
    try:
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    except BlockingIOError:
        if children:
            return ""
        raise _Useless("other processes of this user count as well") from None
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
    raise _Useless("not enforced")


def _subordinate_ids() -> str:
    programs = "newuidmap is installed" if shutil.which("newuidmap") else "no newuidmap"
    try:
        names = [line.split(":")[0] for line in Path("/etc/subuid").read_text().splitlines()]
        mine = str(os.getuid()) in names or os.environ.get("USER") in names
    except OSError:
        mine = False
    return f"one id only; {programs}, /etc/subuid {'has' if mine else 'has not'} a range for this user"


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


def _is_filtered() -> bool:
    """Whether this process is itself in somebody's system call filter, as in a container."""
    return "\nSeccomp:\t2" in Path("/proc/self/status").read_text()


def _remedy_for_user_namespaces() -> str:
    if _setting("user/max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=100000"
    if os.geteuid() and _setting("kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if os.geteuid() and _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    return _remedy_for_namespaces()


def _remedy_for_namespaces() -> str:
    if _is_filtered():
        more = " --cap-add SYS_ADMIN" if os.geteuid() == 0 else ""
        options = " ".join(f"--security-opt {name}=unconfined" for name in ("seccomp", "apparmor", "systempaths"))
        return f"start the container with {options}{more}"
    if os.geteuid() == 0:
        return "start the container with --cap-add SYS_ADMIN, or --privileged"
    return "a kernel with CONFIG_USER_NS and these namespaces; see the first line above that says no"

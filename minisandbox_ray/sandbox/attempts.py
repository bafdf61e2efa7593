"""Attempts at what sandboxes need, each for real and in a child process that is thrown away with what it made."""

import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from .starter import identity, seccomp, syscalls

_SECONDS = 20  # for one attempt


class UselessError(Exception):
    """It can be done here, and has no effect."""


def attempt(work: Callable[[], str | None]) -> tuple[str | None, str]:
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
        except UselessError as error:
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


def private_namespaces(flags: int = 0) -> str:
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


def private_root(scratch: Path) -> str:
    private_namespaces()
    place = _memory(scratch)
    (place / "old").mkdir()
    syscalls.pivot_root(str(place), str(place / "old"))
    os.chdir("/")
    syscalls.unmount("/old")
    if Path("/usr").exists():
        raise UselessError("the host's files are still in sight")
    return ""


def proc(scratch: Path) -> str:
    private_namespaces(os.CLONE_NEWPID)
    place = _memory(scratch)
    result, why = attempt(lambda: syscalls.mount("proc", str(place), "proc"))
    if result is None:
        raise UselessError(why)
    return ""


def system_call_filter() -> str:
    syscalls.set_no_new_privileges()
    syscalls.install_seccomp_filter(seccomp.build_filter(syscalls.MACHINE))
    try:
        os.unshare(os.CLONE_NEWUSER)
    except PermissionError:
        return ""
    raise UselessError("a filter was installed, but it filters nothing")


def disk_limit(scratch: Path) -> str:
    private_namespaces()
    place = _memory(scratch, ",size=64k")
    try:
        (place / "file").write_bytes(bytes(1 << 20))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return ""
        raise
    raise UselessError("a tmpfs took more than its size")


def user_attributes(scratch: Path) -> str:
    private_namespaces()
    place = _memory(scratch)
    os.setxattr(place, "user.test", b"1")
    return ""


def overlay(scratch: Path, step: str = "", *, shifted: bool = False) -> str:
    """Mount one over a directory of the scratch file system and change it."""
    lower = scratch / "lower"
    for name in ("removed", "moved"):
        (lower / name / "deep").mkdir(parents=True, exist_ok=True)
        (lower / name / "deep" / "file").touch()
    is_root = identity.is_privileged()
    namespace = identity.find()["shifted"].namespace if shifted else None
    private_namespaces()
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
            raise UselessError("what was removed comes back")
    elif step == "mv":
        done = subprocess.run(
            ["mv", merged / "moved", merged / "elsewhere"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UselessError(done.stderr.strip().splitlines()[-1])
    elif step == "rename":
        (merged / "moved").rename(merged / "elsewhere")
    return ""


def process_limit() -> str:
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
        raise UselessError("other processes of this user count as well") from None
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
    raise UselessError("not enforced")

"""What this machine can do for sandboxes: each mechanism is tried for real, in child processes that are thrown away."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minisandbox_ray.errors import SandboxError

from . import attempts, remedies
from .sandbox import Sandbox
from .spec import Overlay, SandboxSpec
from .starter import cgroups, confined, identity, syscalls

_NAMESPACES = {
    # name: (flag, what would be lost)
    "mount namespace": (os.CLONE_NEWNS, "the host's files would be in sight"),
    "pid namespace": (os.CLONE_NEWPID, "the host's processes would be in sight, and what is started would be left"),
    "ipc namespace": (os.CLONE_NEWIPC, "System V objects would be shared with the host"),
    "uts namespace": (os.CLONE_NEWUTS, "the host's name would be in sight"),
    "network namespace": (os.CLONE_NEWNET, "the host's network would be in reach"),
    "control group namespace": (os.CLONE_NEWCGROUP, "the host's control groups would be in sight"),
}


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
    """Whether the strict mode needs it."""
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
        attempts.attempt(lambda: _remove(scratch))


def strict_failure(found: list[Mechanism]) -> Mechanism | None:
    """The first of those that the strict mode needs and this machine lacks; None if it works."""
    return next((each for each in found if each.strict and not each.available), None)


def _probe(scratch: Path) -> Iterator[Mechanism]:
    is_root = identity.is_privileged()
    kinds, why = attempts.attempt(partial(os.unshare, os.CLONE_NEWUSER))
    if kinds is not None:
        kinds, why = attempts.attempt(lambda: " ".join(identity.find()))
    yield Mechanism(
        "user namespace",
        kinds is not None,
        why or ("of root" if is_root else "of an ordinary user"),
        chosen=True,
        strict=True,
        lost="root inside would be root outside" if is_root else "an ordinary user can have none of the below",
        remedy=remedies.for_user_namespaces(),
    )
    shifted = "shifted" in (kinds or "")
    mapped, why = attempts.attempt(lambda: attempts.overlay(scratch, shifted=True)) if shifted else (None, "")
    yield Mechanism(
        "ids that nobody has",
        mapped is not None,
        why
        or ("id-mapped mounts" if shifted else "only root can give them" if not is_root else "not in this namespace"),
        chosen=mapped is not None,
        strict=False,
        lost="root inside has root's number, without its privileges" if is_root else "root inside has your number",
        remedy="run as root, with user namespaces, environments on ext4, xfs, btrfs or tmpfs; Linux 5.19",
    )
    yield Mechanism(
        "several ids inside",
        is_root,
        "" if is_root else remedies.subordinate_ids(),
        chosen=is_root,
        strict=False,
        lost="chown and su to others than root fail inside",
        remedy="run as root: ranges of newuidmap are not used",
    )
    for name, (flag, lost) in _NAMESPACES.items():
        result, why = attempts.attempt(partial(attempts.private_namespaces, flag))
        yield Mechanism(name, result is not None, why, True, True, lost, remedies.for_namespaces())
    for name, work, lost in (
        ("private root", lambda: attempts.private_root(scratch), "the host's files would be in sight"),
        ("proc", lambda: attempts.proc(scratch), "the host's processes would be in sight"),
        ("system call filter", attempts.system_call_filter, "all of the kernel would be in reach"),
        ("disk limit", lambda: attempts.disk_limit(scratch), "what is written would not be bounded"),
    ):
        result, why = attempts.attempt(work)
        remedy = remedies.for_namespaces() if name != "system call filter" else "a kernel with CONFIG_SECCOMP_FILTER"
        yield Mechanism(name, result is not None, why, True, True, lost, remedy)
    yield from _overlays(scratch)
    yield from _groups()
    whole = list(_whole(scratch))
    yield from whole
    is_confined = any("by landlock" in each.detail for each in whole)
    version, why = attempts.attempt(lambda: f"version {syscalls.landlock_version()}")
    lost = "" if whole[0].available else "where there are no namespaces, nothing would protect the host: no sandbox"
    remedy = "a kernel with it in its lsm="
    yield Mechanism("landlock", version is not None, version or why, is_confined, False, lost, remedy)


def _overlays(scratch: Path) -> Iterator[Mechanism]:
    is_root = identity.is_privileged()
    steps = {
        "overlay": ("", "no copy-on-write view"),
        "rm -r of a lower directory": ("remove", "files of the environment could not be removed"),
        "mv of a lower directory": ("mv", "directories of the environment could not be moved"),
        "rename(2) of a lower directory": ("rename", "rename(2) gives EXDEV, after which mv copies"),
    }
    missing = []
    for name, (step, lost) in steps.items():
        result, why = attempts.attempt(partial(attempts.overlay, scratch, step))
        detail = why or ("an upper layer in memory" + ("" if is_root else ", userxattr") if not step else "")
        remedy = "modprobe overlay; Linux 5.11 for ordinary users"
        if step:
            remedy = "run as root" if step == "rename" else "Linux 6.6, whose tmpfs has user xattrs; or run as root"
        yield Mechanism(name, result is not None, detail, result is not None, False, lost, remedy)
        if result is None and step != "rename":
            missing.append(name)
        if "overlay" in missing:
            break  # and so with all that is done in one
    detail = f"no {missing[0]}: each start copies the environment, into memory" if missing else "not needed"
    yield Mechanism("copies of directories", True, detail, bool(missing), False, "", "")
    if not is_root:
        result, why = attempts.attempt(lambda: attempts.user_attributes(scratch))
        lost = "an ordinary user's overlay keeps its notes in them: rm -r and mv of lower directories"
        yield Mechanism("user xattrs on tmpfs", result is not None, why, True, False, lost, "Linux 6.6")


def _groups() -> Iterator[Mechanism]:
    name = cgroups.new_name(cgroups.owner_key(os.getpid()))
    result, _ = attempts.attempt(lambda: _enter_groups(name))
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
        place, why, remedy = remedies.why_no_group(controller)
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
    _, why = attempts.attempt(attempts.process_limit)
    detail = "for " + " and ".join(missing) if missing else "not needed"
    if missing and not identity.is_privileged():
        detail += f"; process limit per user namespace: {why or 'works'}"
    yield Mechanism("watchdog", True, detail, bool(missing), False, "", "")


def _whole(scratch: Path) -> Iterator[Mechanism]:
    """A sandbox as it is used."""
    is_readable, has_git, why = False, False, ""
    try:
        with Sandbox(SandboxSpec(overlays=[Overlay(target="/testbed", lower=[scratch / "lower"])])) as sandbox:
            result = sandbox.run("touch new && rm -r removed && (exit 7)", timeout=30)
            if result.exit_code != 7:
                why = f"a command gave {result.exit_code} instead of 7: {result.output.strip()[:200]}"
            shell = sandbox._sessions["main"]._shell
            is_readable = bool(shell and shell.state and shell.state.is_readable)
            has_git = sandbox.execute(["git", "--version"]).exit_code == 0
    except SandboxError as error:
        why = str(error)
    yield Mechanism("a whole sandbox", not why, why, True, True, "everything", "see the first line above that says no")
    if why:
        works, detail = _best_effort()
        remedy = "see the lines above that say no"
        lost = "there is no way to run anything here"
        yield Mechanism("a best-effort sandbox", works, detail, works, False, lost, remedy)
        return
    why, remedy = remedies.why_no_shell_memory()
    yield Mechanism(
        "the shell's memory",
        is_readable,
        "" if is_readable else why,
        chosen=is_readable,
        strict=False,
        lost="each step asks the shell for its exit code, and exported variables are lost with it",
        remedy=remedy,
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


def _best_effort() -> tuple[bool, str]:
    """(whether there is a sandbox with less isolation at least, which; or why not)"""
    try:
        with Sandbox(SandboxSpec(isolation="best-effort")) as sandbox:
            result = sandbox.run("(exit 7)", timeout=30)
            detail = f"degraded only, by landlock: {confined.LOST}" if sandbox.is_confined else ""
    except SandboxError as error:
        return False, str(error)
    if result.exit_code != 7:
        return False, f"a command gave {result.exit_code} instead of 7: {result.output[:200]}"
    return True, detail


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


def _enter_groups(name: str) -> str:
    """What could be made, as CONTROLLER=VERSION, …"""
    made = cgroups.make(cgroups.hierarchies(), name)
    return " ".join(f"{controller}={version}" for controller, (_, version) in made.items())

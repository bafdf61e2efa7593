"""The root of a sandbox, an empty tmpfs of its own mount namespace; the host's file system gets no directory.

That tmpfs holds all that can be written (its size is the disk limit): the root itself and, out of sight, the upper
layers of the overlays. All of it vanishes with the namespace.
"""

# ruff: noqa: PTH101, PTH106, PTH102, PTH103, PTH112, PTH114, PTH115, PTH120, PTH123, PTH208, PTH211

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import paths, sources, tree
from . import syscalls as sys
from .etc import ETC_DIRECTORIES, common_files, etc_files
from .identity import Identity, moved

CONTROL_DIRECTORY = "/dev/minisandbox"  # nobody can rename or remove what is in there, as in /run
_NOTHING_SPECIAL = sys.MS_NOSUID | sys.MS_NODEV
_READ_ONLY = sys.ATTR_RDONLY | sys.ATTR_NOSUID | sys.ATTR_NODEV
_SYSTEM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PLAIN_DIRECTORIES = ("etc", "home", "mnt", "opt", "root", "run", "srv", "sys", "testbed", "var", "var/lib", "var/log")
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_PROC_READ_ONLY = ("sys", "irq", "bus", "fs")
_PROC_MASKED = ("kcore", "keys", "key-users", "kmsg", "kpagecount", "kpageflags", "sched_debug", "sysrq-trigger")
_PROC_MASKED_MORE = ("timer_list", "latency_stats", "cmdline", "config.gz", "interrupts")
_PROC_HIDDEN = ("acpi", "asound", "scsi")
_CONTROL_MIB, _SHARED_MEMORY_MIB = 64, 64
_TTY_GROUP = 5
_TERMINALS = 64  # all sandboxes together have what kernel.pty.max leaves, 3072 by default
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILES_PER_MIB = 256  # of the disk limit; an empty file costs about a KiB of kernel memory


def prepare(identity: Identity, private_network: bool) -> None:
    """Make and enter the part of a root that no plan changes. Raises OSError.

    What nobody inside may see lies in the tmpfs below /proc, where another mount hides it for good.
    """
    sys.mount(None, "/", None, sys.MS_REC | sys.MS_PRIVATE)
    sys.mount("tmpfs", "/tmp", "tmpfs", _NOTHING_SPECIAL, "mode=755,size=16m,nr_inodes=4096")
    os.mkdir("/tmp/old")
    sys.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    for name in (*_PLAIN_DIRECTORIES, "proc", "proc/layers", "proc/control"):
        os.mkdir(f"/{name}")
    _base(identity)
    _devices(identity)
    _control()
    _hidden["layers"] = os.open("/proc/layers", _DIRECTORY)
    _hidden["control"] = os.open("/proc/control", _DIRECTORY)
    _proc(private_network)
    sys.unmount("/old")
    os.rmdir("/old")


_hidden: dict[str, int] = {}


def complete(
    plan: dict[str, Any], identity: Identity, mounts: list[int], origin: list[int], *, copies: bool
) -> tuple[dict[str, int], int]:
    """Make the prepared root what the plan describes.

    `mounts` are what sources.clone gave for it. With `copies` of host directories in the place of overlays over them.
    `origin` are the descriptors `root` and `layers` of the sandbox whose files it starts with, or none.
    -> (descriptors for the host, the time in nanoseconds before which files are as made here). The descriptors: `root`
    (O_PATH), `control` (directory whose files CONTROL_DIRECTORY shows read-only inside), `layers` (the directories of
    what was written to overlays) and, if there is an overlay on /testbed, its `upper` one. Raises OSError.
    """
    pending = iter(mounts)
    lowers = [[next(pending) for _ in overlay["lower"]] for overlay in plan["overlays"]]
    binds = list(pending)
    inodes = 4096 + plan["disk_mib"] * _FILES_PER_MIB
    sys.mount(None, "/", None, sys.MS_REMOUNT | _NOTHING_SPECIAL, f"size={plan['disk_mib']}m,nr_inodes={inodes}")
    shared = f"size={plan['shared_memory_mib']}m,nr_inodes={plan['shared_memory_mib'] * _FILES_PER_MIB}"
    sys.mount(None, "/dev/shm", None, sys.MS_REMOUNT | _NOTHING_SPECIAL, shared)
    for path, content in etc_files(plan).items():
        _create(f"/etc/{path}", content)
    root, layers = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), _hidden["layers"]
    os.mkdir("now", dir_fd=layers)
    born = os.stat("now", dir_fd=layers).st_ctime_ns
    for number in range(len(lowers)):
        os.mkdir(f"{number}-upper", dir_fd=layers)
    if origin:
        _copy_origin(origin, [root, layers], plan["since"], len(lowers), _moved(origin, identity))
    for number, (overlay, below) in enumerate(zip(plan["overlays"], lowers, strict=True)):
        if copies:
            _copy_view(root, number, overlay["target"], below, origin, plan["disk_mib"], _moved(origin, identity))
        else:
            _overlay(root, number, overlay["target"], below, identity)
    for bind, source in zip(plan["binds"], binds, strict=True):
        _bind(root, source, bind["target"])
    for mount in mounts:
        os.close(mount)
    descriptors = {"root": root, **_hidden}
    for number, overlay in enumerate(plan["overlays"]):
        if overlay["target"] == "/testbed" and not copies:
            descriptors["upper"] = os.open(f"{number}-upper", _DIRECTORY, dir_fd=layers)
    return descriptors, born


def _moved(origin: list[int], identity: Identity) -> Callable[[int], int]:
    """The directory of its layers, which nobody inside can reach, belongs to root inside."""
    return moved(os.fstat(origin[1]).st_uid if origin else identity.root, identity.root)


def _copy_origin(origin: list[int], copies: list[int], since: int, overlays: int, moved: Callable[[int], int]) -> None:
    wanted = [[(".", since), ("dev/shm", 0)], [(f"{number}-upper", 0) for number in range(overlays)]]
    for source, copy, places in zip(origin, copies, wanted, strict=True):
        for place, since_ in places:
            here, there = (paths.open_in_root(root, place, _DIRECTORY) for root in (source, copy))
            tree.copy(here, there, since_, moved=moved)
            os.close(here)
            os.close(there)


def top_level_links() -> dict[str, str]:
    """Links of / without which no program starts: {path: target}."""
    return {f"/{name}": os.readlink(f"/{name}") for name in os.listdir("/") if os.path.islink(f"/{name}")}


def _by_descriptor(descriptor: int) -> str:
    """A path for mount(2) that no link can lead astray, and that keeps host paths out of the mount table."""
    return f"/proc/self/fd/{descriptor}"


def _base(identity: Identity) -> None:
    os.chmod("/root", 0o700)
    for name in ("/tmp", "/var/tmp"):
        os.mkdir(name)
        os.chmod(name, 0o1777)
    os.symlink("/run", "/var/run")
    _read_only("usr", identity)
    for name in _SYSTEM_DIRECTORIES:
        if os.path.islink(f"/old/{name}"):
            os.symlink(os.readlink(f"/old/{name}"), f"/{name}")
        elif os.path.isdir(f"/old/{name}"):
            _read_only(name, identity)
    for path, content in common_files().items():
        _create(f"/etc/{path}", content)
    for path in ETC_DIRECTORIES:
        if os.path.isdir(f"/old/etc/{path}"):
            _read_only(f"etc/{path}", identity)


def _create(path: str, content: bytes | str) -> None:
    """A file, or a link to what the text says."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if isinstance(content, str):
        os.symlink(content, path)
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.write(descriptor, content)
    os.close(descriptor)


def _pages(mib: int) -> str:
    return str((mib << 20) // resource.getpagesize())


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _read_only(name: str, identity: Identity) -> None:
    os.makedirs(f"/{name}", exist_ok=True)
    source = os.open(f"/old/{name}", os.O_PATH | os.O_CLOEXEC)
    mount = sources.copy_mount(source, identity, _READ_ONLY, recursive=True, must_map=False)
    _attach(mount, f"/{name}")
    os.close(mount)
    os.close(source)


def _attach(mount: int, path: str) -> None:
    target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    sys.attach_mount(mount, target)
    os.close(target)


def _control() -> None:
    """A tmpfs of its own, so that a step's text finds room on a full disk; the host alone can write it."""
    sys.mount("tmpfs", "/proc/control", "tmpfs", _NOTHING_SPECIAL | sys.MS_NOEXEC, f"mode=755,size={_CONTROL_MIB}m")
    sys.mount("/proc/control", CONTROL_DIRECTORY, None, sys.MS_BIND)
    sys.set_mount_attributes(CONTROL_DIRECTORY, _READ_ONLY | sys.ATTR_NOEXEC)


def _devices(identity: Identity) -> None:
    os.mkdir("/dev")
    sys.mount("tmpfs", "/dev", "tmpfs", sys.MS_NOSUID | sys.MS_NOEXEC, "mode=755,size=64k")
    for name, (major, minor) in _DEVICES.items():
        path = f"/dev/{name}"
        if identity.kind == "own":  # may not make devices, but show the host's
            _create(path, b"")
            sys.mount(f"/old/dev/{name}", path, None, sys.MS_BIND)
            sys.set_mount_attributes(path, sys.ATTR_NOSUID | sys.ATTR_NOEXEC)
        else:
            os.mknod(path, 0o20666, os.makedev(major, minor))
            os.chmod(path, 0o666)
    os.mkdir(CONTROL_DIRECTORY)
    os.mkdir("/dev/pts")
    os.mkdir("/dev/shm")
    group = "" if identity.kind == "own" else f",gid={identity.root + _TTY_GROUP}"
    options = f"newinstance,ptmxmode=0666,mode=620,max={_TERMINALS}{group}"
    sys.mount("devpts", "/dev/pts", "devpts", sys.MS_NOSUID | sys.MS_NOEXEC, options)
    sys.mount("tmpfs", "/dev/shm", "tmpfs", _NOTHING_SPECIAL, f"mode=1777,size=1m,nr_inodes={_FILES_PER_MIB}")
    os.symlink("pts/ptmx", "/dev/ptmx")
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    # so that nobody loses /dev/null to a careless `mv`; the nodes themselves can be written
    sys.set_mount_attributes("/dev", sys.ATTR_RDONLY | sys.ATTR_NOSUID | sys.ATTR_NOEXEC, recursive=False)


def _overlay(root: int, number: int, target: str, lowers: list[int], identity: Identity) -> None:
    layers = _hidden["layers"]
    for index, lower in enumerate(lowers):
        os.mkdir(f"{number}-lower{index}", dir_fd=layers)
        place = os.open(f"{number}-lower{index}", os.O_PATH | os.O_CLOEXEC, dir_fd=layers)
        sys.attach_mount(lower, place)
        os.close(place)
    os.mkdir(f"{number}-work", dir_fd=layers)
    base = f"{_by_descriptor(layers)}/{number}"
    if not os.listdir(f"{base}-upper"):
        os.chmod(f"{base}-upper", os.fstat(lowers[0]).st_mode & 0o7777)
    below = ":".join(f"{base}-lower{index}" for index in range(len(lowers)))
    options = f"lowerdir={below},upperdir={base}-upper,workdir={base}-work,{_overlay_options(identity)}"
    place = paths.make_directories(root, target)
    sys.mount("overlay", _by_descriptor(place), "overlay", _NOTHING_SPECIAL, options)
    os.close(place)


def _overlay_options(identity: Identity) -> str:
    return "userxattr" if identity.kind == "own" else "redirect_dir=on,metacopy=off"


def _copy_view(
    root: int,
    number: int,
    target: str,
    lowers: list[int],
    origin: list[int],
    disk_mib: int,
    moved: Callable[[int], int],
) -> None:
    """What an overlay would show, copied into memory, with as much room beside it as the disk limit says.

    How large that was is kept with the layers: forks of forks do not get room anew.
    """
    sources.refuse_copy(target)
    place = paths.make_directories(root, target)
    sys.mount("tmpfs", _by_descriptor(place), "tmpfs", _NOTHING_SPECIAL, "mode=755,size=1t,nr_inodes=1g")
    copy = paths.open_in_root(root, target, _DIRECTORY)
    if origin:
        source = paths.open_in_root(origin[0], target, _DIRECTORY)
        tree.copy(source, copy, moved=moved)
        os.close(source)
    else:
        for lower in lowers[::-1]:
            tree.copy(lower, copy, merge=True)
    status = os.fstatvfs(copy)
    used, files = (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree
    note = f"{number}-copied"
    kept = os.readlink(note, dir_fd=origin[1]) if origin else f"{used} {files}"
    os.symlink(kept, note, dir_fd=_hidden["layers"])  # which finds room on a full disk
    first_used, first_files = map(int, kept.split())
    size = max(used, first_used + (disk_mib << 20))
    inodes = max(files, first_files + disk_mib * _FILES_PER_MIB)
    sys.mount(None, _by_descriptor(copy), None, sys.MS_REMOUNT | _NOTHING_SPECIAL, f"size={size},nr_inodes={inodes}")
    os.close(place)
    os.close(copy)


def can_overlay(identity: Identity) -> bool:
    """Whether an overlay works here with all that its upper layer must hold; tried out by a forked child."""
    told, tell = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        try:
            os.unshare(os.CLONE_NEWNS)
            sys.mount(None, "/", None, sys.MS_REC | sys.MS_SLAVE)
            sys.mount("tmpfs", "/tmp", "tmpfs", _NOTHING_SPECIAL)
            for name in ("lower/directory/below", "upper", "work", "merged"):
                os.makedirs(f"/tmp/{name}")
            layers = "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work"
            options = f"{layers},{_overlay_options(identity)}"
            sys.mount("overlay", "/tmp/merged", "overlay", _NOTHING_SPECIAL, options)
            os.rmdir("/tmp/merged/directory/below")
            os.rmdir("/tmp/merged/directory")
            os.mkdir("/tmp/merged/directory")
            os.write(tell, b"yes")
        finally:
            os._exit(0)
    os.close(tell)
    try:
        return os.read(told, 3) == b"yes"
    finally:
        os.close(told)


def _bind(root: int, mount: int, target: str) -> None:
    if stat.S_ISDIR(os.fstat(mount).st_mode):
        place = paths.make_directories(root, target)
    else:
        parent = paths.make_directories(root, os.path.dirname(target))
        os.close(parent)
        place = paths.open_in_root(root, target, os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK, 0o644)
    sys.attach_mount(mount, place)
    os.close(place)


def _proc(private_network: bool) -> None:
    sys.mount("proc", "/proc", "proc", _NOTHING_SPECIAL | sys.MS_NOEXEC)
    with contextlib.suppress(PermissionError):  # ordinary users may not, before Linux 5.19
        # what outlives processes, as files do, but counts as no file: segments, semaphores, message queues of 16 KiB
        _write("/proc/sys/kernel/shmall", _pages(_SHARED_MEMORY_MIB))
        _write("/proc/sys/kernel/sem", "1024 8192 500 256")
        _write("/proc/sys/kernel/msgmni", "64")
    if private_network:  # it belongs to the user namespace around: no capability inside says who may take low ports
        with contextlib.suppress(OSError):
            _write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
    for name in _PROC_READ_ONLY:
        path = f"/proc/{name}"
        if os.path.isdir(path):
            sys.mount(path, path, None, sys.MS_BIND | sys.MS_REC)
            sys.set_mount_attributes(path, _READ_ONLY | sys.ATTR_NOEXEC)
    for name in _PROC_MASKED + _PROC_MASKED_MORE:
        try:
            sys.mount("/dev/null", f"/proc/{name}", None, sys.MS_BIND)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
    for name in _PROC_HIDDEN:
        if Path(f"/proc/{name}").is_dir():
            sys.mount("tmpfs", f"/proc/{name}", "tmpfs", sys.MS_RDONLY | _NOTHING_SPECIAL, "size=4k,mode=555")

"""The root of a sandbox, built on an empty tmpfs of its own mount namespace; the host's file system gets no directory.

One tmpfs holds all that can be written (its size is the disk limit): the root itself and, out of sight of it, the
upper layers of the overlays. All of it vanishes with the namespace.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH112, PTH114, PTH115, PTH116, PTH120, PTH123, PTH208, PTH211

import errno
import os
import resource
from pathlib import Path
from typing import Any

from . import paths
from . import syscalls as sys
from .etc import ETC_DIRECTORIES, etc_files

CONTROL_DIRECTORY = "/run/minisandbox"
_NOTHING_SPECIAL = sys.MS_NOSUID | sys.MS_NODEV
_READ_ONLY = sys.ATTR_RDONLY | sys.ATTR_NOSUID | sys.ATTR_NODEV
_SYSTEM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PLAIN_DIRECTORIES = ("etc", "home", "mnt", "opt", "root", "run", "srv", "sys", "testbed", "var", "var/lib", "var/log")
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_PROC_READ_ONLY = ("sys", "irq", "bus", "fs")
_PROC_MASKED = ("kcore", "keys", "key-users", "kmsg", "kpagecount", "kpageflags", "sched_debug", "sysrq-trigger")
_PROC_MASKED_MORE = ("timer_list", "latency_stats")
_PROC_HIDDEN = ("acpi", "scsi")
_CONTROL_MIB = 64
_FILES_PER_MIB = 256  # of the disk limit; an empty file costs about a KiB of kernel memory


def build(plan: dict[str, Any]) -> dict[str, int]:
    """Build the root that the plan describes and enter it.

    -> descriptors for the host: `root` (O_PATH), `control` (directory whose files CONTROL_DIRECTORY shows read-only
    inside) and, if there is an overlay on /testbed, its `upper` directory. Raises OSError.
    """
    sources = [(overlay, [_open(lower) for lower in overlay["lower"]]) for overlay in plan["overlays"]]
    binds = [(bind, _open(bind["source"])) for bind in plan["binds"]]
    # an empty tmpfs becomes the root, the host's tree stays at /old until the end
    sys.mount(None, "/", None, sys.MS_REC | sys.MS_PRIVATE)
    size = f"size={plan['disk_mib']}m,nr_inodes={4096 + plan['disk_mib'] * _FILES_PER_MIB}"
    sys.mount("tmpfs", "/tmp", "tmpfs", _NOTHING_SPECIAL, f"mode=755,{size}")
    os.mkdir("/tmp/old")
    os.mkdir("/tmp/new")
    os.mkdir("/tmp/layers")
    sys.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    sys.mount("/new", "/new", None, sys.MS_BIND)
    root = os.open("/new", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _base(plan)
    control = _control()
    _devices(plan["shared_memory_mib"])
    descriptors = {"control": control}
    for number, (overlay, lowers) in enumerate(sources):
        upper = _overlay(root, number, overlay["target"], lowers)
        if overlay["target"] == "/testbed":
            descriptors["upper"] = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for bind, source in binds:
        _bind(root, source, bind["target"], bind["writable"])
    _proc(plan["shared_memory_mib"])
    os.close(root)
    os.chdir("/new")
    sys.pivot_root(".", ".")
    sys.unmount(".")
    os.chdir("/")
    descriptors["root"] = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return descriptors


def top_level_links() -> dict[str, str]:
    """Links of / without which no program starts: {path: target}."""
    return {f"/{name}": os.readlink(f"/{name}") for name in os.listdir("/") if os.path.islink(f"/{name}")}


def _open(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _by_descriptor(descriptor: int) -> str:
    """A path for mount(2) that no link can lead astray, and that keeps host paths out of the mount table."""
    return f"/old/proc/self/fd/{descriptor}"


def _base(plan: dict[str, Any]) -> None:
    for name in _PLAIN_DIRECTORIES:
        os.mkdir(f"/new/{name}")
    os.chmod("/new/root", 0o700)
    for name in ("tmp", "var/tmp"):
        os.mkdir(f"/new/{name}")
        os.chmod(f"/new/{name}", 0o1777)
    os.symlink("/run", "/new/var/run")
    _read_only("/old/usr", "/new/usr")
    for name in _SYSTEM_DIRECTORIES:
        if os.path.islink(f"/old/{name}"):
            os.symlink(os.readlink(f"/old/{name}"), f"/new/{name}")
        elif os.path.isdir(f"/old/{name}"):
            _read_only(f"/old/{name}", f"/new/{name}")
    for path, content in etc_files(plan).items():
        target = f"/new/etc/{path}"
        if "/" in path:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        if isinstance(content, str):
            os.symlink(content, target)
        else:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.write(descriptor, content)
            os.close(descriptor)
    for path in ETC_DIRECTORIES:
        if os.path.isdir(f"/old/etc/{path}"):
            _read_only(f"/old/etc/{path}", f"/new/etc/{path}")


def _read_only(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    sys.mount(source, target, None, sys.MS_BIND | sys.MS_REC)
    sys.set_mount_attributes(target, _READ_ONLY)


def _control() -> int:
    """A tmpfs of its own, so that a step's text finds room on a full disk; the host alone can write it."""
    os.mkdir("/control")
    sys.mount("tmpfs", "/control", "tmpfs", _NOTHING_SPECIAL | sys.MS_NOEXEC, f"mode=755,size={_CONTROL_MIB}m")
    control = os.open("/control", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _read_only("/control", f"/new{CONTROL_DIRECTORY}")
    return control


def _devices(shared_memory_mib: int) -> None:
    os.mkdir("/new/dev")
    sys.mount("tmpfs", "/new/dev", "tmpfs", sys.MS_NOSUID | sys.MS_NOEXEC, "mode=755,size=64k")
    for name, (major, minor) in _DEVICES.items():
        os.mknod(f"/new/dev/{name}", 0o20666, os.makedev(major, minor))
        os.chmod(f"/new/dev/{name}", 0o666)
    os.mkdir("/new/dev/pts")
    os.mkdir("/new/dev/shm")
    options = "newinstance,ptmxmode=0666,mode=620,gid=5"
    sys.mount("devpts", "/new/dev/pts", "devpts", sys.MS_NOSUID | sys.MS_NOEXEC, options)
    sys.mount("tmpfs", "/new/dev/shm", "tmpfs", _NOTHING_SPECIAL, f"mode=1777,size={shared_memory_mib}m")
    os.symlink("pts/ptmx", "/new/dev/ptmx")
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink(f"/proc/self/fd{target}", f"/new/dev/{name}")
    # so that nobody loses /dev/null to a careless `mv`; the nodes themselves can be written
    sys.set_mount_attributes("/new/dev", sys.ATTR_RDONLY | sys.ATTR_NOSUID | sys.ATTR_NOEXEC, recursive=False)


def _overlay(root: int, number: int, target: str, lowers: list[int]) -> str:
    upper, work = f"/layers/{number}-upper", f"/layers/{number}-work"
    os.mkdir(upper)
    os.mkdir(work)
    os.chmod(upper, os.stat(_by_descriptor(lowers[0])).st_mode & 0o7777)
    place = paths.make_directories(root, target)
    layers = ":".join(_by_descriptor(lower) for lower in lowers)
    options = f"lowerdir={layers},upperdir={upper},workdir={work},redirect_dir=on,metacopy=off"
    sys.mount("overlay", _by_descriptor(place), "overlay", _NOTHING_SPECIAL, options)
    for descriptor in (place, *lowers):
        os.close(descriptor)
    return upper


def _bind(root: int, source: int, target: str, writable: bool) -> None:
    if os.path.isdir(_by_descriptor(source)):
        place = paths.make_directories(root, target)
    else:
        parent = paths.make_directories(root, os.path.dirname(target))
        os.close(parent)
        place = paths.open_in_root(root, target, os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK, 0o644)
    sys.mount(_by_descriptor(source), _by_descriptor(place), None, sys.MS_BIND | sys.MS_REC)
    attributes = sys.ATTR_NOSUID | sys.ATTR_NODEV | (0 if writable else sys.ATTR_RDONLY)
    inside = paths.open_in_root(root, target, os.O_PATH)  # what is mounted there now
    sys.set_mount_attributes(_by_descriptor(inside), attributes)
    for descriptor in (inside, place, source):
        os.close(descriptor)


def _proc(shared_memory_mib: int) -> None:
    os.mkdir("/new/proc")
    sys.mount("proc", "/new/proc", "proc", _NOTHING_SPECIAL | sys.MS_NOEXEC)
    with open("/new/proc/sys/kernel/shmall", "w") as file:  # System V segments outlive processes, as files do
        file.write(str((shared_memory_mib << 20) // resource.getpagesize()))
    for name in _PROC_READ_ONLY:
        path = f"/new/proc/{name}"
        if os.path.isdir(path):
            sys.mount(path, path, None, sys.MS_BIND | sys.MS_REC)
            sys.set_mount_attributes(path, _READ_ONLY | sys.ATTR_NOEXEC)
    for name in _PROC_MASKED + _PROC_MASKED_MORE:
        try:
            sys.mount("/new/dev/null", f"/new/proc/{name}", None, sys.MS_BIND)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
    for name in _PROC_HIDDEN:
        if Path(f"/new/proc/{name}").is_dir():
            sys.mount("tmpfs", f"/new/proc/{name}", "tmpfs", sys.MS_RDONLY | _NOTHING_SPECIAL, "size=4k,mode=555")

"""The root of a sandbox, built on an empty tmpfs of its own mount namespace; the host's file system gets no directory.

One tmpfs holds all that can be written (its size is the disk limit): the root itself and, out of sight of it, the
upper layers of the overlays. All of it vanishes with the namespace.
"""

# ruff: noqa: PTH101, PTH106, PTH102, PTH103, PTH112, PTH114, PTH115, PTH116, PTH120, PTH123, PTH208, PTH211

import contextlib
import errno
import os
import resource
from pathlib import Path
from typing import Any

from . import paths, tree
from . import syscalls as sys
from .etc import ETC_DIRECTORIES, common_files, etc_files
from .identity import Identity

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
_FILES_PER_MIB = 256  # of the disk limit; an empty file costs about a KiB of kernel memory


class Refused(Exception):
    """This process cannot become what the plan wants; `wanted` says which other one could."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(str(wanted))
        self.wanted = wanted


def prepare(identity: Identity, private_network: bool) -> None:
    """Make the part of a root that no plan changes, and make / the tmpfs that holds it: see the module's text.

    Below / are then `new`, the root to be; `layers`; `control`; and the host's tree, `old`. Raises OSError.
    """
    # what the host unmounts is not kept busy here, but nothing that is mounted here reaches the host
    sys.mount(None, "/", None, sys.MS_REC | sys.MS_SLAVE)
    sys.mount("tmpfs", "/tmp", "tmpfs", _NOTHING_SPECIAL, "mode=755,size=16m,nr_inodes=4096")
    for name in ("old", "new", "layers", "control"):
        os.mkdir(f"/tmp/{name}", 0o755)
    sys.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    sys.mount("/new", "/new", None, sys.MS_BIND)
    _base(identity)
    _devices(identity)
    _control()
    _proc(private_network)


def complete(
    plan: dict[str, Any], identity: Identity, origin: list[int], *, copies: bool
) -> tuple[dict[str, int], int]:
    """Make the prepared root what the plan describes, and enter it.

    With `copies` of host directories in the place of overlays over them. `origin` are the descriptors `root` and
    `layers` of the sandbox whose files it starts with, or none.
    -> (descriptors for the host, the time in nanoseconds before which files are as made here). The descriptors: `root`
    (O_PATH), `control` (directory whose files CONTROL_DIRECTORY shows read-only inside), `layers` (the directories of
    what was written to overlays) and, if there is an overlay on /testbed, its `upper` one.
    Raises OSError, and Refused.
    """
    sources = [_open_sources(overlay["lower"], plan["fresh"]) for overlay in plan["overlays"]]
    binds = _open_sources([bind["source"] for bind in plan["binds"]], plan["fresh"])
    inodes = 4096 + plan["disk_mib"] * _FILES_PER_MIB
    sys.mount(None, "/", None, sys.MS_REMOUNT | _NOTHING_SPECIAL, f"size={plan['disk_mib']}m,nr_inodes={inodes}")
    shared = plan["shared_memory_mib"]
    sys.mount(None, "/new/dev/shm", None, sys.MS_REMOUNT | _NOTHING_SPECIAL, f"size={shared}m")
    with contextlib.suppress(OSError):  # a container's own /proc/sys can be read-only: then what _proc wrote holds
        _write("/old/proc/sys/kernel/shmall", _pages(shared))
    for path, content in etc_files(plan).items():
        _create(f"/new/etc/{path}", content)
    _create("/layers/now", b"")
    born = os.stat("/layers/now").st_ctime_ns
    root = os.open("/new", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    layers = os.open("/layers", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for number in range(len(sources)):
        os.mkdir(f"/layers/{number}-upper")
    if origin:
        _copy_origin(origin, [root, layers], plan["since"], len(sources))
    for number, (overlay, lowers) in enumerate(zip(plan["overlays"], sources, strict=True)):
        if copies:
            _copy_view(root, overlay["target"], lowers, origin, plan["disk_mib"], number, identity)
        else:
            _overlay(root, number, overlay["target"], lowers, identity)
    for bind, source in zip(plan["binds"], binds, strict=True):
        _bind(root, source, bind["target"], bind["writable"], identity)
    descriptors = {"layers": layers, "control": os.open("/control", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}
    for number, overlay in enumerate(plan["overlays"]):
        if overlay["target"] == "/testbed" and not copies:
            upper = f"/layers/{number}-upper"
            descriptors["upper"] = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.close(root)
    os.chdir("/new")
    sys.pivot_root(".", ".")
    sys.unmount(".")
    os.chdir("/")
    descriptors["root"] = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return descriptors, born


def _open_sources(sources: list[list[Any]], fresh: bool) -> list[int]:
    """Open host paths that the owner saw; a process that was prepared earlier may not see what was mounted since."""
    host = os.open("/old", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    opened = []
    for path, *identity in sources:
        try:
            descriptor = paths.open_in_root(host, path, os.O_PATH)
            status = os.fstat(descriptor)
        except OSError as error:
            if not fresh:
                raise Refused({"fresh": True}) from None
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
        if not fresh and identity != [status.st_dev, status.st_ino]:
            raise Refused({"fresh": True})
        opened.append(descriptor)
    os.close(host)
    return opened


def _copy_origin(origin: list[int], copies: list[int], since: int, overlays: int) -> None:
    directory = os.O_RDONLY | os.O_DIRECTORY
    wanted = [[(".", since), ("dev/shm", 0)], [(f"{number}-upper", 0) for number in range(overlays)]]
    for source, copy, places in zip(origin, copies, wanted, strict=True):
        for place, since_ in places:
            here, there = (paths.open_in_root(root, place, directory) for root in (source, copy))
            tree.copy(here, there, since_)
            os.close(here)
            os.close(there)


def top_level_links() -> dict[str, str]:
    """Links of / without which no program starts: {path: target}."""
    return {f"/{name}": os.readlink(f"/{name}") for name in os.listdir("/") if os.path.islink(f"/{name}")}


def _by_descriptor(descriptor: int) -> str:
    """A path for mount(2) that no link can lead astray, and that keeps host paths out of the mount table."""
    return f"/old/proc/self/fd/{descriptor}"


def _base(identity: Identity) -> None:
    for name in _PLAIN_DIRECTORIES:
        os.mkdir(f"/new/{name}")
    os.chmod("/new/root", 0o700)
    for name in ("tmp", "var/tmp"):
        os.mkdir(f"/new/{name}")
        os.chmod(f"/new/{name}", 0o1777)
    os.symlink("/run", "/new/var/run")
    _read_only("usr", identity)
    for name in _SYSTEM_DIRECTORIES:
        if os.path.islink(f"/old/{name}"):
            os.symlink(os.readlink(f"/old/{name}"), f"/new/{name}")
        elif os.path.isdir(f"/old/{name}"):
            _read_only(name, identity)
    for path, content in common_files().items():
        _create(f"/new/etc/{path}", content)
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
    os.makedirs(f"/new/{name}", exist_ok=True)
    source = os.open(f"/old/{name}", os.O_PATH | os.O_CLOEXEC)
    target = os.open(f"/new/{name}", os.O_PATH | os.O_CLOEXEC)
    _attach(source, target, _READ_ONLY, identity, must_map=False)
    os.close(source)
    os.close(target)


def _attach(source: int, target: int, attributes: int, identity: Identity, *, must_map: bool) -> None:
    """Bind a file or directory, with what is mounted below it.

    Where its file system cannot show its owners as the identity needs them: Refused if it must, else they are nobody.
    """
    mount = sys.clone_mount(source, recursive=True)
    try:
        if identity.maps_mounts:
            try:
                sys.set_mount_attributes(mount, 0, user_namespace=identity.namespace)
            except OSError:
                if must_map:
                    raise Refused({"identity": "same"}) from None
        sys.set_mount_attributes(mount, attributes)
        sys.attach_mount(mount, target)
    finally:
        os.close(mount)


def _control() -> None:
    """A tmpfs of its own, so that a step's text finds room on a full disk; the host alone can write it."""
    sys.mount("tmpfs", "/control", "tmpfs", _NOTHING_SPECIAL | sys.MS_NOEXEC, f"mode=755,size={_CONTROL_MIB}m")
    sys.mount("/control", f"/new{CONTROL_DIRECTORY}", None, sys.MS_BIND)
    sys.set_mount_attributes(f"/new{CONTROL_DIRECTORY}", _READ_ONLY | sys.ATTR_NOEXEC)


def _devices(identity: Identity) -> None:
    os.mkdir("/new/dev")
    sys.mount("tmpfs", "/new/dev", "tmpfs", sys.MS_NOSUID | sys.MS_NOEXEC, "mode=755,size=64k")
    for name, (major, minor) in _DEVICES.items():
        path = f"/new/dev/{name}"
        if identity.kind == "own":  # may not make devices, but show the host's
            _create(path, b"")
            sys.mount(f"/old/dev/{name}", path, None, sys.MS_BIND)
            sys.set_mount_attributes(path, sys.ATTR_NOSUID | sys.ATTR_NOEXEC)
        else:
            os.mknod(path, 0o20666, os.makedev(major, minor))
            os.chmod(path, 0o666)
    os.mkdir(f"/new{CONTROL_DIRECTORY}")
    os.mkdir("/new/dev/pts")
    os.mkdir("/new/dev/shm")
    group = "" if identity.kind == "own" else f",gid={identity.root + _TTY_GROUP}"
    options = f"newinstance,ptmxmode=0666,mode=620{group}"
    sys.mount("devpts", "/new/dev/pts", "devpts", sys.MS_NOSUID | sys.MS_NOEXEC, options)
    sys.mount("tmpfs", "/new/dev/shm", "tmpfs", _NOTHING_SPECIAL, "mode=1777,size=1m")
    os.symlink("pts/ptmx", "/new/dev/ptmx")
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink(f"/proc/self/fd{target}", f"/new/dev/{name}")
    # so that nobody loses /dev/null to a careless `mv`; the nodes themselves can be written
    sys.set_mount_attributes("/new/dev", sys.ATTR_RDONLY | sys.ATTR_NOSUID | sys.ATTR_NOEXEC, recursive=False)


def _overlay(root: int, number: int, target: str, lowers: list[int], identity: Identity) -> None:
    upper, work = f"/layers/{number}-upper", f"/layers/{number}-work"
    os.mkdir(work)
    places = _lower_places(number, lowers, identity)
    if not os.listdir(upper):
        os.chmod(upper, os.stat(places[0]).st_mode & 0o7777)
    place = paths.make_directories(root, target)
    options = f"lowerdir={':'.join(places)},upperdir={upper},workdir={work},{_overlay_options(identity)}"
    sys.mount("overlay", _by_descriptor(place), "overlay", _NOTHING_SPECIAL, options)
    for descriptor in (place, *lowers):
        os.close(descriptor)


def _overlay_options(identity: Identity) -> str:
    return "userxattr" if identity.kind == "own" else "redirect_dir=on,metacopy=off"


def _lower_places(number: int, lowers: list[int], identity: Identity) -> list[str]:
    """Paths of the lower directories, with owners as the identity needs them. Raises Refused."""
    places = [_by_descriptor(lower) for lower in lowers]
    if identity.maps_mounts:
        for index, lower in enumerate(lowers):
            places[index] = f"/layers/{number}-lower{index}"
            os.mkdir(places[index])
            mount = sys.clone_mount(lower, recursive=False)
            try:
                sys.set_mount_attributes(mount, _READ_ONLY, recursive=False, user_namespace=identity.namespace)
            except OSError:
                raise Refused({"identity": "same"}) from None
            place = os.open(places[index], os.O_PATH | os.O_CLOEXEC)
            sys.attach_mount(mount, place)
            os.close(mount)
            os.close(place)
    return places


def _copy_view(
    root: int, target: str, lowers: list[int], origin: list[int], disk_mib: int, number: int, identity: Identity
) -> None:
    """What an overlay would show, copied into memory, with as much room beside it as the disk limit says."""
    directory = os.O_RDONLY | os.O_DIRECTORY
    place = paths.make_directories(root, target)
    sys.mount("tmpfs", _by_descriptor(place), "tmpfs", _NOTHING_SPECIAL, "mode=755,size=1t,nr_inodes=1g")
    copy = paths.open_in_root(root, target, directory)
    if origin:
        sources = [paths.open_in_root(origin[0], target, directory)]
    else:
        sources = [os.open(path, directory | os.O_CLOEXEC) for path in _lower_places(number, lowers, identity)[::-1]]
    for source in sources:
        tree.copy(source, copy, merge=True)
        os.close(source)
    status = os.fstatvfs(copy)
    used, files = (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree
    size = f"size={used + (disk_mib << 20)},nr_inodes={files + disk_mib * _FILES_PER_MIB}"
    sys.mount(None, _by_descriptor(copy), None, sys.MS_REMOUNT | _NOTHING_SPECIAL, size)
    for descriptor in (place, copy, *lowers):
        os.close(descriptor)


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


def _bind(root: int, source: int, target: str, writable: bool, identity: Identity) -> None:
    if os.path.isdir(_by_descriptor(source)):
        place = paths.make_directories(root, target)
    else:
        parent = paths.make_directories(root, os.path.dirname(target))
        os.close(parent)
        place = paths.open_in_root(root, target, os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK, 0o644)
    attributes = sys.ATTR_NOSUID | sys.ATTR_NODEV | (0 if writable else sys.ATTR_RDONLY)
    _attach(source, place, attributes, identity, must_map=writable)
    for descriptor in (place, source):
        os.close(descriptor)


def _proc(private_network: bool) -> None:
    os.mkdir("/new/proc")
    sys.mount("proc", "/new/proc", "proc", _NOTHING_SPECIAL | sys.MS_NOEXEC)
    with contextlib.suppress(PermissionError):  # ordinary users may not, before Linux 5.19
        _write("/new/proc/sys/kernel/shmall", _pages(_SHARED_MEMORY_MIB))  # segments outlive processes, as files do
    if private_network:  # it belongs to the user namespace around: no capability inside says who may take low ports
        with contextlib.suppress(OSError):
            _write("/new/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
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

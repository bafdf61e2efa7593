"""The starter: a small process, exec'd early with nothing in it, from which every sandbox of an owner is forked.

Forking a small process costs the same whatever the owner grows to, and pid 1 inherits no secret. When the owner dies,
the starter ends its sandboxes and removes their control groups: nobody else would.
"""

# ruff: noqa: PTH123, PTH208

import fcntl
import gc
import os
import resource
import select
import signal
import socket
import struct
import time
from typing import Any

from . import cgroups, etc, init, root, seccomp, syscalls, watchdog, wire

# chown, dac_override, fowner, fsetid, kill, setgid, setuid: what package managers and test suites need. A network of
# its own adds net_bind_service.
_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7}
_NET_BIND_SERVICE = 10
_NAMESPACES = os.CLONE_NEWNS | os.CLONE_NEWIPC | os.CLONE_NEWUTS  # and pid, net, cgroup
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def main(descriptor: int) -> None:
    """Serve the owner at the other end of this socket until it is gone."""
    if os.fork():  # not a child of the owner: what kills an owner's children must not kill its reaper
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o022)
    syscalls.set_undumpable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    owner = socket.socket(fileno=descriptor)
    received = wire.receive(owner)
    if received is None:
        return
    message, (handle,) = received
    owner_pid = message["owner"].split("-")[1]
    syscalls.hide_command_line(f"minisandbox starter of {owner_pid}")
    cgroups.sweep()
    places = cgroups.hierarchies()
    etc.prepare()
    seccomp_filter = seccomp.build_filter(syscalls.MACHINE)
    # what holds for every sandbox and hinders no mount is done once, here
    syscalls.set_no_new_privileges()
    syscalls.drop_from_bounding_set(_CAPABILITIES | {_NET_BIND_SERVICE})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    gc.disable()
    gc.freeze()
    poller = select.poll()
    poller.register(owner, select.POLLIN)
    poller.register(handle, select.POLLIN)  # a forked child of the owner may hold the socket longer than the owner
    while handle not in [ready for ready, _ in poller.poll()]:
        received = wire.receive(owner)
        if received is None:
            break
        plan, (descriptor,) = received
        with socket.socket(fileno=descriptor) as control:
            try:
                name = cgroups.new_name(message["owner"])
                os.unshare(os.CLONE_NEWPID)  # of the next child, which is its first process
                if os.fork() == 0:
                    _launch(plan, control, seccomp_filter, places, name)
            except OSError as error:
                _report(control, f"pid namespace: {error}")
            os.setns(pid_namespace, os.CLONE_NEWPID)
    owner.close()
    _end_children()
    cgroups.remove_groups_of(message["owner"])


def _end_children() -> None:
    """Kill all children, the first processes of sandboxes, until none is left."""
    me = str(os.getpid())
    while True:
        children = 0
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = file.read().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if parent == me:
                children += 1
                init.kill(int(name), signal.SIGKILL)
        if not children:
            return
        time.sleep(0.005)


def _launch(
    plan: dict[str, Any],
    control: socket.socket,
    seccomp_filter: bytes,
    places: list[cgroups.Hierarchy],
    name: str,
) -> None:
    """In a forked child: become pid 1 of a new sandbox. Never returns."""
    stage = "first process"
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # as root of the host, and before anything is made that is to be limited
        groups = cgroups.make(places if plan["groups"] else [], name)
        wire.send(control, {"groups": groups}, [handle := os.pidfd_open(os.getpid())])
        os.close(handle)
        private_network = plan["network"] == "none"
        syscalls.hide_command_line("minisandbox")
        stage = "namespaces"
        os.unshare(_NAMESPACES | (os.CLONE_NEWNET if private_network else 0))
        os.setsid()
        stage = "root"
        descriptors = root.build(plan)
        stage = "network, names and limits"
        # meanwhile the owner has written the limits into the control groups
        if wire.receive(control) is None:
            os._exit(1)
        os.unshare(os.CLONE_NEWCGROUP)
        if private_network:
            _raise_loopback()
        socket.sethostname(plan["hostname"])
        watchdog.lower_limit(resource.RLIMIT_NOFILE, plan["open_files"])
        watch = watchdog.start(plan, groups, counts_processes=False)
        _avoid_out_of_memory_killer()
        links = root.top_level_links()
        stage = "privileges"
        capabilities = _CAPABILITIES | ({_NET_BIND_SERVICE} if private_network else set())
        if not private_network:
            syscalls.drop_from_bounding_set(capabilities)
        syscalls.set_capabilities(capabilities)
        syscalls.install_seccomp_filter(seccomp_filter)
        syscalls.set_undumpable()
        if watch:
            descriptors["hits"] = watch.descriptor
        wire.send(control, {"descriptors": list(descriptors)}, list(descriptors.values()))
        _keep_only(control)
        init.Init(control, links, plan["wall_seconds"], watch).serve()
    except BaseException as error:
        _report(control, f"{stage}: {error or type(error).__name__}")
    os._exit(1)


def _report(control: socket.socket, reason: str) -> None:
    try:
        wire.send(control, {"error": " ".join(reason.split())})
    except OSError:  # nobody waits for it any more
        pass


def _keep_only(control: socket.socket) -> None:
    """Close every other descriptor, and take the sandbox's own /dev/null for the standard ones."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, 1 << 20)


def _avoid_out_of_memory_killer() -> None:
    """The sandbox outlives its processes. Where that is not permitted, its shells offer themselves first."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("-1000")
    except PermissionError:  # no CAP_SYS_RESOURCE
        pass


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", _IFF_UP | _IFF_RUNNING, b""))

"""The first process of a sandbox: prepares what no plan changes, waits for its plan, completes the sandbox, serves.

That may be long before the plan is there, so that most of a start is done when somebody asks for it.
"""

import os
import resource
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from . import cgroups, init, network, root, seccomp, syscalls, watchdog, wire
from .identity import Identity

# chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service: what package managers and tests need
_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 10}
_NAMESPACES = os.CLONE_NEWNS | os.CLONE_NEWIPC | os.CLONE_NEWUTS | os.CLONE_NEWCGROUP  # and pid, net, user
ADVICE = "`python -m minisandbox_ray doctor` says what would help; `isolation: best-effort` does without"
# what the owner may perhaps: run before all others; and what the kernel counts together with others of the same user
_LEAST = {resource.RLIMIT_RTPRIO: 0, resource.RLIMIT_NICE: 0, resource.RLIMIT_SIGPENDING: 4096}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a first process must know before it prepares."""

    identity: Identity
    private_network: bool
    hierarchies: list[cgroups.Hierarchy]
    seccomp_filter: bytes
    copies: bool
    """Of the host's directories, where they cannot be overlaid."""


def main(orders: socket.socket, kind: Kind, name: str) -> NoReturn:
    """In a forked child: become pid 1 of a sandbox whose control groups have that name. `orders` brings the plan."""
    try:
        # what the starter holds at the moment, other sandboxes' sockets and files, would live as long as this process
        namespace = kind.identity.namespace
        _close_all_but({0, 1, 2, orders.fileno(), *(() if namespace is None else (namespace,))})
        _serve(orders, kind, name)
    finally:
        os._exit(1)


def _serve(orders: socket.socket, kind: Kind, name: str) -> None:
    failure, groups, directories = "", {}, {}
    try:
        os.unshare(os.CLONE_NEWPID)  # of the next child
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        syscalls.hide_command_line("minisandbox")
        os.setsid()
        # as whoever the starter is, and before anything is made that is to be limited
        groups = cgroups.make(kind.hierarchies, name)
        directories = cgroups.open_all(groups)
        _prepare(kind)
    except PermissionError as error:
        failure = f"this machine gives no namespaces ({error.strerror}): {ADVICE}"
    except Exception as error:
        failure = str(error) or type(error).__name__
    received = wire.receive(orders)
    if received is None:
        return
    orders.close()
    plan, (descriptor, *descriptors) = received
    mounts, origin = descriptors[: plan["mounts"]], descriptors[plan["mounts"] :]
    control = socket.socket(fileno=descriptor)
    try:
        if failure:
            raise OSError(failure)
        cgroups.write_settings(groups, directories, plan["group_settings"])
        copies = kind.copies or plan["copies"]
        shown, born = root.complete(plan, kind.identity, mounts, origin, copies=copies)
        links = root.top_level_links()
        if plan["network"] == "sink":
            network.route_into_nothing()
        socket.sethostname(plan["hostname"])
        kind.identity.enter()
        watchdog.lower_limit(resource.RLIMIT_NOFILE, plan["open_files"])
        for number, most in _LEAST.items():
            watchdog.lower_limit(number, most)
        is_users = kind.identity.kind == "own"
        counts = is_users or kind.identity.kind == "shifted"
        watch = watchdog.start(plan, groups, counts_processes=counts, has_one_id=is_users)
        if watch:
            shown["hits"] = watch.descriptor
        if not kind.private_network:
            syscalls.leave_abstract_sockets()
        if any(bind["writable"] for bind in plan["binds"]):
            syscalls.install_seccomp_filter(seccomp.build_set_id_filter(syscalls.MACHINE))
        _drop_privileges(kind.seccomp_filter)
        message = {"groups": groups, "descriptors": list(shown), "born": born, "copies": copies}
        wire.send(control, message, [os.pidfd_open(os.getpid()), *shown.values()])
        keep_only(control)
    except Exception as error:
        report(control, str(error) or type(error).__name__, groups)
        return
    init.Init(control, links, plan["wall_seconds"], watch).serve()


def _prepare(kind: Kind) -> None:
    _avoid_out_of_memory_killer()
    os.unshare(_NAMESPACES | (os.CLONE_NEWNET if kind.private_network else 0))
    if kind.identity.root:
        syscalls.create_files_as(kind.identity.root)
    root.prepare(kind.identity, kind.private_network)
    if kind.private_network:
        network.raise_loopback()


def _drop_privileges(seccomp_filter: bytes) -> None:
    syscalls.drop_from_bounding_set(_CAPABILITIES)
    syscalls.set_capabilities(_CAPABILITIES)
    syscalls.install_seccomp_filter(seccomp_filter)
    syscalls.set_dumpable(False)


def report(control: socket.socket, reason: str, groups: dict[str, tuple[str, int]] | None = None) -> None:
    """Say why there is no sandbox, and which control groups are left of it."""
    try:
        wire.send(control, {"error": " ".join(reason.split()), "groups": groups or {}})
    except OSError:  # nobody waits for it any more
        pass


def keep_only(control: socket.socket) -> None:
    """Close every other descriptor, and take the sandbox's own /dev/null for the standard ones."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    _close_all_but({0, 1, 2, control.fileno()})


def _close_all_but(kept: set[int]) -> None:
    numbers = sorted(kept)
    for number, following in zip(numbers, [*numbers[1:], 1 << 20], strict=True):
        os.closerange(number + 1, following)


def _avoid_out_of_memory_killer() -> None:
    """The sandbox outlives its processes. Where that is not permitted, its shells offer themselves first.

    By oom_adj (-17 is -1000), because what a privileged process writes to oom_score_adj is also the least that all of
    its descendants may write there themselves.
    """
    usual = Path("/proc/self/oom_score_adj").read_text()
    try:
        Path("/proc/self/oom_score_adj").write_text("500")
        Path("/proc/self/oom_adj").write_text("-17")
    except OSError:  # no CAP_SYS_RESOURCE, or no such file any more
        Path("/proc/self/oom_score_adj").write_text(usual)

"""The starter: a small process, exec'd early with nothing in it, from which every sandbox of an owner is forked.

Forking a small process costs the same whatever the owner grows to, and pid 1 inherits no secret. One first process is
kept prepared for the next start. When the owner dies, the starter ends its sandboxes and removes their control
groups: nobody else would.
"""

# ruff: noqa: PTH123, PTH208

import dataclasses
import gc
import os
import resource
import select
import signal
import socket
import time
from typing import NoReturn

from . import cgroups, etc, first, identity, init, root, seccomp, snapshot, sources, syscalls, wire

_ADVICE = "`python -m minisandbox_ray doctor` says what would help; `isolation: best-effort` does without"


def main(descriptor: int) -> None:
    """Serve the owner at the other end of this socket until it is gone."""
    if os.fork():  # not a child of the owner: what kills an owner's children must not kill its reaper
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    owner = socket.socket(fileno=descriptor)
    received = wire.receive(owner)
    if received is None:
        return
    message, (handle,) = received
    starter = _Starter(message["owner"])
    poller = select.poll()
    poller.register(owner, select.POLLIN)
    poller.register(handle, select.POLLIN)  # a forked child of the owner may hold the socket longer than the owner
    while handle not in [ready for ready, _ in poller.poll()]:
        received = wire.receive(owner)
        if received is None:
            break
        starter.serve(*received)
    owner.close()
    starter.close()


class _Starter:
    def __init__(self, owner: str) -> None:
        self.owner = owner
        syscalls.hide_command_line(f"minisandbox starter of {owner.split('-')[1]}")
        cgroups.sweep(owner)
        self.hierarchies = cgroups.hierarchies()
        etc.common_files()
        self.failure = ""
        self.identities: dict[identity.Kind, identity.Identity] = {}
        try:
            self.identities = identity.find()
        except OSError as error:
            self.failure = f"this user gets no user namespace ({error.strerror})"
        if os.geteuid() == 0 and "own" not in self.identities:
            syscalls.set_dumpable(False)
        self.copies = bool(self.identities) and not root.can_overlay(next(iter(self.identities.values())))
        self.filter = seccomp.build_filter(syscalls.MACHINE)
        # what holds for every sandbox and hinders no mount is done once, here
        syscalls.set_no_new_privileges()
        syscalls.adopt_orphans()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        gc.disable()
        gc.freeze()
        self.spare: socket.socket | None = None
        self._refill()

    def _usual_kind(self) -> first.Kind:
        return first.Kind(next(iter(self.identities.values())), True, self.hierarchies, self.filter, self.copies)

    def _refill(self) -> None:
        if self.identities:
            self.spare = self._fork(self._usual_kind())

    def _fork(self, kind: first.Kind) -> socket.socket:
        """A new first process, which prepares itself and waits; -> the socket that takes its plan"""
        ours, theirs = wire.channel()
        name = cgroups.new_name(self.owner)
        if os.fork() == 0:
            ours.close()
            first.main(theirs, kind, name)
        theirs.close()
        return ours

    def serve(self, plan: wire.Message, descriptors: list[int]) -> None:
        """Have the plan carried out; what comes of it is told over the first of the descriptors."""
        try:
            if not self.identities:
                raise OSError(f"{self.failure}: {_ADVICE}")
            if plan["op"] == "snapshot":
                if os.fork() == 0:
                    self._take_snapshot(plan, descriptors)
                return
            if plan["isolation"] == "strict" and not self._usual_kind().identity.is_strict:
                raise OSError(f"root gets no user namespaces here: {_ADVICE}")
            self._start(plan, descriptors)
        except sources.StaleError:
            with socket.socket(fileno=os.dup(descriptors[0])) as control:
                wire.send(control, {"stale": True})
        except OSError as error:
            with socket.socket(fileno=os.dup(descriptors[0])) as control:
                first.report(control, str(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _start(self, plan: wire.Message, descriptors: list[int]) -> None:
        try:
            mounts = sources.clone(plan, self._usual_kind().identity)
        except sources.UnmappableError:  # and so it will be with what comes from there next
            del self.identities["shifted"]
            if self.spare:
                self.spare.close()
                self.spare = None
            mounts = sources.clone(plan, self._usual_kind().identity)
        try:
            usual = self._usual_kind()
            kind = dataclasses.replace(
                usual,
                private_network=plan["network"] == "none",
                hierarchies=self.hierarchies if plan["groups"] else [],
            )
            control, *origin = descriptors
            message, sent = {**plan, "mounts": len(mounts)}, [control, *mounts, *origin]
            if self.spare and kind == usual:
                try:
                    wire.send(self.spare, message, sent)
                except OSError:  # somebody killed it
                    self._send_to_another(kind, message, sent)
                self.spare.close()
            else:
                self._send_to_another(kind, message, sent)
            if not self.spare or kind == usual:
                self._refill()
        finally:
            for mount in mounts:
                os.close(mount)

    def _send_to_another(self, kind: first.Kind, plan: wire.Message, descriptors: list[int]) -> None:
        with self._fork(kind) as process:
            wire.send(process, plan, descriptors)

    def _take_snapshot(self, plan: wire.Message, descriptors: list[int]) -> NoReturn:
        control = socket.socket(fileno=descriptors[0])
        try:
            taken = snapshot.take(descriptors[1:], plan)
            wire.send(control, {}, taken)
        except Exception as error:
            first.report(control, str(error) or type(error).__name__)
        finally:
            os._exit(0)

    def close(self) -> None:
        """Of an owner that is gone: end everything of its."""
        if self.spare:
            self.spare.close()
        _end_children()
        cgroups.remove_groups_of(self.owner)


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

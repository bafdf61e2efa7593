"""The starter: a small process, exec'd early with nothing in it, from which every sandbox of an owner is forked.

Forking a small process costs the same whatever the owner grows to, and pid 1 inherits no secret. One first process is
kept prepared for the next start. When the owner dies, the starter ends its sandboxes and removes their control
groups: nobody else would.
"""

# ruff: noqa: PTH119, PTH120, PTH123, PTH208

import contextlib
import dataclasses
import gc
import os
import resource
import select
import signal
import socket
import time
from typing import NamedTuple, NoReturn

from . import cgroups, confined, etc, first, identity, init, root, seccomp, snapshot, sources, syscalls, wire


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
    starter.poller.register(owner, select.POLLIN)
    starter.poller.register(handle, select.POLLIN)  # a forked child of the owner may hold the socket longer
    while handle not in (ready := [descriptor for descriptor, _ in starter.poller.poll()]):
        starter.bury(ready)
        if owner.fileno() not in ready:
            continue
        received = wire.receive(owner)
        if received is None:
            break
        starter.serve(*received)
    owner.close()
    starter.close()


class _Process(NamedTuple):
    """A first process that waits for its plan."""

    socket: socket.socket
    identity: identity.Identity

    def close(self) -> None:
        self.socket.close()
        if self.identity.namespace is not None:
            os.close(self.identity.namespace)


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
        self.keepers: dict[int, tuple[int, str]] = {}  # by pidfd: (pid, private directory)
        self.scratches: set[str] = set()
        self.poller = select.poll()
        self.filter = seccomp.build_filter(syscalls.MACHINE)
        # what holds for every sandbox and hinders no mount is done once, here
        syscalls.set_no_new_privileges()
        syscalls.adopt_orphans()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        gc.disable()
        gc.freeze()
        self.spare: _Process | None = None
        self._refill()

    def _usual_kind(self) -> first.Kind:
        return first.Kind(next(iter(self.identities.values())), True, self.hierarchies, self.filter, self.copies)

    def _refill(self) -> None:
        if self.identities:
            self.spare = self._fork(self._usual_kind())

    def _fork(self, kind: first.Kind) -> "_Process":
        """A new first process, which prepares itself and waits."""
        own = kind.identity.anew()
        ours, theirs = wire.channel()
        name = cgroups.new_name(self.owner)
        if os.fork() == 0:
            ours.close()
            first.main(theirs, dataclasses.replace(kind, identity=own), name)
        theirs.close()
        return _Process(ours, own)

    def serve(self, plan: wire.Message, descriptors: list[int]) -> None:
        """Have the plan carried out; what comes of it is told over the first of the descriptors."""
        try:
            if plan["confined"] or (plan.get("isolation") == "best-effort" and confined.is_needed()):
                self._confine(plan, descriptors)
                return
            if not self.identities:
                raise OSError(f"{self.failure}: {first.ADVICE}")
            if plan["op"] == "snapshot":
                if os.fork() == 0:
                    self._take_snapshot(plan, descriptors)
                return
            if plan["isolation"] == "strict" and not self._usual_kind().identity.is_strict:
                raise OSError(f"root gets no user namespaces here: {first.ADVICE}")
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
        usual = self._usual_kind()
        kind = dataclasses.replace(
            usual,
            private_network=plan["network"] != "host",
            hierarchies=self.hierarchies if plan["groups"] else [],
        )
        prepared = self.spare if kind == usual else None
        if prepared:
            self.spare = None
        process = prepared or self._fork(kind)
        try:
            self._send(process, plan, descriptors)
        except sources.UnmappableError:  # and so it will be with what comes from there next
            del self.identities["shifted"]
            if self.spare:
                self.spare.close()
                self.spare = None
            self._start(plan, descriptors)
        except ConnectionError:  # somebody killed it
            if not prepared:
                raise
            self._start(plan, descriptors)
        finally:
            process.close()
            if not self.spare:
                self._refill()

    @staticmethod
    def _send(process: "_Process", plan: wire.Message, descriptors: list[int]) -> None:
        mounts = sources.clone(plan, process.identity)
        try:
            control, *origin = descriptors
            wire.send(process.socket, {**plan, "mounts": len(mounts)}, [control, *mounts, *origin])
        finally:
            for mount in mounts:
                os.close(mount)

    def _confine(self, plan: wire.Message, descriptors: list[int]) -> None:
        if plan["scratch"] not in self.scratches:
            self.scratches.add(plan["scratch"])
            confined.remove_of(cgroups.is_left, plan["scratch"])
        filters = [self.filter, seccomp.build_shared_filter(syscalls.MACHINE, network=plan.get("network") == "host")]
        hierarchies = self.hierarchies if plan.get("groups") else []
        name = cgroups.new_name(self.owner)
        pid, directory = confined.start(plan, descriptors, name, hierarchies=hierarchies, filters=filters)
        with contextlib.suppress(ProcessLookupError):  # it failed already
            handle = os.pidfd_open(pid)
            self.keepers[handle] = pid, directory
            self.poller.register(handle, select.POLLIN)

    def bury(self, ready: list[int]) -> None:
        """Of confined sandboxes whose keeper has ended: what it left, if somebody killed it."""
        for handle in self.keepers.keys() & ready:
            _, directory = self.keepers.pop(handle)
            self.poller.unregister(handle)
            os.close(handle)
            if os.path.lexists(directory):
                _end_children({pid for pid, _ in self.keepers.values()})
                confined.remove_of(os.path.basename(directory).__eq__, os.path.dirname(directory))

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
        _end_children(set())
        for scratch in self.scratches:
            confined.remove_of(cgroups.names_of(self.owner), scratch)
        cgroups.remove_groups_of(self.owner)


def _end_children(spared: set[int]) -> None:
    """Kill all other children, the first processes of sandboxes and orphans of confined ones, until none is left."""
    me = str(os.getpid())
    while True:
        children = 0
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = file.read().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if parent == me and int(name) not in spared:
                children += 1
                init.kill(int(name), signal.SIGKILL)
        if not children:
            return
        time.sleep(0.005)

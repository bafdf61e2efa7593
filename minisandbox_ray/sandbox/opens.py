"""Tells whether a file, or which file of a directory, was opened since that was asked for.

Somebody inside may open files without end: no more is read than the kernel had queued when it was asked for. What does
not fit its queue is lost; then every file counts as opened. One inotify instance per process: a user may have few (128
by default), and closing one waits for the kernel for ms.
"""

import os
import struct
import threading

from .starter import syscalls

_READS = 17  # of 64 KiB: the kernel queues 16,384 events by default, of up to 64 bytes with a short name
_EVENT = struct.Struct("iIII")  # inotify(7): watch, mask, cookie, length of the name that follows


class _Watcher:
    def __init__(self) -> None:
        self.descriptor = syscalls.inotify()
        self.lock = threading.Lock()
        self.opened: dict[int, bytes] = {}
        self.watches: set[int] = set()

    def read(self) -> None:
        for _ in range(_READS):
            try:
                events = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            at = 0
            while at < len(events):
                watch, mask, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size + length
                if watch < 0:  # the queue ran over
                    self.opened = {**dict.fromkeys(self.watches, b""), **self.opened}
                elif mask & syscalls.IN_OPEN:
                    self.opened[watch] = events[at - length : at].rstrip(b"\0")


_watcher: _Watcher | None = None
_watcher_lock = threading.Lock()


def _forget() -> None:
    """A forked child shares the instance with its parent, and would take its events."""
    global _watcher, _watcher_lock
    _watcher, _watcher_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


class OpenWatch:
    """Of one file or directory. Raises OSError where the kernel has no watch to give."""

    def __init__(self, path: str) -> None:
        global _watcher
        with _watcher_lock:
            if _watcher is None:
                _watcher = _Watcher()
            self._watcher = _watcher
        with self._watcher.lock:
            self._watch = syscalls.add_open_watch(self._watcher.descriptor, path)
            self._watcher.watches.add(self._watch)

    def arm(self) -> None:
        """Look for the next opening."""
        watcher = self._watcher
        with watcher.lock:
            watcher.read()
            watcher.opened.pop(self._watch, None)

    def opened(self) -> bytes | None:
        """The name that was opened last in a directory, empty for a file; None if nothing was since `arm`."""
        watcher = self._watcher
        with watcher.lock:
            watcher.read()
            return watcher.opened.get(self._watch)

    def close(self) -> None:
        with self._watcher.lock:
            syscalls.remove_watch(self._watcher.descriptor, self._watch)
            self._watcher.watches.discard(self._watch)
            self._watcher.read()
            self._watcher.opened.pop(self._watch, None)

"""Between steps somebody must read the terminals, or a background job that prints blocks on a full one.

One thread per process for all of them; head and tail of what it reads are kept for the next step's output.
"""

import os
import select
import threading

from .capture import Capture


class Master:
    """The master side of a pseudo-terminal: read by its session during a step, by the drain thread between steps."""

    def __init__(self, descriptor: int, kept_limit: int) -> None:
        os.set_blocking(descriptor, False)
        self._kept: Capture | None = None
        self._kept_limit = kept_limit
        self.descriptor = descriptor
        self._drain = _shared_drain()
        self._lock = threading.Lock()
        self._idle = False
        self._drain.terminals[descriptor] = self
        self._drain.epoll.register(descriptor, select.EPOLLONESHOT)

    def close(self) -> None:
        with self._lock:
            self._idle = False
            self._drain.epoll.unregister(self.descriptor)
            del self._drain.terminals[self.descriptor]
            os.close(self.descriptor)

    def leave(self) -> None:
        """A step is over: the drain thread reads from now on."""
        with self._lock:
            self._idle = True
            self._arm()

    def take(self) -> Capture | None:
        """A step begins: nobody else reads after this returns. -> what was read between steps, if anything"""
        with self._lock:
            self._idle = False
            # one-shot with no event: a hang-up is told once, not for ever
            self._drain.epoll.modify(self.descriptor, select.EPOLLONESHOT)
            kept, self._kept = self._kept, None
            return kept

    def _arm(self) -> None:
        self._drain.epoll.modify(self.descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def read_idle(self) -> None:
        """By the drain thread."""
        with self._lock:
            if not self._idle:
                return
            try:
                for _ in range(16):
                    data = os.read(self.descriptor, 1 << 16)
                    if not data:
                        return
                    self._kept = self._kept or Capture(self._kept_limit)
                    self._kept.add(data)
            except BlockingIOError:
                pass
            except OSError:  # the sandbox is gone
                return
            self._arm()


class _Drain:
    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.terminals: dict[int, Master] = {}
        threading.Thread(target=self._run, name="minisandbox-drain", daemon=True).start()

    def _run(self) -> None:
        while True:
            for descriptor, _ in self.epoll.poll():
                terminal = self.terminals.get(descriptor)
                if terminal is not None:
                    terminal.read_idle()


_drain: _Drain | None = None
_drain_lock = threading.Lock()


def _shared_drain() -> _Drain:
    global _drain
    with _drain_lock:
        if _drain is None:
            _drain = _Drain()
        return _drain


def _forget() -> None:
    """A forked child has no drain thread."""
    global _drain, _drain_lock
    _drain, _drain_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)

"""What nobody waits for when a sandbox has ended: giving back its files, hundreds of MiB at times, and its groups.

One thread per process. What it has not done when the process ends, the kernel and the starter do.
"""

import os
import queue
import threading
from collections.abc import Iterable

from .groups import Groups

_Work = tuple[list[int], Groups]
_pending: queue.SimpleQueue[_Work] | None = None
_lock = threading.Lock()


def dispose(descriptors: Iterable[int], groups: Groups) -> None:
    """Close the descriptors and remove the control groups of a sandbox whose processes are gone, soon."""
    global _pending
    with _lock:
        if _pending is None:
            _pending = queue.SimpleQueue()
            threading.Thread(target=_run, args=(_pending,), name="minisandbox-disposal", daemon=True).start()
    _pending.put((list(descriptors), groups))


def _run(pending: "queue.SimpleQueue[_Work]") -> None:
    while True:
        descriptors, groups = pending.get()
        for descriptor in descriptors:
            os.close(descriptor)
        groups.close()


def _forget() -> None:
    """A forked child has no such thread; what was pending is the parent's."""
    global _pending, _lock
    _pending, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)

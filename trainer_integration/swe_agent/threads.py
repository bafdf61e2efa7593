"""Blocking work for coroutines, in threads that no event loop owns."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from queue import SimpleQueue

_MOST_IDLE = 16
_idle: list[SimpleQueue[Callable[[], None]]] = []
os.register_at_fork(after_in_child=_idle.clear)  # its threads are not there


async def in_thread[T](
    work: Callable[[], T],
    *,
    cancel: Callable[[], object] | None = None,
    discard: Callable[[T], object] | None = None,
) -> T:
    """What `work` returns or raises, from a daemon thread.

    Unlike asyncio's own threads, neither the end of the loop nor that of the interpreter waits for it. When the caller
    is cancelled, that is told at once; `cancel` then runs in a thread, and `discard` gets what `work` may yet return.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            try:
                future.set_exception(error)
            except InvalidStateError:
                pass
            return
        try:
            future.set_result(result)
        except InvalidStateError:
            if discard:
                discard(result)

    _start(run)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if future.cancel():
            if cancel:
                threading.Thread(target=cancel, daemon=True).start()
        elif discard and not future.exception():
            discard(future.result())
        raise


def _start(run: Callable[[], None]) -> None:
    """In a thread that is idle, or a new one; that costs a tenth of a millisecond."""
    try:
        jobs = _idle.pop()
    except IndexError:
        jobs = SimpleQueue()
        threading.Thread(target=_serve, args=(jobs,), daemon=True).start()
    jobs.put(run)


def _serve(jobs: "SimpleQueue[Callable[[], None]]") -> None:
    while True:
        jobs.get()()
        if len(_idle) >= _MOST_IDLE:
            return
        _idle.append(jobs)

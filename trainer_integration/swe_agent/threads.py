"""Blocking work for coroutines, in threads that no event loop owns."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError


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

    threading.Thread(target=run, daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if future.cancel() or future.cancelled():
            if cancel:
                threading.Thread(target=cancel, daemon=True).start()
        elif discard and not future.exception():
            discard(future.result())
        raise

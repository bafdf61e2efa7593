import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from minisandbox_ray.cluster import ClusterConfig, Connection, Lease, Pool
from minisandbox_ray.errors import ArchiveError, ClusterError, SandboxError, TaskError

from .counter import Counter, Deadly, Unprepared


def until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def used(pool: Pool) -> int:
    return sum(node["used"] for node in pool.stats()["nodes"].values())


def fill(pool: Pool) -> list[Lease]:
    return [pool.acquire_sync(None) for _ in range(pool.capacity)]


def test_leases_spread_evenly_over_workers(pool: Pool) -> None:
    leases = [pool.acquire_sync(None) for _ in range(2)]
    assert len({lease.worker_id for lease in leases}) == 2


def test_calls_keep_state_and_raise_typed_errors(pool: Pool) -> None:
    lease = pool.acquire_sync(None, {"start": 5})
    assert [lease.call_sync("add")[0] for _ in range(2)] == [6, 7]
    with pytest.raises(TaskError, match="the task is broken"):
        lease.call_sync("fail")
    assert lease.call_sync("add")[0] == 8


def test_every_event_loop_and_thread_may_call(pool: Pool) -> None:
    lease = asyncio.run(pool.acquire(None))
    assert asyncio.run(lease.call("add"))[0] == 1
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(asyncio.run(lease.call("add"))[0]))
    thread.start()
    thread.join()
    assert counts == [2]
    assert lease.call_sync("add")[0] == 3


def test_ended_object_frees_its_slot_without_release(pool: Pool, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    lease = pool.acquire_sync(None, {"notes": notes})
    assert lease.call_sync("finish") == "done"
    assert until(lambda: used(pool) == 0)
    assert notes.read_text() == "closed\n"
    with pytest.raises(ClusterError, match="has ended"):
        lease.call_sync("add")


def test_waiters_are_served_in_order(pool: Pool) -> None:
    leases = fill(pool)
    served: list[int] = []

    async def wait(number: int) -> None:
        lease = await pool.acquire(None)
        served.append(number)
        lease.release()

    async def main() -> None:
        waiters = [asyncio.create_task(wait(number)) for number in range(6)]
        assert await asyncio.to_thread(until, lambda: pool.stats()["waiting"] == 6)
        leases[0].release()
        await asyncio.gather(*waiters)

    asyncio.run(main())
    assert served == list(range(6))


def test_no_slot_is_lost_by_timeout_or_cancellation(pool: Pool) -> None:
    async def main() -> None:
        for _ in range(50):
            tasks = [asyncio.create_task(pool.acquire(None)) for _ in range(2 * pool.capacity)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for lease in outcomes:
                if isinstance(lease, Lease):
                    lease.release()
        leases = [await pool.acquire(None) for _ in range(pool.capacity)]
        with pytest.raises(ClusterError, match="no sandbox slot was free"):
            await pool.acquire(None, timeout=0.05)
        for lease in leases:
            lease.release()

    asyncio.run(main())
    with_all = fill(pool)
    with pytest.raises(ClusterError, match="no sandbox slot was free"):
        pool.acquire_sync(None, timeout=0.05)
    for lease in with_all:
        lease.release()
    assert until(lambda: used(pool) == 0)
    assert pool.stats()["waiting"] == 0


def test_release_ends_a_running_call(pool: Pool) -> None:
    lease = pool.acquire_sync(None)

    async def main() -> None:
        call = asyncio.create_task(lease.call("wait", 60))
        await asyncio.sleep(0.2)
        lease.release()
        lease.release()
        with pytest.raises(SandboxError, match="closed while waiting"):
            await call

    asyncio.run(main())
    assert until(lambda: used(pool) == 0)


def test_lease_ends_at_its_deadline(local_cluster: Connection, tmp_path: Path) -> None:
    config = ClusterConfig(workers_per_node=1, sandboxes_per_worker=1, lease_seconds=0.5)
    with Pool(config, Counter, tmp_path) as pool:
        lease = pool.acquire_sync(None)
        with pytest.raises(SandboxError, match="closed while waiting"):
            lease.call_sync("wait", 60)
        with pytest.raises(ClusterError, match="held longer than lease_seconds"):
            lease.call_sync("add")
        assert pool.acquire_sync(None, timeout=20).call_sync("add")[0] == 1


def test_killed_worker_is_replaced(pool: Pool) -> None:
    leases = fill(pool)
    pids = [lease.call_sync("add")[1] for lease in leases]

    async def main() -> list[BaseException | float]:
        calls = [asyncio.create_task(lease.call("wait", 3)) for lease in leases]
        waiter = asyncio.create_task(pool.acquire(None))
        await asyncio.sleep(0.2)
        os.kill(pids[0], signal.SIGKILL)
        (await waiter).release()
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(main())
    for pid, outcome, lease in zip(pids, outcomes, leases, strict=True):
        assert isinstance(outcome, ClusterError if pid == pids[0] else float)
        assert (lease.ended is not None) == (pid == pids[0])
        lease.release()
    assert until(lambda: pool.capacity == 4 and used(pool) == 0)
    assert pool.stats()["lost_workers"] == 1
    assert pids[0] not in {lease.call_sync("add")[1] for lease in fill(pool)}


def test_killed_idle_worker_is_noticed(pool: Pool) -> None:
    lease = pool.acquire_sync(None)
    _, pid = lease.call_sync("add")
    lease.release()
    assert until(lambda: used(pool) == 0)
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: pool.stats()["lost_workers"] == 1 and pool.capacity == 4)


@pytest.mark.parametrize("number", [signal.SIGTERM, None])
def test_ending_worker_closes_what_it_hosts(pool: Pool, tmp_path: Path, number: signal.Signals | None) -> None:
    notes = tmp_path / "notes"
    lease = pool.acquire_sync(None, {"notes": notes})
    _, pid = lease.call_sync("add")
    if number is None:
        pool.close()
    else:
        os.kill(pid, number)
    assert until(lambda: notes.exists() and notes.read_text() == "closed\n")
    assert until(lambda: not Path(f"/proc/{pid}/exe").exists())


def test_closed_pool_refuses_and_wakes_waiters(pool: Pool) -> None:
    fill(pool)

    async def main() -> None:
        waiter = asyncio.create_task(pool.acquire(None))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(pool.close)
        with pytest.raises(ClusterError, match="pool was closed"):
            await waiter

    asyncio.run(main())
    with pytest.raises(ClusterError, match="pool is closed"):
        pool.acquire_sync(None)


def test_client_that_was_taken_for_dead_asks_again(pool: Pool) -> None:
    leases = fill(pool)
    for lease in leases:
        lease.call_sync("add")

    async def main() -> list[int]:
        waiters = [asyncio.create_task(pool.acquire(None)) for _ in range(4)]
        assert await asyncio.to_thread(until, lambda: pool.stats()["waiting"] == 4)
        ray.get(pool._scheduler.detach.remote(pool._client_id))
        again = await asyncio.gather(*waiters)
        return [(await lease.call("add"))[0] for lease in again]

    assert asyncio.run(main()) == [1] * 4
    assert all(lease.ended for lease in leases)
    with pytest.raises(ClusterError, match="took this client for dead"):
        leases[0].call_sync("add")


def test_missing_archive_is_an_archive_error(pool: Pool) -> None:
    lease = pool.acquire_sync("0" * 64)
    with pytest.raises(ArchiveError):
        lease.call_sync("add")


def test_node_that_cannot_host_is_one_line(local_cluster: Connection, tmp_path: Path) -> None:
    with pytest.raises(
        ClusterError, match=r"no sandbox worker starts on node .*: .*no sandbox on this machine"
    ) as caught:
        Pool(ClusterConfig(workers_per_node=1), Unprepared, tmp_path)
    assert "\n" not in str(caught.value)


def test_object_that_takes_its_worker_down_costs_only_that_lease(local_cluster: Connection, tmp_path: Path) -> None:
    config = ClusterConfig(workers_per_node=1, sandboxes_per_worker=1)
    with Pool(config, Deadly, tmp_path) as pool:
        with pytest.raises(ClusterError, match="was lost"):
            pool.acquire_sync(None).call_sync("anything")
        assert until(lambda: pool.capacity == 1)

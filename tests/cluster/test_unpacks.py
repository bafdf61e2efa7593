"""Environments come to a node under its unpack slots, each once, whoever asks and whoever leaves."""

import asyncio
from pathlib import Path

import pytest

from minisandbox_ray.cluster import ClusterConfig, Connection, Lease, Node, Pool
from minisandbox_ray.cluster.unpack import slots_for
from minisandbox_ray.errors import ArchiveError, ClusterError

from .archives import plant
from .counter import Counter
from .test_pool import until, used

MIB = 1 << 20


def in_use(pool: Pool, environment: str) -> int:
    """How many calls it takes; all leases of it are called at the same time."""

    async def main() -> int:
        leases = await asyncio.gather(*(pool.acquire(environment) for _ in range(4)))
        answers = await asyncio.gather(*(lease.call("add") for lease in leases))
        for lease in leases:
            lease.release()
        return sum(count for count, _ in answers)

    return asyncio.run(main())


def node_stats(pool: Pool) -> dict:
    (node,) = pool.stats()["nodes"].values()
    return node


def test_slots_follow_the_size_and_are_capped() -> None:
    node = Node("a", "10.0.0.1", cpus=8, unpack_slots=3)
    assert [slots_for(size, node) for size in (0, 512 * MIB, 512 * MIB + 1, 9999 * MIB)] == [1, 1, 2, 3]
    assert slots_for(None, node) == 3


def test_no_more_than_the_slots_at_a_time_and_prefetched_is_warm(pool: Pool, tmp_path: Path) -> None:
    many = [plant(tmp_path / "archives", f"many-{number}", kib=12 << 10) for number in range(6)]
    pool.prefetch(dict.fromkeys(many, 1))
    assert until(lambda: pool.stats()["unpacked_bytes"] >= 4 * 12 * MIB and not node_stats(pool)["unpacking"], 60)
    before = pool.stats()
    lease = pool.acquire_sync(many[0])
    assert lease.call_sync("add")[0] == 1
    assert lease.unpack_seconds == 0
    assert pool.stats()["unpacks"] == before["unpacks"] == 4  # as many as there are sandboxes
    lease.release()
    for environment in many[4:]:
        assert in_use(pool, environment) == 4
    assert pool.stats()["unpacks"] == 6
    node = node_stats(pool)
    assert 1 <= node["unpack_slots_peak"] <= node["unpack_slots"]
    assert node["unpack_bytes_peak"] <= node["unpack_slots"] * 13 * MIB


def test_two_drivers_want_one_environment(pool: Pool, tmp_path: Path) -> None:
    environment = plant(tmp_path / "archives", "both", kib=32 << 10)
    config = ClusterConfig(workers_per_node=2, sandboxes_per_worker=2)
    with Pool(config, Counter, tmp_path / "archives") as other:

        async def main() -> list[int]:
            return await asyncio.gather(*(asyncio.to_thread(in_use, each, environment) for each in (pool, other)))

        assert asyncio.run(main()) == [4, 4]
        assert 32 * MIB <= pool.stats()["unpacked_bytes"] + other.stats()["unpacked_bytes"] < 33 * MIB


def test_who_leaves_in_the_middle_of_an_unpack_loses_nothing(pool: Pool, tmp_path: Path) -> None:
    environment = plant(tmp_path / "archives", "left", kib=32 << 10)
    config = ClusterConfig(workers_per_node=1, sandboxes_per_worker=1)
    with Pool(config, Counter, tmp_path / "archives") as other:
        leaving = other.acquire_sync(environment)
    assert leaving.ended == "the pool was closed"

    async def cancel() -> None:
        for delay in (0.0, 0.001, 0.05):
            waiting = [asyncio.create_task(pool.acquire(environment)) for _ in range(8)]
            await asyncio.sleep(delay)
            for each in waiting:
                each.cancel()
            for lease in await asyncio.gather(*waiting, return_exceptions=True):
                if isinstance(lease, Lease):
                    call = asyncio.create_task(lease.call("add"))
                    await asyncio.sleep(0)
                    call.cancel()
                    lease.release()

    asyncio.run(cancel())
    assert until(lambda: used(pool) == 0 and pool.stats()["waiting"] == 0)
    assert in_use(pool, environment) == 4


def test_damaged_manifest_is_told_by_who_looks_for_another(pool: Pool, tmp_path: Path) -> None:
    environment = plant(tmp_path / "archives", "damaged")
    (tmp_path / "archives" / f"{environment}.json").write_text("{")
    lease = pool.acquire_sync(environment)
    with pytest.raises(ArchiveError, match="no sound archive"):
        lease.call_sync("add")
    lease.release()
    assert until(lambda: used(pool) == 0)


def test_last_worker_that_dies_leaves_waiters_waiting(local_cluster: Connection, tmp_path: Path) -> None:
    config = ClusterConfig(workers_per_node=1, sandboxes_per_worker=2)
    with Pool(config, Counter, tmp_path) as pool:

        async def main() -> int:
            leases = [await pool.acquire(None) for _ in range(2)]
            waiting = [asyncio.create_task(pool.acquire(None, slots=slots)) for slots in (1, 2)]
            with pytest.raises(ClusterError, match="was lost"):
                await leases[0].call("die")
            first = await waiting[0]
            count = (await first.call("add"))[0]
            first.release()
            return count + (await (await waiting[1]).call("add"))[0]

        assert asyncio.run(main()) == 2
        with pytest.raises(ClusterError, match="no worker hosts 3 slots: the largest has 2"):
            pool.acquire_sync(None, slots=3)

"""Episodes on four raylets under seeded faults, against the same episodes without any: every reward must be the same.

    python benchmarks/chaos.py [--episodes 2000] [--seed 0] [--one-raylet] [--json FILE]

Faults, one every few seconds: a sandbox's first process, a worker or a raylet (another one joins) is killed; an archive
that a node has fetched is corrupted; the server that archives come from sends too little, or sends slowly; the disk of
the stores is full for a while (root only: it is a small tmpfs in a mount namespace of this process's own). Stores are
small, so that environments come and go all the time.

With --one-raylet there is one fault: a raylet is killed while 200 episodes run at once.

- chaos_reward_mismatches: episodes whose reward differs from the run without faults.
- chaos_infra_share: of all episodes, those that ended as a typed failure of the infrastructure.
- chaos_leaks: what is left at the end: slots in use, processes, control groups, mounts, scratch directories.
"""

import argparse
import asyncio
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import procs
from archives import FIX, SMALL, clone_archives, make_task

SUBMIT = "```bash\nsubmit\n```"
ENVIRONMENTS = 12
AT_A_TIME = 24
STORE_GIB = 0.08
"""Holds three or four environments with their layers."""
DISK_MIB = 1024
PAUSE = 2.0
"""Seconds between two faults, on average."""
FAULTS = {"sandbox": 8, "worker": 5, "corrupt": 4, "truncate": 2, "slow": 2, "full": 2, "raylet": 2}
"""Each with its weight."""


class Archives:
    """An HTTP server over a directory of archives, which can send too little, or slowly."""

    def __init__(self, directory: Path) -> None:
        self.truncate = 0
        self.slow_until = 0.0
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def copyfile(self, source: Any, outputfile: Any) -> None:
                is_archive = self.path.endswith(".zst")
                left = 1 << 40
                if is_archive and outer.truncate > 0:
                    outer.truncate -= 1
                    left = 1 << 20
                with suppress(OSError):
                    while left > 0 and (piece := source.read(1 << 18)):
                        if is_archive and time.monotonic() < outer.slow_until:
                            time.sleep(0.05)  # 5 MB/s
                        outputfile.write(piece)
                        left -= len(piece)
                self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(directory)))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Chaos:
    """Faults, in the main thread: Ray starts raylets in no other."""

    def __init__(self, seed: int, raylets: Any, archives: Archives, nodes: Path, is_full_possible: bool) -> None:
        self._random = random.Random(seed)
        self._raylets, self._archives, self._nodes = raylets, archives, nodes
        self._weights = {kind: weight for kind, weight in FAULTS.items() if kind != "full" or is_full_possible}
        self.done: Counter[str] = Counter()

    def lose_a_raylet(self, pool: Any, busy: int, episodes: "Future[Any]") -> None:
        """Once so many slots are taken."""
        while in_use(pool) < busy and not episodes.done():
            time.sleep(0.05)
        self._raylets.remove_node(self._raylets.list_all_nodes()[-1], allow_graceful=False)
        self.done["raylet"] += 1

    def run(self, episodes: "Future[Any]") -> None:
        """One after the other, until the episodes are over."""
        while not wait([episodes], timeout=self._random.expovariate(1 / PAUSE)).done:
            kind = self._random.choices(list(self._weights), list(self._weights.values()))[0]
            if getattr(self, f"_{kind}")():
                self.done[kind] += 1

    def _sandbox(self) -> bool:
        return self._kill([pid for pid in ours() if is_init(pid)])

    def _worker(self) -> bool:
        return self._kill([pid for pid in ours() if title(pid).startswith("ray::SandboxWorker")])

    def _kill(self, victims: list[int]) -> bool:
        if victims:
            with suppress(OSError):
                os.kill(self._random.choice(sorted(victims)), signal.SIGKILL)
        return bool(victims)

    def _raylet(self) -> bool:
        others = [node for node in self._raylets.list_all_nodes() if node is not self._raylets.head_node]
        self._raylets.remove_node(self._random.choice(others), allow_graceful=False)
        self._raylets.add_node(**RAYLET)
        return True

    def _corrupt(self) -> bool:
        fetched = sorted(self._nodes.glob("*/archives/*.tar.zst"))
        if not fetched:
            return False
        victim = self._random.choice(fetched)
        with suppress(OSError):
            size = victim.stat().st_size
            with victim.open("r+b") as file:
                file.seek(self._random.randrange(max(size - 4096, 1)))
                file.write(os.urandom(512))
                if self._random.random() < 0.3:
                    file.truncate(size // 2)
        return True

    def _truncate(self) -> bool:
        self._archives.truncate += 2
        return True

    def _slow(self) -> bool:
        self._archives.slow_until = time.monotonic() + 4
        return True

    def _full(self) -> bool:
        filler = self._nodes.parent / "filler"
        free = os.statvfs(filler.parent)
        with suppress(OSError), filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize - (4 << 20), 4096))
        time.sleep(3)
        filler.unlink(missing_ok=True)
        return True


RAYLET: dict[str, Any] = {"num_cpus": 1, "resources": {"unpack_slots": 1, "sandbox": 8}}


def ours() -> list[int]:
    """Process ids of this process's cluster and its sandboxes, orphans included (see main)."""
    return procs.tree(os.getpid())


def title(pid: int) -> str:
    """What it calls itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def is_init(pid: int) -> bool:
    """Whether it is the first process of a sandbox that is in use (it has children)."""
    try:
        inside = Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].splitlines()[0].split()
        return len(inside) > 1 and inside[-1] == "1" and bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    except (OSError, IndexError):
        return False


def script(number: int, seed: int) -> tuple[int, list[str]]:
    """Of an episode: which environment, and the actions."""
    choice = random.Random(f"{seed}/{number}")
    environment = choice.randrange(ENVIRONMENTS)
    commands = [
        f"echo {number} > /tmp/note",
        "ls",
        "cat /tmp/note 2>/dev/null || true",
        "sleep 0.3; git status --short",
    ]
    actions = choice.sample(commands, choice.randint(1, 3))
    end = choice.choice([FIX, FIX, "sed -i 's/a - b/b - a/' calc.py", "true", "rm -r tests", "echo x >> calc.py"])
    actions.insert(choice.randint(0, len(actions)), end)
    return environment, [f"```bash\n{action}\n```" for action in actions] + [SUBMIT]


async def play(pool: Any, tasks: list[Any], episodes: int, seed: int, at_a_time: int) -> list[dict[str, Any]]:
    """All episodes; -> reward, failure and replays of each."""
    from minisandbox_ray.errors import MiniSandboxError
    from minisandbox_ray.rollout import EpisodeConfig, SandboxEnv
    from minisandbox_ray.tasks import GradingConfig

    configs = [EpisodeConfig(grading=GradingConfig(cache=cache), replays=3) for cache in (True, False)]
    slots = asyncio.Semaphore(at_a_time)

    async def episode(number: int) -> dict[str, Any]:
        environment, actions = script(number, seed)
        async with slots:
            env = SandboxEnv(pool, configs[number % 10 == 0])
            try:
                await env.areset(tasks[environment], seed=number)
                for action in actions:
                    _, reward, terminated, truncated, info = await env.astep(action)
                    if terminated or truncated:
                        return {
                            "reward": reward,
                            "failure": info["failure_owner"],
                            "why": info["failure"] or str(info.get("graded", {}))[:2000],
                            **info["replay"],
                        }
                raise RuntimeError("the episode did not end")
            except MiniSandboxError as error:
                return {"reward": 0.0, "failure": error.owner, "why": str(error), "count": 0, "diverged_turns": []}
            finally:
                await env.aclose()

    return await asyncio.gather(*(episode(number) for number in range(episodes)))


@contextmanager
def four_raylets(directory: Path, sandboxes: int) -> Iterator[Any]:
    """A cluster of this process's own, with room for so many sandboxes on each node."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_TMPDIR"] = str(directory)
    RAYLET["resources"]["sandbox"] = sandboxes
    raylets = Cluster(initialize_head=True, head_node_args={**RAYLET, "include_dashboard": False})
    try:
        for _ in range(3):
            raylets.add_node(**RAYLET)
        raylets.wait_for_nodes()
        ray.init(address=raylets.address, log_to_driver=False, logging_level="error")
        yield raylets
    finally:
        ray.shutdown()
        raylets.shutdown()


def one_run(
    tasks: list[Any],
    episodes: int,
    seed: int,
    cache: Path,
    archives: Archives,
    *,
    faults: str,
    can_fill: bool,
    at_once: bool,
) -> dict[str, Any]:
    """All episodes on a cluster of their own. ``faults``: "none", "all", or "raylet"."""
    from minisandbox_ray.cluster import ClusterConfig
    from minisandbox_ray.rollout import EpisodePool

    scratch = 0
    at_a_time, sandboxes = (episodes, episodes // 4 + 8) if at_once else (AT_A_TIME, AT_A_TIME // 3)
    directory = Path(tempfile.mkdtemp(prefix="mc-", dir="/tmp"))
    try:
        with four_raylets(directory, sandboxes) as raylets:
            config = ClusterConfig(workers_per_node=2, store_gib=STORE_GIB)
            with EpisodePool(config, archives.url) as pool:
                chaos = Chaos(seed, raylets, archives, cache / "nodes", can_fill)
                begin = time.monotonic()
                with ThreadPoolExecutor(1) as thread:
                    playing = thread.submit(lambda: asyncio.run(play(pool, tasks, episodes, seed, at_a_time)))
                    if faults == "all":
                        chaos.run(playing)
                    elif faults == "raylet":
                        chaos.lose_a_raylet(pool, episodes, playing)
                    outcomes = playing.result()
                seconds = time.monotonic() - begin
                deadline = time.monotonic() + 30
                while ((used := in_use(pool)) or (scratch := unfinished(pool, cache))) and time.monotonic() < deadline:
                    time.sleep(0.2)
                stats = pool.stats()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "outcomes": outcomes,
        "seconds": seconds,
        "faults": dict(chaos.done),
        "stats": {name: stats[name] for name in ("lost_workers", "unpacks", "failures", "waiting")},
        "slots_left": used,
        "scratch_left": scratch,
    }


def in_use(pool: Any) -> int:
    """Slots that are taken."""
    return sum(node["used"] for node in pool.stats()["nodes"].values())


def unfinished(pool: Any, cache: Path) -> int:
    """Half-made things in the stores of nodes that are there (the store of one that is gone goes as a whole, later)."""
    return sum(len(list(cache.glob(f"nodes/{node}/store/scratch/*"))) for node in pool.stats()["nodes"])


def left_behind(before: set[int]) -> dict[str, int]:
    """What this process's clusters left on the machine, after 15 s at most."""
    deadline = time.monotonic() + 15
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # orphans that have ended
                pass
        children = [pid for pid in ours() if pid != os.getpid() and pid not in before]
        groups = [path for path in Path("/sys/fs/cgroup").glob("**/minisandbox-*") if not owner_lives(path.name)]
        mounts = [
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if " overlay " in line and "minisandbox" in line
        ]
        found = {"processes": len(children), "groups": len(groups), "mounts": len(mounts)}
        if not any(found.values()) or time.monotonic() > deadline:
            return found
        time.sleep(0.3)


def owner_lives(group: str) -> bool:
    """Whether the process that a control group is named after is there: `minisandbox-<hash>-<pid>-…`."""
    numbers = [part for part in group.split("-")[1:] if part.isdigit()]
    return any(Path(f"/proc/{number}").exists() for number in numbers)


def run(episodes: int, seed: int, *, one_raylet: bool = False) -> dict[str, Any]:
    """The figures, by a child process in a mount namespace of its own where root may have one."""
    directory = Path(tempfile.mkdtemp(prefix="minisandbox-chaos-"))
    command = [sys.executable, __file__, "--episodes", str(episodes), "--seed", str(seed), "--inside", str(directory)]
    command += ["--one-raylet"] if one_raylet else []
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if done.returncode:
        raise SystemExit("the chaos run failed")
    return json.loads(done.stdout.splitlines()[-1])


def own_disk(place: Path) -> bool:
    """Mount a small tmpfs there, which nobody else sees; False where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() or libc.unshare(0x00020000):
        return False
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE: no mount leaves this namespace
    return not libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={DISK_MIB}m".encode())


def inside(episodes: int, seed: int, directory: Path, *, one_raylet: bool) -> dict[str, Any]:
    """Both runs, and what came of them."""
    cache = directory / "cache"
    cache.mkdir()
    can_fill = own_disk(cache)
    os.environ["MINISANDBOX_CACHE"] = str(cache)
    make_task(SMALL)
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        tasks = clone_archives(make_task(SMALL), ENVIRONMENTS)
        served = directory / "served"
        shutil.copytree(cache / "archives", served)
        shutil.rmtree(cache / "archives")  # the nodes get them from the server only
        archives = Archives(served)
        stack.callback(archives.close)
        before = set(ours())
        plain = one_run(tasks, episodes, seed, cache, archives, faults="none", can_fill=can_fill, at_once=one_raylet)
        shutil.rmtree(cache / "nodes", ignore_errors=True)
        faulty = one_run(
            tasks,
            episodes,
            seed,
            cache,
            archives,
            faults="raylet" if one_raylet else "all",
            can_fill=can_fill,
            at_once=one_raylet,
        )
        left = left_behind(before)
    pairs = list(zip(plain["outcomes"], faulty["outcomes"], strict=True))
    failed = [outcome for outcome in faulty["outcomes"] if outcome["failure"] not in (None, "agent")]
    mismatches = [
        (number, one, other)
        for number, (one, other) in enumerate(pairs)
        if other["failure"] in (None, "agent") and one["reward"] != other["reward"]
    ]
    figures["chaos_reward_mismatches"] = len(mismatches)
    figures["chaos_infra_share"] = len(failed) / episodes
    figures["chaos_leaks"] = faulty["slots_left"] + faulty["scratch_left"] + sum(left.values())
    figures["chaos_episodes"] = episodes
    figures["chaos_plain_failures"] = sum(one["failure"] not in (None, "agent") for one, _ in pairs)
    figures["chaos_rewarded"] = sum(one["reward"] for one, _ in pairs)
    figures["chaos_faults"] = faulty["faults"]
    figures["chaos_replayed"] = sum(outcome["count"] > 0 for outcome in faulty["outcomes"])
    figures["chaos_diverged"] = sum(bool(outcome["diverged_turns"]) for outcome in faulty["outcomes"])
    figures["chaos_stats"] = faulty["stats"]
    figures["chaos_seconds"] = {"without": plain["seconds"], "with": faulty["seconds"]}
    figures["chaos_left"] = {**left, "slots": faulty["slots_left"], "scratch": faulty["scratch_left"]}
    figures["chaos_examples"] = [outcome["why"] for outcome in failed[:5]] + [str(each) for each in mismatches[:5]]
    return figures


def main() -> int:
    """Print the figures; -> exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, help="how many (2000; 200 with --one-raylet)")
    parser.add_argument("--one-raylet", action="store_true", help="all at once, and one raylet is killed")
    parser.add_argument("--seed", type=int, default=0, help="of scripts and faults (0)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: whatever detaches itself stays in this process's tree
        figures = inside(arguments.episodes, arguments.seed, arguments.inside, one_raylet=arguments.one_raylet)
        print(json.dumps(figures))
        return 0
    episodes = arguments.episodes or (200 if arguments.one_raylet else 2000)
    figures = run(episodes, arguments.seed, one_raylet=arguments.one_raylet)
    print(json.dumps(figures, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    is_missed = figures["chaos_reward_mismatches"] or figures["chaos_leaks"] or figures["chaos_infra_share"] > 0.02
    return int(bool(is_missed))


if __name__ == "__main__":
    sys.exit(main())

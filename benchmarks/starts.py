"""How soon a sandbox answers its first command: alone, many at once, beside many, forked; and how soon it is gone."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from measure import Start, Timings, burst, close_all, quantile, seconds, starts_in_turns
from peers import bubblewrap, targz
from peers.podman import Podman
from report import Report, both, ms, shown

from minisandbox_ray.environments import Environment, NodeStore
from minisandbox_ray.sandbox import Sandbox, SandboxSpec

CONCURRENT = (8, 32, 128)
CROWD = 256
_CHANGE_1_MIB = "mkdir changed && for i in {1..16}; do head -c 65536 /dev/urandom > changed/$i; done"


def answered(box: Sandbox) -> Sandbox:
    """Once it has answered a command in its session."""
    try:
        result = box.run("echo ready")
        if result.output.strip() != "ready":
            raise RuntimeError(f"a sandbox answers {result.output!r}")
    except BaseException:
        box.close()
        raise
    return box


def start(spec: SandboxSpec) -> Sandbox:
    """From nothing to the first answered command."""
    return answered(Sandbox(spec))


def _bubblewrap_for(spec: SandboxSpec) -> Start | None:
    with start(spec) as box:
        return bubblewrap.starter(box)


def alone(report: Report, spec: SandboxSpec, podman: Podman | None, quick: bool) -> None:
    """One at a time; start and close."""
    bwrap = _bubblewrap_for(spec)
    starts: dict[str, tuple[Start, int]] = {"": (partial(start, spec), 20 if quick else 60)}
    if bwrap:
        starts["_bwrap"] = (bwrap, 20 if quick else 60)
    if podman:
        starts["_podman"] = (podman.start, 5 if quick else 20)
    timings = starts_in_turns(starts)
    for name, each in timings.items():
        report.record(name, each)
    unpaused = [seconds(lambda: start(spec).close()) for _ in range(20 if quick else 60)]
    ours = timings[""]
    what = "start to first answered command: p50 (p90)"
    for name, against in {"bwrap": bubblewrap.NAME, "podman": podman.name if podman else "podman"}.items():
        theirs = timings.get(f"_{name}")
        report.compare(what, ours.start, theirs.start if theirs else None, against, f"start_vs_{name}", both)
    report.figures["cycle_ms"] = ms(unpaused)
    report.row("start, answer, close, without a pause: p50 (p90)", both(unpaused))
    for name, against in {"bwrap": "bubblewrap, killed", "podman": "podman rm --force"}.items():
        theirs = timings.get(f"_{name}")
        report.compare("close: p50", ours.close, theirs.close if theirs else None, against, f"close_vs_{name}")


def at_once(report: Report, spec: SandboxSpec, podman: Podman | None, quick: bool) -> None:
    """Many started at the same moment; in rounds, ours and theirs in turns. No podman where it takes too long."""
    bwrap = _bubblewrap_for(spec)
    for count in CONCURRENT:
        starts: dict[str, Start] = {"": partial(start, spec)}
        if bwrap:
            starts["_bwrap"] = bwrap
        if podman and count <= (8 if quick else 32):
            starts["_podman"] = podman.start
        timings = {name: Timings() for name in starts}
        for turn in range(max(1, (48 if quick else 256) // count)):
            for name, kind in starts.items():
                if name != "_podman" or turn == 0:
                    burst(kind, count, timings[name])
        for name, each in timings.items():
            report.record(f"{count}{name}", each)
        ours = timings[""]
        each_one, all_of_them = f"{count} at once, each has answered: p50 (p90)", f"{count} at once, all have answered"
        for name, against in {"bwrap": "bubblewrap", "podman": "podman"}.items():
            if theirs := timings.get(f"_{name}"):
                report.compare(each_one, ours.start, theirs.start, against, f"start{count}_vs_{name}", both)
                report.compare(all_of_them, ours.ready, theirs.ready, against, f"ready{count}_vs_{name}")
        if len(timings) == 1:
            report.row(each_one, both(ours.start))
            report.row(all_of_them, shown(ms(ours.ready)))


def against_archives(report: Report, environment: Environment, archives: Path, scratch: Path, quick: bool) -> None:
    """The published method's preparation against ours, on a node that holds the environment and on one that doesn't."""
    spec, packed = environment.sandbox_spec(), scratch / "environment.tar.gz"
    targz.pack(environment.root, packed)
    numbers = iter(range(1000))

    def cold() -> Sandbox:
        store = NodeStore(scratch / f"store-{next(numbers)}")
        return start(store.materialise(environment.digest, archives).sandbox_spec())

    def unpack(copies: int = 1) -> ExitStack:
        targz.unpack(packed, [scratch / f"unpacked-{next(numbers)}" for _ in range(copies)])
        return ExitStack()  # the copies stay until all is measured: deleting them would disturb

    times = 1 if quick else 3
    timings = starts_in_turns({"warm": (partial(start, spec), 20), "cold": (cold, times), "targz": (unpack, times)})
    for name, each in timings.items():
        report.figures[f"reset_{name}_ms"] = ms(each.start)
    targz_s = timings["targz"].start
    report.compare("reset, warm node", timings["warm"].start, targz_s, targz.NAME, "warm_vs_targz")
    report.compare("reset, cold node: unpack once, start", timings["cold"].start, targz_s, targz.NAME, "cold_vs_targz")
    room = targz.copies_that_fit(scratch, environment.manifest.unpacked_bytes)
    _many_against_archives(report, spec, unpack, 4 if quick else 32, room)


def _many_against_archives(
    report: Report, spec: SandboxSpec, unpack: Callable[[int], object], copies: int, room: int
) -> None:
    """All that start in one step of a training. A quick run unpacks 4 copies, which tells nothing about 32."""
    ours = Timings()
    what = f"{copies} ready"
    if room < copies:
        return report.row(what, "", f"no room on the disk: {room} fit", None, targz.NAME)
    for _ in range(3):
        burst(partial(start, spec), copies, ours)
    theirs = [seconds(partial(unpack, copies))]
    for _ in range(3):
        burst(partial(start, spec), copies, ours)
    report.figures[f"ready{copies}_targz_ms"] = ms(theirs)
    report.compare(what, ours.ready, theirs, f"{copies} × {targz.NAME}", f"ready{copies}_vs_targz")
    if copies != 32:
        report.row("32 ready", "", "not measured", None, f"32 × {targz.NAME}: only in a full run")
    return None


def in_a_crowd(report: Report, spec: SandboxSpec, quick: bool) -> None:
    """Whether a start takes longer where many live."""
    times = 15 if quick else 40
    few, many = Timings(), Timings()

    def measure(into: Timings) -> None:
        timings = starts_in_turns({"": (partial(start, spec), times)})[""]
        into.start += timings.start

    lives = [start(spec)]
    try:
        measure(few)
        while len(lives) < CROWD:
            lives.append(start(spec))
        measure(many)
        close_all(lives[1:])
        del lives[1:]
        measure(few)
    finally:
        close_all(lives)
    report.figures |= {
        "start_beside_1_ms": ms(few.start),
        f"start_beside_{CROWD}_ms": ms(many.start),
        f"start{CROWD}_vs_1": quantile(many.start) / quantile(few.start),
    }
    report.row(
        f"start beside {CROWD} idle sandboxes",
        shown(ms(many.start)),
        shown(ms(few.start)),
        quantile(many.start) / quantile(few.start),
        "ours, beside 1 (ours over that)",
    )


def forks(report: Report, spec: SandboxSpec, quick: bool) -> None:
    """A sandbox with 1 MiB of changes, forked, until the fork answers."""
    with start(spec) as origin:
        if origin.run(_CHANGE_1_MIB).exit_code:
            raise RuntimeError("a sandbox could not write 1 MiB")
        times = 15 if quick else 40
        timings = starts_in_turns(
            {"fork": (lambda: answered(origin.fork()), times), "start": (partial(start, spec), times)}
        )
    fork, fresh = timings["fork"].start, timings["start"].start
    report.figures |= {"fork_ms": ms(fork), "fork_vs_start": quantile(fork) / quantile(fresh)}
    report.row(
        "fork with 1 MiB of changes, to first answered command",
        shown(ms(fork)),
        shown(ms(fresh)),
        quantile(fork) / quantile(fresh),
        "ours, a warm start (ours over that)",
    )

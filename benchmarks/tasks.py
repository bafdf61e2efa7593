"""Tasks and environments: what archives take and cost, and whether rewards are earned. Ratios of one machine.

    python benchmarks/tasks.py [--json FILE] [--only targz,image,tamper,factory,parity,auto_build] [--workers 2]

Disk is compared for the same ten environments (real_environments.py), built on first use into the cache.

- archive_vs_targz: bytes of our archives over the published method's (arXiv 2602.11210) `tar czf` of the same
  directories (at most 0.6).
- archive_vs_image: over what podman's storage takes for an image each: interpreter, venv and repository in a layer over
  a base of Debian's required packages and git, which is stored once for all (at most 0.05).
- materialise_vs_tarfile: the time of Python's tarfile for one rollout over ours for one node, of which all its rollouts
  live (at least 1).
- tamper_attacks, tamper_rewarded: attacks on the reward (tests/tasks/attacks.py; at least 25), and how many of them
  earned something or ran anything outside of a sandbox (none).
- factory_tasks: validated tasks that configs/factory.yaml makes from 12 packages (at least 100).
- parity_differences: statuses of tests that differ from those in containers (none); see parity.py.
- auto_build_share: see auto_build.py (at least 0.8).

The last three take long and run only where --only names them; what did not run is a null. Exit status 1 if a bar is
missed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import in_turns, quantile
from peers import podman as podman_module
from peers import targz
from real_environments import build_all
from report import print_bars

BARS = {
    "archive_vs_targz": ("<=", 0.6),
    "archive_vs_image": ("<=", 0.05),
    "materialise_vs_tarfile": (">=", 1),
    "tamper_attacks": (">=", 25),
    "tamper_rewarded": ("<=", 0),
    "factory_tasks": (">=", 100),
    "parity_differences": ("<=", 0),
    "auto_build_share": (">=", 0.8),
}
DEFAULT = "targz,image,tamper"
REPOSITORY = Path(__file__).parent.parent
TIMED = 3
"""Environments of which unpacking is timed: the smallest, the middle one and the largest."""


def part_targz(_: argparse.Namespace) -> dict[str, Any]:
    """Sizes of all, times of some."""
    from minisandbox_ray.environments import NodeStore, cache_root
    from minisandbox_ray.environments.archive import unpack

    archives, store = cache_root() / "archives", NodeStore(cache_root() / "store")
    manifests = sorted(build_all(log), key=lambda each: each.unpacked_bytes)
    timed = {manifests[0].digest, manifests[len(manifests) // 2].digest, manifests[-1].digest}
    theirs = 0
    rows: dict[str, dict[str, float]] = {}
    with store.scratch() as scratch:
        for manifest in manifests:
            with store.use(manifest.digest, archives) as environment:
                packed = scratch / "environment.tar.gz"
                targz.pack(environment.root, packed)
            row = rows[manifest.spec.describe()] = {
                "unpacked_bytes": manifest.unpacked_bytes,
                "archive_bytes": manifest.archive_bytes,
                "layers_bytes": manifest.packed_bytes - manifest.archive_bytes,
                "targz_bytes": packed.stat().st_size,
            }
            theirs += packed.stat().st_size
            alone = manifest.packed_bytes / row["targz_bytes"]
            log(f"{manifest.spec.describe()}: {alone:.2f} of tar.gz, shared layers counted in full")
            if manifest.digest in timed:

                def here(manifest: Any = manifest) -> None:
                    (scratch / "here").mkdir()
                    unpack(archives, manifest, scratch / "here")

                def there(packed: Path = packed) -> None:
                    targz.unpack(packed, [scratch / "there"])

                seconds: dict[str, list[float]] = {"here": [], "there": []}
                for _turn in range(TIMED):
                    for name, action in (("here", here), ("there", there)):
                        seconds[name] += in_turns({name: (action, 1)})[name]
                        shutil.rmtree(scratch / name)
                row |= {f"unpack_{name}_seconds": quantile(values) for name, values in seconds.items()}
            packed.unlink()
    times = [row for row in rows.values() if "unpack_here_seconds" in row]
    ours, layers = stored(manifests)
    return {
        "archive_vs_targz": ours / theirs,
        "materialise_vs_tarfile": sum(row["unpack_there_seconds"] for row in times)
        / sum(row["unpack_here_seconds"] for row in times),
        "archive_bytes": ours,
        "layers_bytes": layers,
        "targz_bytes": theirs,
        "environments": rows,
    }


def stored(manifests: list[Any]) -> tuple[int, int]:
    """-> (bytes of archives with the layers that they share, those of the layers)"""
    layers = sum({each.sha256: each.packed_bytes for manifest in manifests for each in manifest.layers}.values())
    return sum(each.archive_bytes for each in manifests) + layers, layers


def part_image(_: argparse.Namespace) -> dict[str, Any]:
    """What podman's storage grows by."""
    from minisandbox_ray.environments import NodeStore, cache_root
    from minisandbox_ray.environments.interpreters import inside_prefix

    archives, store = cache_root() / "archives", NodeStore(cache_root() / "store")
    manifests = build_all(log)
    with store.scratch() as scratch:
        base = scratch / "base.tar"
        make_base(scratch, base)
        with podman_module.engine(scratch / "podman", log) as podman:
            if podman is None:
                return {"archive_vs_image": None}
            empty = stored_bytes(scratch / "podman")
            podman.call("import", base, "debian-base")
            base_bytes = stored_bytes(scratch / "podman") - empty
            for manifest in manifests:
                with store.use(manifest.digest, archives) as environment:
                    context = scratch / "context"
                    context.mkdir()
                    version = inside_prefix(manifest.interpreter.version).lstrip("/")
                    command = ["tar", "-cf", context / "environment.tar", "-C", environment.root]
                    command += targz.contents(environment.root)
                    if environment.interpreter is not None:
                        command += ["-C", environment.interpreter, f"--transform=s,^[.]/,{version}/,", "./"]
                    subprocess.run(command, check=True)
                (context / "Containerfile").write_text("FROM debian-base\nADD environment.tar /\n")
                name = f"environment-{manifest.digest[:12]}"
                podman.call("build", "--quiet", "--isolation=chroot", "--tag", name, context)
                shutil.rmtree(context)
                log(f"{manifest.spec.describe()}: an image")
            images = stored_bytes(scratch / "podman") - empty
    ours, _ = stored(manifests)
    return {
        "archive_vs_image": ours / images,
        "image_bytes": images,
        "image_base_bytes": base_bytes,
        "archive_bytes": ours,
    }


def make_base(scratch: Path, target: Path) -> None:
    """A tar of Debian's required packages and git, unpacked without their maintainer scripts."""
    from minisandbox_ray.environments import system

    required = system._required_packages()
    names = [line.split()[1] for line in required.splitlines() if line.startswith("Package: ")]
    system._required_packages = lambda: ""  # so that they count as missing
    try:
        (scratch / "apt").mkdir()
        system.add_system_packages([*names, "git", "ca-certificates"], scratch / "base", scratch / "apt", "strict", log)
    finally:
        system._required_packages = lambda: required
    subprocess.run(["tar", "-cf", target, "-C", scratch / "base", "."], check=True)


def stored_bytes(place: Path) -> int:
    """What files take, as they say; names of one file count once."""
    seen: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(place):
        for name in names:
            info = os.lstat(os.path.join(folder, name))  # noqa: PTH118
            seen[info.st_dev, info.st_ino] = info.st_size
    return sum(seen.values())


def part_tamper(_: argparse.Namespace) -> dict[str, Any]:
    """Each attack as an agent would make it, graded as training does."""
    from minisandbox_ray.environments import EnvSpec, NodeStore, Source, build_environment, cache_root
    from minisandbox_ray.sandbox import Limits, Sandbox
    from minisandbox_ray.tasks import FactoryConfig, GradingConfig, Task, grade
    from minisandbox_ray.tasks.source import unified_patch

    sys.path.append(str(REPOSITORY / "tests"))
    from tasks.attacks import ATTACKS, BROKEN, CORE, FAIL_TO_PASS, FILES, HONEST, PASS_TO_PASS

    limits = Limits(memory_mib=512, disk_mib=128, pids=64)
    archives, store = cache_root() / "archives", NodeStore(cache_root() / "store")
    with tempfile.TemporaryDirectory(prefix="minisandbox-shop-") as place:
        for name, text in FILES.items():
            (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(place) / name).write_bytes(text.encode())
        purelib = "$(python -c \"import sysconfig; print(sysconfig.get_path('purelib'))\")"
        spec = EnvSpec(
            source=Source(kind="path", path=Path(place)),
            packages=list(FactoryConfig.model_fields["requirements"].get_default()),
            install=[f'echo /testbed > "{purelib}/testbed.pth"'],
        )
        manifest = build_environment(spec, archives, store)
        canary = Path(place) / "canary"
        task = Task(
            instance_id="shop__1.total",
            repo="shop",
            patch=unified_patch("shop/core.py", CORE, BROKEN),
            FAIL_TO_PASS=FAIL_TO_PASS,
            PASS_TO_PASS=PASS_TO_PASS,
            environment=manifest.digest,
        )
        outcomes: dict[str, dict[str, float]] = {"attacks": {}, "honest": {}}
        with store.use(manifest.digest, archives) as env:
            layer = store.derive(env, task.patch)
            for kind, change in [*(("attacks", each) for each in ATTACKS), *(("honest", each) for each in HONEST)]:
                diff = change.diff.replace("{canary}", str(canary))
                if change.commands:
                    with Sandbox(env.sandbox_spec(limits=limits, layer=layer)) as box:
                        for command in change.commands:
                            box.run(command.replace("{canary}", str(canary)), timeout=30)
                        diff = box.diff()
                found = grade(task, diff, env, layer, GradingConfig(limits=limits, timeout=30))
                outcomes[kind][change.name] = 1.0 if canary.exists() else found.reward
    return {
        "tamper_attacks": len(ATTACKS),
        "tamper_rewarded": sum(reward > 0 for reward in outcomes["attacks"].values()),
        "tamper_rewarded_names": [name for name, reward in outcomes["attacks"].items() if reward > 0],
        "honest_changes": len(HONEST),
        "honest_rewarded": sum(reward == 1 for reward in outcomes["honest"].values()),
        "honest_refused_names": [name for name, reward in outcomes["honest"].items() if reward != 1],
    }


def part_factory(_: argparse.Namespace) -> dict[str, Any]:
    """By its verb."""
    with tempfile.TemporaryDirectory(prefix="minisandbox-factory-") as place:
        out = Path(place) / "tasks.jsonl"
        command = [sys.executable, "-m", "minisandbox_ray", "factory", str(REPOSITORY / "configs/factory.yaml")]
        begin = time.monotonic()
        subprocess.run([*command, "--out", str(out)], check=False, stdout=sys.stderr)
        count = len(out.read_text().splitlines()) if out.exists() else 0
        return {"factory_tasks": count, "factory_seconds": time.monotonic() - begin}


def part_parity(_: argparse.Namespace) -> dict[str, Any]:
    """See parity.py."""
    import parity

    return parity.run(20)


def part_auto_build(arguments: argparse.Namespace) -> dict[str, Any]:
    """See auto_build.py."""
    with tempfile.TemporaryDirectory(prefix="minisandbox-auto-") as place:
        out = Path(place) / "figures.json"
        command = [sys.executable, str(Path(__file__).with_name("auto_build.py")), "--json", str(out)]
        subprocess.run([*command, "--workers", str(arguments.workers)], check=False, stdout=sys.stderr)
        figures = json.loads(out.read_text()) if out.exists() else {}
        return {"auto_build_share": figures.get("auto_build_share")}


PARTS = {
    "targz": part_targz,
    "image": part_image,
    "tamper": part_tamper,
    "factory": part_factory,
    "parity": part_parity,
    "auto_build": part_auto_build,
}


def log(line: str) -> None:
    """For who waits."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Print the figures; -> exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures by name to this file")
    parser.add_argument("--only", default=DEFAULT, help=f"parts to run, separated by commas ({DEFAULT})")
    parser.add_argument("--workers", type=int, default=2, help="of the automatic builder")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := sorted(set(wanted) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    figures: dict[str, Any] = dict.fromkeys(BARS)
    for part in wanted:
        figures |= PARTS[part](arguments)
        log(f"{part} {json.dumps({name: figures[name] for name in BARS if figures[name] is not None})}")
        if arguments.json:  # what was measured is there, whatever comes next
            arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    missed = print_bars(figures, BARS)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

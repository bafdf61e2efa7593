"""How environments are best packed: level, long-distance matching, threads, and what environments have in common.

    python benchmarks/packing.py [--json FILE] [--levels 3,10,19] [--only sizes,common]

Ten environments of real packages (real_environments.py), built on first use into the cache. Times are processor time:
wall time depends on what else runs. Sizes are sums over the environments.

- sizes: each environment's tar through zstd with each level, with and without long-distance matching. Level 19 takes
  minutes per environment and is tried on those that are small.
- common: what one archive each costs over files, or layers (package_layers.py), kept once for all; and over one solid
  stream of all of them with long-distance matching across 2 GiB, which no way of sharing would beat by much. All with
  level 10.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard
from real_environments import build_all
from rich.console import Console
from rich.table import Table

SMALL = 110 << 20
"""Bytes unpacked up to which level 19 is tried."""
CHUNK = 1 << 20


def plain_tar(tree: Path) -> bytes:
    """As archives are packed."""
    command = ["tar", "--create", "--format=gnu", "--sort=name", "--numeric-owner", "--owner=0", "--group=0"]
    done = subprocess.run([*command, f"--directory={tree}", "venv", "testbed"], capture_output=True, check=True)
    return done.stdout


def parameters(level: int, long: bool, threads: int = 0, window: int = 27) -> zstandard.ZstdCompressionParameters:
    """With long-distance matching the window is 2^27 bytes, which every decompressor takes."""
    more = {"enable_ldm": True, "window_log": window} if long else {}
    return zstandard.ZstdCompressionParameters.from_level(level, threads=threads, **more)


def packed_bytes(data: bytes, chosen: zstandard.ZstdCompressionParameters) -> tuple[bytes, float]:
    """-> (packed, seconds of processor time)"""
    begin = time.process_time()
    packed = zstandard.ZstdCompressor(compression_params=chosen).compress(data)
    return packed, time.process_time() - begin


def unpack_seconds(packed: bytes) -> float:
    """Processor time of decompressing alone; what tar takes is the same for all."""
    begin = time.process_time()
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
    for start in range(0, len(packed), CHUNK):
        decompressor.decompress(packed[start : start + CHUNK])
    return time.process_time() - begin


def part_sizes(trees: dict[str, Path], levels: list[int]) -> dict[str, Any]:
    """Of all environments together, and of the small ones."""
    rows: dict[str, dict[str, float]] = {}
    for name, tree in trees.items():
        data = plain_tar(tree)
        for level in levels:
            for long in (False, True):
                if level > 15 and len(data) > SMALL:
                    continue
                packed, seconds = packed_bytes(data, parameters(level, long))
                for group in ("all", "small") if len(data) <= SMALL else ("all",):
                    row = rows.setdefault(f"{group} {level}{' long' if long else ''}", {})
                    for key, value in {
                        "plain_bytes": len(data),
                        "bytes": len(packed),
                        "pack_seconds": seconds,
                        "unpack_seconds": unpack_seconds(packed),
                    }.items():
                        row[key] = row.get(key, 0) + value
        print(name, len(data) >> 20, "MiB", file=sys.stderr, flush=True)
    table = Table("", "plain MiB", "packed MiB", "share", "pack s", "unpack s", title="zstd, processor time")
    for name, row in rows.items():
        table.add_row(
            name,
            *(f"{row[key] / 2**20:.1f}" for key in ("plain_bytes", "bytes")),
            f"{row['bytes'] / row['plain_bytes']:.1%}",
            *(f"{row[key]:.1f}" for key in ("pack_seconds", "unpack_seconds")),
        )
    Console(width=110).print(table)
    return {"sizes": rows}


def files_of(tree: Path) -> Iterator[bytes]:
    """Contents of plain files."""
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.relative_to(tree).parts[0] in ("venv", "testbed"):
            yield path.read_bytes()


def layers_of(tree: Path) -> tuple[dict[str, bytes], bytes]:
    """-> (an environment's layers by hash, what is left for its archive), as plain tar."""
    from minisandbox_ray.environments.archive import Manifest
    from minisandbox_ray.environments.package_layers import find_groups, place_of_layers
    from minisandbox_ray.environments.tar import tar_pieces

    python = Manifest.model_validate_json((tree / "manifest.json").read_bytes()).interpreter.version
    place = place_of_layers(python)
    groups = find_groups(tree, python)
    layers = [b"".join(tar_pieces(tree / place, names)) for names in groups]
    elsewhere = {f"{place}/{name}" for names in groups for name in names}
    paths = (str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    rest = [path for path in paths if path.split("/")[0] in ("venv", "testbed") and path not in elsewhere]
    return {hashlib.sha256(layer).hexdigest(): layer for layer in layers}, b"".join(tar_pieces(tree, rest))


def part_common(trees: dict[str, Path], _: list[int]) -> dict[str, Any]:
    """Sharing."""
    chosen = parameters(10, long=False)
    each = solid = own = 0
    plain = once = 0
    seen: set[bytes] = set()
    layers: dict[str, int] = {}
    solid_packer = zstandard.ZstdCompressor(compression_params=parameters(10, long=True, window=31)).compressobj()
    for name, tree in trees.items():
        data = plain_tar(tree)
        each += len(packed_bytes(data, chosen)[0])
        solid += len(solid_packer.compress(data))
        for content in files_of(tree):
            plain += len(content)
            key = hashlib.sha256(content).digest()
            if key not in seen:
                seen.add(key)
                once += len(content)
        parts, rest = layers_of(tree)
        own += len(packed_bytes(rest, chosen)[0])
        for digest in parts.keys() - layers.keys():
            layers[digest] = len(packed_bytes(parts[digest], chosen)[0])
        print(name, file=sys.stderr, flush=True)
    solid += len(solid_packer.flush())
    layered = own + sum(layers.values())
    figures = {
        "one_each_bytes": each,
        "files_once_share": once / plain,
        "layers_once_bytes": layered,
        "layers_once_vs_one_each": layered / each,
        "solid_bytes": solid,
        "solid_vs_one_each": solid / each,
        "layers": len(layers),
    }
    table = Table("", "", title="What ten environments have in common")
    for key, value in figures.items():
        table.add_row(key, f"{value / 2**20:.1f} MiB" if key.endswith("bytes") else f"{value:.3g}")
    Console(width=110).print(table)
    return figures


PARTS = {"sizes": part_sizes, "common": part_common}


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures by name to this file")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, separated by commas")
    parser.add_argument("--levels", default="3,10,19", help="of zstd (3,10,19)")
    arguments = parser.parse_args()
    from minisandbox_ray.environments import NodeStore, cache_root

    manifests = build_all(lambda line: print(line, file=sys.stderr))
    store = NodeStore(cache_root() / "store")
    trees = {each.spec.describe(): store.materialise(each.digest, cache_root() / "archives").root for each in manifests}
    figures: dict[str, Any] = {}
    for part in arguments.only.split(","):
        figures |= PARTS[part](trees, [int(level) for level in arguments.levels.split(",")])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

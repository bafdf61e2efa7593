"""Which packages `auto_build.py` builds: a seeded draw from the most downloaded ones, written before any was built.

    python benchmarks/auto_build_select.py --names FILE [--seed 0] [--rank 5000] [--count 30] [--asked 30]
        [--without LIST …] [--whole] [--output LIST]

FILE lists the package index: tab-separated lines of name, version, month, rank among the most downloaded, summary.
Candidates are the names of a rank up to --rank, sorted, then shuffled with the seed. They are taken in this order; one
counts if its newest source distribution that is no pre-release is at most 2 MiB and ships files that pytest would look
into, test_*.py or *_test.py. With --whole, at least half of these must be whole: have a test, and import outright only
what the distribution ships, Python has, or is a name on the index (as the builder's own excuses tell it). That is read
off the archive; nothing is unpacked, built or run. None that counts is left out, whatever it may need, but those in the
lists that `--without` names: others were drawn from them.
The index is asked for at most `--asked` names, one in two seconds: a list may be shorter than `--count`. It is not
asked for names which tell that their projects are stubs or prebuilt libraries: these have no tests.

The lists beside this file were drawn with the seeds 0 to 6, each without those before it; from the third on also
without auto_build_practice.txt, packages that served to find kinds of failures with (chosen by hand, or drawn); the
fifth with --whole, the sixth and seventh with --whole and --rank 600: of what is used most.
"""

import argparse
import ast
import hashlib
import io
import random
import re
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks.automatic.excuses import Excuses
from minisandbox_ray.tasks.automatic.imports import local_modules, project_of, statements
from minisandbox_ray.tasks.automatic.index import Sdist, download, newest_sdist
from minisandbox_ray.tasks.automatic.tree import SourceTree, is_test_file, read_sdist

RANK = 5000
LARGEST = 2 << 20
NEVER = re.compile(r"(types|mypy-boto3|nvidia)-.*|.*-stubs")
"""Names of stubs and prebuilt libraries. The first two lists were drawn without this: none of these would count."""
PAUSE = 2.0
"""Seconds between two names."""


def candidates(names: Path, seed: int, rank: int = RANK) -> list[str]:
    """All names up to the rank that may have tests, in the order of the seed."""
    rows = (line.split("\t") for line in names.read_text(encoding="utf-8").splitlines()[1:])
    ranked = sorted(row[0] for row in rows if len(row) > 3 and row[3].isdigit() and int(row[3]) <= rank)
    random.Random(seed).shuffle(ranked)
    return [name for name in ranked if not NEVER.fullmatch(name)]


def listing(name: str, data: bytes) -> list[str]:
    """The paths in a source distribution."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.namelist()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def has_tests(paths: list[str]) -> bool:
    """Whether some file's name is one of pytest's."""
    return any(map(is_test_file, paths))


def is_whole(path: str, tree: SourceTree, index: Collection[str]) -> bool:
    """Whether a test file has a test, and all that it imports outright is to be had."""
    text = tree.text(path)
    body = statements(text)
    if body is None:  # it may be of an older Python
        return True
    if not re.search(r"^\s*(async )?def test|TestCase\b|^\s*>>> |^\s*class \w*Test", text, re.MULTILINE):
        return False
    modules = []
    for node in body:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            folder = path.split("/")[: -node.level]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            modules += [".".join([*folder, name]) for name in names if folder]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
    own = local_modules(tree)
    projects = {project_of(module) for module in modules if module.partition(".")[0] not in own} - {""}
    unknown = [name for name in projects if canonicalize_name(re.split(r"[\[<]", name)[0]) not in index]
    excuses = Excuses(tree, unknown)
    return not any(excuses.reason(f"E   No module named '{module}'") for module in modules)


def not_whole(path: Path, index: Collection[str]) -> str:
    """Why too few of a source distribution's test files are whole; empty if half of them are."""
    tree = read_sdist(path)
    files = [file for file in tree.texts if is_test_file(file)]
    broken = [file for file in files if not is_whole(file, tree, index)]
    return f"{len(broken)} of {len(files)} test files lack something" if len(broken) > len(files) / 2 else ""


def why_not(sdist: Sdist | None, index: Collection[str] = ()) -> tuple[str, bytes]:
    """The reason for which it does not count, empty if it does; and the file. Its tests must be whole if there is an
    index of all names."""
    if sdist is None:
        return "no source distribution", b""
    try:
        data = download(sdist, LARGEST)
        if not has_tests(listing(sdist.filename, data)):
            return "no tests", data
        if not index:
            return "", data
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / sdist.filename
            path.write_bytes(data)
            return not_whole(path, index), data
    except BuildError as error:
        return ("too large" if "larger than" in str(error) else str(error)), b""
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        return f"no archive: {error}", b""


def select(names: list[str], count: int, most_asked: int, index: Collection[str] = ()) -> Iterator[str]:
    """Lines of the list: name, version, sha256, time of upload."""
    found = 0
    for asked, name in enumerate(names[:most_asked]):
        if found == count:
            return
        time.sleep(PAUSE if asked else 0)
        sdist = newest_sdist(name)
        reason, data = why_not(sdist, index)
        print(f"{asked + 1:4} {name}: {reason or 'counts'}", file=sys.stderr, flush=True)
        if sdist is not None and not reason:
            found += 1
            sha256 = hashlib.sha256(data).hexdigest()
            yield f"{name} {sdist.version} {sha256} {sdist.uploaded.isoformat(timespec='seconds')}"
    if found < count:
        print(f"only {found} of {count}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rank", type=int, default=RANK)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--asked", type=int, default=30)
    parser.add_argument("--without", type=Path, nargs="*", default=[])
    parser.add_argument("--whole", action="store_true", help="only packages whose tests have what they import")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    used = {line.split()[0] for path in arguments.without for line in path.read_text().splitlines()}
    names = [name for name in candidates(arguments.names, arguments.seed, arguments.rank) if name not in used]
    rows = arguments.names.read_text(encoding="utf-8").splitlines() if arguments.whole else []
    index = {canonicalize_name(row.partition("\t")[0]) for row in rows}
    lines = list(select(names, arguments.count, arguments.asked, index))
    text = "".join(f"{line}\n" for line in lines)
    if arguments.output:
        arguments.output.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()

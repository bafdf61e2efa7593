"""Which packages `auto_build.py` builds: a seeded draw from the most downloaded ones, written before any was built.

    python benchmarks/auto_build_select.py --names FILE [--seed 0] [--count 30] [--asked 30] [--without LIST …]
        [--output LIST]

FILE lists the package index: tab-separated lines of name, version, month, rank among the most downloaded, summary.
Candidates are the names with a rank up to 5000, sorted, then shuffled with the seed. They are taken in this order; one
counts if its newest source distribution that is no pre-release is at most 2 MiB and ships a file that pytest would look
into, test_*.py or *_test.py. That is read off the archive's listing; nothing is unpacked, built or run. None that
counts is left out, whatever it may need, but those in the lists that `--without` names: others were drawn from them.
The index is asked for at most `--asked` names, one in two seconds: a list may be shorter than `--count`. It is not
asked for names which tell that their projects are stubs or prebuilt libraries: these have no tests.

The lists beside this file were drawn with the seeds 0 to 3, each without those before it; the third and the fourth also
without auto_build_practice.txt, packages that were chosen by hand to find kinds of failures with.
"""

import argparse
import hashlib
import io
import random
import re
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks.automatic.index import Sdist, download, newest_sdist

RANK = 5000
LARGEST = 2 << 20
NEVER = re.compile(r"(types|mypy-boto3|nvidia)-.*|.*-stubs")
"""Names of stubs and prebuilt libraries. The first two lists were drawn without this: none of these would count."""
PAUSE = 2.0
"""Seconds between two names."""


def candidates(names: Path, seed: int) -> list[str]:
    """All names of the rank that may have tests, in the order of the seed."""
    rows = (line.split("\t") for line in names.read_text(encoding="utf-8").splitlines()[1:])
    ranked = sorted(row[0] for row in rows if len(row) > 3 and row[3].isdigit() and int(row[3]) <= RANK)
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
    return any(re.search(r"(^|/)(test_[^/]*|[^/]*_test)\.py$", path) for path in paths)


def why_not(sdist: Sdist | None) -> tuple[str, bytes]:
    """The reason for which it does not count, empty if it does; and the file."""
    if sdist is None:
        return "no source distribution", b""
    try:
        data = download(sdist, LARGEST)
        return ("" if has_tests(listing(sdist.filename, data)) else "no tests"), data
    except BuildError as error:
        return ("too large" if "larger than" in str(error) else str(error)), b""
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        return f"no archive: {error}", b""


def select(names: list[str], count: int, most_asked: int) -> Iterator[str]:
    """Lines of the list: name, version, sha256, time of upload."""
    found = 0
    for asked, name in enumerate(names[:most_asked]):
        if found == count:
            return
        time.sleep(PAUSE if asked else 0)
        sdist = newest_sdist(name)
        reason, data = why_not(sdist)
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
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--asked", type=int, default=30)
    parser.add_argument("--without", type=Path, nargs="*", default=[])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    used = {line.split()[0] for path in arguments.without for line in path.read_text().splitlines()}
    names = [name for name in candidates(arguments.names, arguments.seed) if name not in used]
    lines = list(select(names, arguments.count, arguments.asked))
    text = "".join(f"{line}\n" for line in lines)
    if arguments.output:
        arguments.output.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()

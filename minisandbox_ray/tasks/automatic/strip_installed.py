"""Turns an installed project into its metadata alone: the code is imported from /testbed, where it may be changed.

Run inside a build with the project's name and the directory of its packages; on Python 3.6 and later.
"""

import csv
import re
import shutil
import sys
import sysconfig
from pathlib import Path


def _same(one: str, other: str) -> bool:
    return re.sub(r"[-_.]+", "-", one).lower() == re.sub(r"[-_.]+", "-", other).lower()


def main(name: str, root: str) -> None:
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for info in Path(site).glob("*.dist-info"):
            if _same(info.name.partition("-")[0], name):
                strip(Path(site), info, Path(root))


def strip(site: Path, info: Path, root: Path) -> None:
    with (info / "RECORD").open(newline="") as file:
        paths = [row[0] for row in csv.reader(file) if row]
    for path in paths:
        full = site / path
        if ".." in path or path.startswith("/") or info in full.parents or not full.is_file():
            continue
        place = root / path
        if not (root / path.partition("/")[0]).exists():
            continue  # all of it was made by the build, as of a package in another language
        if place.parent.is_dir() and not place.exists() and not path.endswith(".pyc"):
            shutil.move(str(full), str(place))
        elif place.exists() or path.endswith((".py", ".pyc")):
            full.unlink()
        for folder in full.parents:
            if site not in folder.parents or any(folder.iterdir()):
                break
            folder.rmdir()


if __name__ == "__main__":
    main(*sys.argv[1:])

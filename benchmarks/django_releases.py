"""Rows of SWE-bench for Django without Django's repository: their trees are made of what was released.

    python benchmarks/django_releases.py ROWS.parquet FOLDER [--per-version 2] [--seed 1]

A row's base commit is replaced by the source distribution of its version, of which the fix and the tests' change are
taken back (`git apply --reverse`): they are in the release, as what was developed as 4.1 is. Rows where that fails are
left out; of the others some of each version are drawn. FOLDER/mirror gets the commits, FOLDER/rows.jsonl the rows with
their names, for

    python -m minisandbox_ray build FOLDER/rows.jsonl --repo-mirror FOLDER/mirror --out FOLDER/tasks.jsonl
    python -m minisandbox_ray validate FOLDER/tasks.jsonl --timeout 900

This tries recipes, runner and grading on every version, and is no substitute for the repository: what was renamed
between commit and release is missing, and what was fixed twice passes without its fix.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

REPOSITORY = "django/django"


def git(repository: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run git with nothing of the user's settings but its objects."""
    settings = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost", "-c", "gc.auto=0"]
    return subprocess.run(
        ["git", *settings, *words], cwd=repository, input=given, capture_output=True, text=True, check=False
    )


def released(version: str, folder: Path) -> Path:
    """The tree of a release."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--no-build-isolation", f"--dest={folder}", f"Django=={version}"], check=True)
    (archive,) = folder.glob(f"*{version}.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (tree,) = (path for path in folder.iterdir() if path.is_dir())
    return tree


def commit(repository: Path, message: str) -> str:
    """Commit all that is staged."""
    git(repository, "commit", "--quiet", "--message", message).check_returncode()
    return git(repository, "rev-parse", "HEAD").stdout.strip()


def take_back(repository: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row on a commit of its own, above that of the release; without those whose patches don't apply."""
    start = git(repository, "rev-parse", "HEAD").stdout.strip()
    made = []
    for row in rows:
        git(repository, "reset", "--quiet", "--hard", start).check_returncode()
        applied = [git(repository, "apply", "--reverse", "--index", given=row[key]) for key in ("patch", "test_patch")]
        if any(done.returncode for done in applied):
            continue
        base = commit(repository, row["instance_id"])
        git(repository, "branch", "--force", row["instance_id"]).check_returncode()
        made.append({**row, "base_commit": base, "environment_setup_commit": base})
    git(repository, "reset", "--quiet", "--hard", start).check_returncode()
    return made


def main() -> None:
    """Write mirror and rows."""
    import pandas

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-version", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    by_version: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in pandas.read_parquet(arguments.rows).to_dict("records"):
        if row["repo"] == REPOSITORY:
            by_version[row["version"]].append(row)
    repository = arguments.folder / "mirror" / REPOSITORY.replace("/", "__")
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet", "--initial-branch=main").check_returncode()
    (repository / ".git/info/attributes").write_text("* -text\n")
    shuffle = random.Random(arguments.seed).shuffle
    chosen = []
    for version, rows in sorted(by_version.items()):
        for path in repository.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        scratch = arguments.folder / "release"
        scratch.mkdir()
        for path in released(version, scratch).iterdir():
            shutil.move(path, repository / path.name)
        shutil.rmtree(scratch)
        git(repository, "add", "--all", "--force").check_returncode()
        commit(repository, version)
        made = take_back(repository, rows)
        print(f"Django {version}: {len(made)} of {len(rows)} rows can be made", flush=True)
        shuffle(made)
        chosen += made[: arguments.per_version]
    with (arguments.folder / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in chosen)


if __name__ == "__main__":
    main()

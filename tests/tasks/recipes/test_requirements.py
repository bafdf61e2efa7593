from pathlib import Path

import pytest

from minisandbox_ray.environments import Source
from minisandbox_ray.environments.repository import Commit, find_commit
from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks.recipes.requirements import added_requirements, read_requirements

from .conftest import Mirror

FILES = {
    "requirements/dev.txt": "-r docs.txt\n-r ../min.txt  # x\n-e .\n.[test]\nbuild==0.10.0 \\\n  --hash=sha256:ab\n",
    "requirements/docs.txt": "sphinx==4.5.0\n    # via x\ntypes-pkg_resources==0.1.3\n-c pins.txt\n",
    "min.txt": "git+https://example.org/a.git\ncolorama; sys_platform == 'win32'  # Windows\n-r ../../../etc/passwd\n",
    "loop.txt": "a\n-r loop.txt\n",
}


@pytest.fixture
def commit(commit_to: Mirror, mirror: Path) -> Commit:
    name = commit_to("owner/name", FILES)
    return find_commit(Source(kind="git", repository="owner/name", commit=name), mirror)


def test_files_name_files(commit: Commit) -> None:
    found = read_requirements(commit, ["nothing.txt", "requirements/dev.txt"])
    assert found.lines == ["sphinx==4.5.0", "types-setuptools", "colorama; sys_platform == 'win32'", "build==0.10.0"]
    assert [note.split(" of ")[0] for note in found.notes] == [
        "left out: -c pins.txt",
        "left out: git+https://example.org/a.git",
        "left out: -r ../../../etc/passwd",
    ]


def test_a_file_that_names_itself_ends(commit: Commit) -> None:
    assert read_requirements(commit, ["loop.txt"]).lines == ["a"] * 6


def test_a_commit_without_such_a_file(commit: Commit) -> None:
    with pytest.raises(BuildError, match=r"owner/name at .* has none of the requirement files nothing\.txt"):
        read_requirements(commit, ["nothing.txt"])
    assert commit.read("min.txt") == FILES["min.txt"].encode()
    assert commit.read("requirements") is None
    assert commit.date == "2023-03-11T16:00:00+00:00"


def test_what_a_fix_adds() -> None:
    settings = [
        "-    astroid>=2.6.5",
        "+    astroid>=2.6.6",
        "+    appdirs >=1.4.0  # cache",
        "+line_length = 88",
        "+    six",
    ]
    code = ["+    tomli>=1"]
    files = {"setup.cfg": settings, "setup.py": ["+        \"toml[x]>=0.10,<1; python_version < '3'\","], "a.py": code}
    patch = "".join(
        f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n" + "\n".join(lines) + "\n"
        for name, lines in files.items()
    )
    assert added_requirements(patch) == ["appdirs >=1.4.0"]
    assert added_requirements(patch.replace("; python_version < '3'", "")) == ["appdirs >=1.4.0", "toml[x]>=0.10,<1"]

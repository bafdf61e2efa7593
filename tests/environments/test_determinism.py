"""The same inputs give the same archive, byte for byte, wherever, whenever and by whom it is built."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox_ray.environments import EnvSpec, NodeStore, Source, build_environment, find_interpreters
from minisandbox_ray.environments.git_index import settle_index

SETUP = """\
from setuptools import Extension, setup
setup(name="counting", version="1", py_modules=["count"], ext_modules=[Extension("_count", ["count.c"])])
"""
EXTENSION = """\
#include <Python.h>
#include <assert.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_count"};
PyMODINIT_FUNC PyInit__count(void) { assert(definition.m_name); return PyModule_Create(&definition); }
"""

ELSEWHERE = """
import ctypes, os, sys
from pathlib import Path
os.umask(0o077)
if os.geteuid() == 0:
    libc = ctypes.CDLL(None)
    assert libc.unshare(0x04000000) == 0 and libc.sethostname(b"elsewhere", 9) == 0
from minisandbox_ray.environments import EnvSpec, NodeStore, build_environment, cache_root
spec = EnvSpec.model_validate_json(sys.argv[1])
manifest = build_environment(spec, cache_root() / "archives", NodeStore(cache_root() / "store"))
print(manifest.archive_sha256, *(f"{each.sha256}:{each.packed_bytes}" for each in manifest.layers))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "tests").mkdir(parents=True)
    (folder / "setup.py").write_text(SETUP)
    (folder / "count.c").write_text(EXTENSION)
    for name in ("count.py", "tests/test_count.py", "tests/__init__.py"):
        (folder / name).write_text("ONE, TWO = 'one', ('two', 2)\n")
    return folder


def test_builds_in_two_places_give_the_same_bytes(
    index: None, project: Path, archives: Path, store: NodeStore, tmp_path: Path
) -> None:
    """Another disk (so inodes and directories in another order), cache, umask, host name, time zone, and later."""
    versions = [each.version for each in find_interpreters() if each.complete and not each.is_system]
    old = [version for version in versions if version.startswith(("3.8", "3.9", "3.10"))]
    spec = EnvSpec(
        python=(old or versions)[0],
        source=Source(kind="path", path=project),
        packages=["pygments==2.17.2"],  # what is compiled in another order tends to differ in this one
        install=["python setup.py -q develop"],
    )
    manifest = build_environment(spec, archives, store)
    memory = Path("/dev/shm")
    shelf = memory if os.access(memory, os.W_OK) else tmp_path
    cache = shelf / f"minisandbox-test-{os.getpid()}"
    environment = {**os.environ, "MINISANDBOX_CACHE": str(cache), "TZ": "Asia/Tokyo", "LANG": "C", "USER": "somebody"}
    try:
        command = [sys.executable, "-c", ELSEWHERE, spec.model_dump_json()]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    finally:
        subprocess.run(["rm", "-rf", cache], check=True)
    layers = [f"{each.sha256}:{each.packed_bytes}" for each in manifest.layers]
    assert layers and done.stdout.split() == [manifest.archive_sha256, *layers], done.stderr


def test_what_else_is_installed_makes_no_difference_to_a_package_s_layer(
    index: None, archives: Path, store: NodeStore
) -> None:
    versions = [each.version for each in find_interpreters() if each.complete and not each.is_system]
    old = [version for version in versions if version.startswith(("3.8", "3.9", "3.10"))]
    some, more = (
        build_environment(EnvSpec(python=(old or versions)[0], packages=packages), archives, store)
        for packages in (["pygments==2.17.2"], ["pygments==2.17.2", "pluggy==1.4.0", "attrs==23.2.0"])
    )
    assert some.layers and {each.sha256 for each in some.layers} <= {each.sha256 for each in more.layers}
    assert some.digest != more.digest


def test_the_index_is_git_s_still(tmp_path: Path) -> None:
    git = ["git", "-c", "core.checkStat=minimal", "-c", "core.trustctime=false", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    for name in ("a", "directory-with-a-name/of-some-length.txt", "xyz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (1577836800, 1577836800))
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "add", "--intent-to-add", "."], check=True)
    index = tmp_path / ".git/index"
    before = subprocess.run([*git, "ls-files", "-s", "--debug"], capture_output=True, text=True, check=True).stdout
    settle_index(index)
    os.utime(index, (1577836800 + 86400,) * 2)
    after = subprocess.run([*git, "ls-files", "-s", "--debug"], capture_output=True, text=True, check=True).stdout
    assert "ino: 0" in after and "ino: 0" not in before and "ctime: 0:0" in after
    kept = ("mtime: 1577836800:0", "size: 40", "0\txyz")
    assert all(each in after and each in before for each in kept)
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    assert status.splitlines() == ["A  a", "A  directory-with-a-name/of-some-length.txt", "A  xyz"]
    settled = index.read_bytes()
    settle_index(index)
    assert index.read_bytes() == settled


@pytest.mark.parametrize("data", [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\0\xff" + bytes(60), b"nothing of git's" * 9])
def test_what_is_no_index_stays(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(data)
    settle_index(tmp_path / "index")
    assert (tmp_path / "index").read_bytes() == data

"""What the doctor says, here and where things are denied; it never ends in a traceback."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import check_supported

DOCTOR = [sys.executable, "-m", "minisandbox_ray", "doctor"]
NO_NAMESPACES = ["unshare", "--user", "--map-root-user", "sh", "-c"]
NO_NAMESPACES += ['echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "-"]
FILTERED = [
    sys.executable,
    "-c",
    "import os, sys; from minisandbox_ray.sandbox.starter import seccomp, syscalls\n"
    "syscalls.set_no_new_privileges()\n"
    "syscalls.install_seccomp_filter(seccomp.build_filter(syscalls.MACHINE))\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
]
# refuses unshare(CLONE_NEWUSER) and nothing else: classic BPF, 8-byte instructions
NO_USER_NAMESPACES = [
    sys.executable,
    "-c",
    "import os, struct, sys; from minisandbox_ray.sandbox.starter import syscalls\n"
    "number = {'x86_64': 272, 'aarch64': 97}[syscalls.MACHINE]\n"
    "program = [(32, 0, 0, 0), (21, 0, 3, number), (32, 0, 0, 16), (69, 0, 1, 1 << 28), (6, 0, 0, 0x50001)]\n"
    "program = [struct.pack('HBBI', *step) for step in [*program, (6, 0, 0, 0x7fff0000)]]\n"
    "syscalls.set_no_new_privileges()\n"
    "syscalls.install_seccomp_filter(b''.join(program))\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
]
DENIED = {"no user namespaces": NO_NAMESPACES, "a filter as in a container": FILTERED}


def run(argv: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MINISANDBOX_CACHE": str(cache), "COLUMNS": "120"}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def here() -> bool:
    """Whether sandboxes work here."""
    try:
        check_supported()
    except SandboxError:
        return False
    return True


def test_table(here: bool, tmp_path: Path) -> None:
    done = run(DOCTOR, tmp_path / "cache")
    assert (done.returncode == 0) == here
    assert "user namespace" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("strict sandboxes " + ("work" if here else "do not work"))
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []  # nothing is left


def test_json(here: bool, tmp_path: Path) -> None:
    done = run([*DOCTOR, "--json"], tmp_path)
    found = json.loads(done.stdout)
    assert found["strict"] == here == (done.returncode == 0)
    rows = {row.pop("name"): row for row in found["mechanisms"]}
    assert {"user namespace", "overlay", "memory control group", "system call filter", "a whole sandbox"} <= set(rows)
    for name, row in rows.items():
        assert set(row) == {"available", "detail", "chosen", "strict", "lost", "remedy"}
        if not row["available"]:
            assert row["detail"]
            assert row["lost"] or name == "landlock"
            assert row["remedy"]
    if here:
        assert all(row["available"] for row in rows.values() if row["strict"])
    grouped = all(rows[f"{name} control group"]["available"] for name in ("memory", "pids"))
    assert rows["watchdog"]["chosen"] == (not grouped)


def test_as_root_of_a_user_namespace(here: bool, tmp_path: Path) -> None:
    """As in a container of an ordinary user: root, with nothing of root's outside of it."""
    nested = ["unshare", "--user", "--map-root-user"]
    if not shutil.which("unshare") or run([*nested, "true"], tmp_path).returncode:
        pytest.skip("no user namespaces here")
    done = run([*nested, *DOCTOR, "--json"], tmp_path)
    found = json.loads(done.stdout)
    assert found["strict"] == here == (done.returncode == 0), found["verdict"]
    rows = {row["name"]: row for row in found["mechanisms"]}
    assert rows["user namespace"]["detail"] == "of an ordinary user"


@pytest.mark.parametrize("denied", DENIED)
def test_where_it_is_denied(denied: str, tmp_path: Path) -> None:
    if not shutil.which("unshare"):
        pytest.skip("no unshare here")
    done = run([*DENIED[denied], *DOCTOR], tmp_path / "cache")
    if not done.stdout and "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 1
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert last.startswith("strict sandboxes do not work here: no user namespace: ")
    remedy = "max_user_namespaces" if denied == "no user namespaces" else "--security-opt seccomp=unconfined"
    assert remedy in last
    found = json.loads(run([*DENIED[denied], *DOCTOR, "--json"], tmp_path / "cache").stdout)
    assert not found["strict"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has nothing without user namespaces")
def test_less_than_strict_is_offered(here: bool, tmp_path: Path) -> None:
    done = run([*NO_USER_NAMESPACES, *DOCTOR], tmp_path)
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].endswith("`isolation: best-effort` works") == here

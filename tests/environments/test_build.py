import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox_ray.environments import (
    Environment,
    EnvSpec,
    Manifest,
    NodeStore,
    Source,
    build_environment,
    cache_root,
    find_interpreters,
    read_manifest,
)
from minisandbox_ray.environments import build as build_module
from minisandbox_ray.environments.tar import FIXED_TIME
from minisandbox_ray.errors import BuildError, ConfigError
from minisandbox_ray.sandbox import Sandbox

from .conftest import INFLECTION, wait_until


def test_the_built_environment_works_at_its_fixed_paths(environment: Environment) -> None:
    with Sandbox(environment.sandbox_spec()) as sandbox:
        where = sandbox.run(
            "python -c 'import inflection, sys; print(inflection.__file__, sys.prefix, sys.base_prefix)'"
        )
        version = environment.manifest.interpreter.version
        assert where.output.split() == ["/testbed/inflection/__init__.py", "/venv", f"/opt/python/{version}"]
        assert "455 passed" in sandbox.run("python -m pytest -q", timeout=120).output
        assert sandbox.run("echo $FLAVOUR $VIRTUAL_ENV").output == "plain /venv\n"
        assert sandbox.run("touch /opt/python/*/bin/x").exit_code != 0


def test_the_repository_is_one_clean_commit(environment: Environment) -> None:
    with Sandbox(environment.sandbox_spec()) as sandbox:
        log = sandbox.run("git log --format='%an %ae %at %ct %s' --all").output
        assert log == f"sandbox sandbox@localhost {FIXED_TIME} {FIXED_TIME} Initial commit\n"
        assert sandbox.run("git status --porcelain --ignored").output == ""
        assert sandbox.run("git fsck --full --unreachable --dangling --no-reflogs --no-progress").output == ""
        assert sandbox.run("git reflog; git remote; git tag").output == ""
        assert sandbox.run("find /testbed -name '*.pyc'").output == ""
        assert sandbox.run("git ls-files | grep -c test_inflection.py").output == "1\n"


def test_compiled_files_are_up_to_date(environment: Environment) -> None:
    check = (
        "import importlib.util, os, struct, pytest;"
        "source = pytest.__file__; cached = importlib.util.cache_from_source(source);"
        "flags, mtime = struct.unpack('<II', open(cached, 'rb').read()[4:12]);"
        "print(flags, mtime == int(os.stat(source).st_mtime))"
    )
    with Sandbox(environment.sandbox_spec()) as sandbox:
        assert sandbox.execute(["/venv/bin/python", "-c", check]).stdout == b"0 True\n"


def test_a_second_build_does_nothing(
    manifest: Manifest, archives: Path, store: NodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "Sandbox", None)  # it would fail if it started one
    assert build_environment(INFLECTION, archives, store) == manifest == read_manifest(archives, manifest.digest)


def test_the_archive_unpacks_to_what_was_built(
    environment: Environment, archives: Path, tmp_path: Path, store: NodeStore
) -> None:
    other = NodeStore(tmp_path / "store")
    (other.root / "interpreters").rmdir()
    (other.root / "interpreters").symlink_to(store.root / "interpreters")
    again = other.materialise(environment.digest, archives)

    def entries(root: Path) -> dict[str, tuple[int, float, bytes]]:
        found = {}
        for path in sorted(root.rglob("*")):
            if "layers" in path.relative_to(root).parts or path.name == "manifest.json":
                continue
            info = path.lstat()
            data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(root))] = (info.st_mode, info.st_mtime, data)
        return found

    assert entries(again.root) == entries(environment.root)
    with Sandbox(again.sandbox_spec()) as sandbox:
        assert sandbox.run("python -c 'import inflection'").exit_code == 0


def test_an_old_interpreter_and_a_directory_as_source(tmp_path: Path, store: NodeStore, archives: Path) -> None:
    old = [each.version for each in find_interpreters() if each.key < (3, 10) and each.complete and not each.is_system]
    if not old:
        pytest.skip("no Python older than 3.10 outside /usr")
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / ".git/config").write_text("[core]\n\tfsmonitor = /bin/false\n")
    (project / "__pycache__").mkdir()
    (project / "__pycache__/module.pyc").write_text("")
    (project / "module.py").write_bytes(b"first\r\nsecond\n")
    (project / ".gitattributes").write_text("* text=auto eol=lf filter=none\n")
    (project / ".gitignore").write_text("shipped.txt\n*.log\n")
    (project / "shipped.txt").write_text("ignored, yet part of the source\n")
    spec = EnvSpec(
        python=max(old, key=lambda version: [int(part) for part in version.split(".")]),
        source=Source(kind="path", path=project),
        install=["mkdir -p build/lib && cp module.py build/lib/", "echo log > x.log", "echo made > made.txt"],
    )
    lines: list[str] = []
    manifest = build_environment(spec, archives, store, lines.append)
    assert lines[0] == "make the venv" and lines[-1] == "pack the archive"
    assert "echo made > made.txt" in manifest.commands
    with store.use(manifest.digest, archives) as environment, Sandbox(environment.sandbox_spec()) as sandbox:
        assert sandbox.run("python --version").output == f"Python {spec.python}\n"
        assert sandbox.run("git ls-files").output.split() == [
            ".gitattributes",
            ".gitignore",
            "made.txt",
            "module.py",
            "shipped.txt",
        ]
        assert sandbox.execute(["git", "show", "HEAD:module.py"]).stdout == b"first\r\nsecond\n"
        assert sandbox.run("git status --porcelain; ls build; git config core.fsmonitor").output.count("\n") == 1
    assert (project / ".git/config").exists()


def test_a_failing_command_shows_its_tail_and_leaves_nothing(store: NodeStore, tmp_path: Path) -> None:
    spec = EnvSpec(install=["seq 1000; at=@; echo https://user:hidden${at}example.org; exit 3"])
    with pytest.raises(BuildError) as caught:
        build_environment(spec, tmp_path / "archives", store)
    message = str(caught.value)
    assert "ended with status 3" in message
    assert "\n    1000" in message and "\n    900\n" not in message
    assert "hidden@" not in message.split("its last output:")[1]
    assert not list(tmp_path.glob("archives/*"))
    assert list((store.root / "scratch").iterdir()) == []


def test_a_wrong_hash_and_a_missing_directory_are_refused(
    manifest: Manifest, store: NodeStore, archives: Path, tmp_path: Path
) -> None:
    source = Source(kind="sdist", name="inflection", version="0.5.1", sha256="0" * 64)
    with pytest.raises(BuildError, match=r"has sha256 1a29730d.* the spec expects 0000"):
        build_environment(EnvSpec(source=source), archives, store)
    with pytest.raises(ConfigError, match="does not exist"):
        build_environment(EnvSpec(source=Source(kind="path", path=tmp_path / "gone")), archives, store)


def test_no_host_secret_reaches_build_manifest_or_sandbox(
    manifest: Manifest, environment: Environment, store: NodeStore, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "planted-secret")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://user:planted-password@localhost:9/simple")
    probe = "(env; cat /proc/*/environ /proc/*/cmdline; ls / /root) > /testbed/seen 2>/dev/null || true"
    spec = EnvSpec(install=[probe])
    built = build_environment(spec, archives, store)
    with store.use(built.digest, archives) as probed:
        seen = (probed.testbed / "seen").read_text(errors="replace")
        assert "planted-secret" not in seen
        assert "planted-password" in seen  # a build may use the host's index
        assert "planted" not in built.model_dump_json()
        with Sandbox(probed.sandbox_spec()) as sandbox:
            inside = sandbox.run("env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; ls /pip-cache /build").output
            assert "planted" not in inside
            assert "PIP_" not in inside
            assert sandbox.run("tail -n +3 /proc/net/dev | grep -vc lo:").output == "0\n"
            connect = "import socket; socket.create_connection(('127.0.0.1', 9), 2)"
            assert sandbox.execute(["/venv/bin/python", "-c", connect]).exit_code != 0


def test_everything_lies_below_the_cache_root(manifest: Manifest, cache: Path) -> None:
    assert cache_root() == cache
    assert {path.name for path in cache.iterdir()} >= {"archives", "sdists", "store", "wheels"}
    assert sys.prefix not in manifest.model_dump_json()


KILLED = """
import sys
from pathlib import Path
from minisandbox_ray.environments import EnvSpec, NodeStore, build_environment
spec = EnvSpec(install=["touch /testbed/here && exec sleep 86399"])
if __name__ == "__main__":
    build_environment(spec, Path(sys.argv[1]), NodeStore(Path(sys.argv[2])))
"""


def test_kill_in_the_middle_of_a_build_leaves_nothing(manifest: Manifest, store: NodeStore, tmp_path: Path) -> None:
    scratch = store.root / "scratch"
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "archives", store.root]) as victim:
        wait_until(lambda: victim.poll() is not None or any(scratch.glob(f"{victim.pid}-*/tree/testbed/here")))
        victim.kill()
    assert victim.returncode == -signal.SIGKILL, "it ended by itself"
    sleepers = [b"sleep", b"86399", b""]
    wait_until(lambda: not any(_command(path) == sleepers for path in Path("/proc").glob("[0-9]*")))
    NodeStore(store.root)
    assert not list(scratch.glob(f"{victim.pid}-*"))
    assert not list(tmp_path.glob("archives/*"))


def _command(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []

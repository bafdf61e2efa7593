"""System packages: seen by an environment's build and sandboxes, and by nobody else."""

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from minisandbox_ray.environments import (
    Environment,
    EnvSpec,
    Manifest,
    NodeStore,
    build_environment,
    environment_digest,
    find_interpreters,
)
from minisandbox_ray.environments import system as system_module
from minisandbox_ray.errors import BuildError
from minisandbox_ray.sandbox import Sandbox

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="this system has no apt")


@pytest.fixture(scope="module")
def built(index: None, archives: Path, store: NodeStore) -> Manifest:
    """Skips where no archive of system packages can be reached."""
    spec = EnvSpec(system_packages=["figlet"], install=["figlet hi > made"])
    try:
        return build_environment(spec, archives, store)
    except BuildError as error:
        if "can't be fetched" in str(error):
            pytest.skip(f"no archive of system packages within reach: {error}")
        raise


@pytest.fixture(scope="module")
def environment(built: Manifest, archives: Path, store: NodeStore) -> Iterator[Environment]:
    with store.use(built.digest, archives) as held:
        yield held


def test_its_sandboxes_have_them(environment: Environment) -> None:
    with Sandbox(environment.sandbox_spec()) as sandbox:
        assert sandbox.run("figlet hi | cmp - made; readlink -f $(which figlet)").output == "/usr/bin/figlet-figlet\n"
        assert sandbox.run("dpkg-deb --version > /dev/null; git --version").exit_code == 0  # the base is still there
        with sandbox.fork() as other:
            assert other.run("figlet hi | cmp - made").exit_code == 0


def test_they_are_in_the_archive_and_named_in_the_manifest(
    environment: Environment, built: Manifest, archives: Path, fresh: NodeStore
) -> None:
    again = fresh.materialise(built.digest, archives)
    assert (again.root / "system/usr/bin/figlet-figlet").is_file()
    assert built.commands[0] == "apt-get install --no-install-recommends figlet"
    assert built.commands[1].startswith("# figlet=")


def test_nothing_is_installed_here(built: Manifest) -> None:
    assert shutil.which("figlet-figlet") is None or Path("/var/lib/dpkg/info/figlet.list").exists()


def test_what_there_is_not_is_told_in_a_line(built: Manifest, store: NodeStore, archives: Path) -> None:
    spec = EnvSpec(system_packages=["no-such-package-here"])
    with pytest.raises(BuildError, match="Unable to locate package no-such-package-here") as caught:
        build_environment(spec, archives, store)
    assert "\n" not in str(caught.value)
    assert list((store.root / "scratch").iterdir()) == []


@pytest.mark.parametrize("name", ["", "-o", "a b", "$(id)", "Upper", "x=", "x=1 2", "x;y", "../x"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        EnvSpec(system_packages=[name])


def test_environments_without_any_keep_their_digest() -> None:
    interpreter = find_interpreters()[0].id
    plain = environment_digest(EnvSpec(), interpreter)
    assert plain == environment_digest(EnvSpec(system_packages=[]), interpreter)
    assert plain != environment_digest(EnvSpec(system_packages=["figlet"]), interpreter)


def test_what_counts_as_there_is_what_every_debian_has() -> None:
    names = {line[9:] for line in system_module.required_packages().splitlines() if line.startswith("Package: ")}
    assert {"libc6", "dpkg", "bash", "libgcc-s1"} <= names
    assert not {"git", "gcc", "python3", "libxml2"} & names


def test_links_of_alternatives_stay_inside(tmp_path: Path) -> None:
    script = (
        b"update-alternatives --install /usr/bin/tool tool /usr/bin/tool.one 10 \\\n"
        b"  --slave /usr/bin/other other /usr/bin/other.one\n"
        b"update-alternatives --install /usr/bin/gone gone /usr/bin/nothing 10\n"
        b"update-alternatives --install /usr/out/x x /usr/bin/tool.one 10\n"
        b"update-alternatives --install /usr/../../y y /usr/bin/tool.one 10\n"
        b"update-alternatives --install /usr/bin/there there /usr/bin/tool.one 10\n"
    )
    with tarfile.open(tmp_path / "control.tar", "w") as tar:
        info = tarfile.TarInfo("./postinst")
        info.size = len(script)
        tar.addfile(info, io.BytesIO(script))
    bin = tmp_path / "system/usr/bin"
    bin.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (bin.parent / "out").symlink_to(tmp_path / "outside")
    for name in ("tool.one", "other.one", "there"):
        (bin / name).write_text(name)
    for link, path in system_module._alternatives(tmp_path / "control.tar"):
        system_module._link(tmp_path / "system", link, path)
    assert {path.name: str(path.readlink()) for path in bin.iterdir() if path.is_symlink()} == {
        "tool": "/usr/bin/tool.one",
        "other": "/usr/bin/other.one",
    }
    assert list((tmp_path / "outside").iterdir()) == [] and not (tmp_path / "y").exists()

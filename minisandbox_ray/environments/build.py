"""EnvSpec → archive. Everything that runs somebody's code runs in a build sandbox, the only kind with a network."""

import hashlib
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from minisandbox_ray.environments.archive import (
    FIXED_TIME,
    Manifest,
    is_complete,
    normalise,
    pack,
    read_manifest,
    survey,
    write_manifest,
)
from minisandbox_ray.environments.cache import cache_root, remove_tree, write_atomically
from minisandbox_ray.environments.compiled import compile_command
from minisandbox_ray.environments.dated_index import DatedIndex
from minisandbox_ray.environments.git_objects import IDENTITY, replace_pack
from minisandbox_ray.environments.history import check_history
from minisandbox_ray.environments.instructions import Machine
from minisandbox_ray.environments.interpreters import Interpreter, inside_prefix
from minisandbox_ray.environments.layer import GIT, ONE_COMMIT
from minisandbox_ray.environments.machine import fill_machine
from minisandbox_ray.environments.package_layers import holding
from minisandbox_ray.environments.pip_settings import PipSettings, host_pip_settings
from minisandbox_ray.environments.repository import Commit, find_commit
from minisandbox_ray.environments.room import Room, free_room, is_full, writable_directory
from minisandbox_ray.environments.spec import (
    BaseSystem,
    EnvSpec,
    InterpreterId,
    Service,
    Source,
    content_hash,
    environment_digest,
    tree_hash,
    tree_name,
)
from minisandbox_ray.environments.store import NodeStore
from minisandbox_ray.environments.system import add_system_packages, system_binds, system_overlays
from minisandbox_ray.errors import BuildError, ConfigError, StoreFullError
from minisandbox_ray.sandbox import Bind, Limits, Sandbox, SandboxSpec

Log = Callable[[str], None]

STEP_TIMEOUT = 1800.0
"""Seconds for one command of a build."""
LIMITS = Limits(memory_mib=8192, pids=2048, disk_mib=4096)
"""Compilers want more than an agent's commands do."""
ROOM = 256 << 20
"""Bytes that are made free on the store's disk before a build."""
LARGEST_SDIST = 1 << 30
"""Bytes."""
TAIL_LINES = 20
"""How much of a failed command's output its error shows."""

_IMPORT_REPOSITORY = f"""
set -e
cd /testbed
find . -mindepth 1 \\( -name .git -o -name __pycache__ \\) -prune -exec rm -rf {{}} +
{GIT} -c init.defaultBranch=main init -q --template= .
mkdir -p .git/info .git/hooks
echo '* -text -ident -filter -working-tree-encoding' > .git/info/attributes
{GIT} add --all --force .
"""
"""Files are committed byte for byte, whatever .gitattributes says, and also those that .gitignore names. Some projects'
builds put a hook where git init has a folder for them: it goes with the folder."""

_FINISH = f"""
set -e
cd /testbed
rm -rf .pytest_cache && find . -name __pycache__ -prune -exec rm -rf {{}} +
{GIT} clean -fdxq -- build
{GIT} add --all .
rm -rf .git/hooks .git/branches .git/description
find . -exec touch -h -d @{FIXED_TIME} {{}} +
find /venv -exec touch -h -d @{FIXED_TIME} {{}} +
{ONE_COMMIT}
find /venv -name __pycache__ -prune -exec rm -rf {{}} +
{compile_command("/venv/lib")}
"""
"""What the install left in the tree joins the one commit, so that git status starts clean; a copy of the sources in
build/ would show a task's answer and goes. Compiled files carry their source's time, which is set before."""

_EASY_INSTALL = "printf '[easy_install]\\nindex_url = %s\\n' $PIP_INDEX_URL > ~/.pydistutils.cfg"
"""Old setuptools fetch setup_requires by themselves, and know nothing of pip's settings."""

_OLD_TOOLS = "pip==21.3.1 setuptools==59.6.0 wheel==0.37.1"

_FINISH_SERVICES = f"""
find /opt/services -exec touch -h -d @{FIXED_TIME} {{}} +
find /opt/services -name __pycache__ -prune -exec rm -rf {{}} +
{compile_command("/opt/services/*/lib")}
"""


@dataclass
class _Build:
    """One build under way."""

    spec: EnvSpec
    digest: str
    box: Sandbox
    pip: PipSettings
    log: Log
    output: Log
    commands: list[str]

    def step(self, title: str, command: str, record: bool = True) -> None:
        """Run one shell command; BuildError with the tail of its output if it fails.

        `record` is for what a person would have to type to get the same: the manifest lists it.
        """
        self.log(title)
        if record:
            self.commands.append(command)
        done = self.box.execute(["/bin/bash", "-c", f"exec 2>&1\n{command}"], timeout=STEP_TIMEOUT, cwd="/testbed")
        printed = self.pip.redact(done.stdout.decode(errors="replace")).strip()
        self.output(printed)
        if done.exit_code == 0 and not done.timed_out and done.limit in (None, "output"):
            return
        why = f"hit its {done.limit} limit" if done.limit else f"ended with status {done.exit_code}"
        if done.timed_out:
            why = f"took longer than {STEP_TIMEOUT:.0f} s"
        lines = [
            line for line in printed.splitlines() if "is ignored: it is neither a file nor a directory" not in line
        ]
        tail = "".join(f"\n    {line[:500]}" for line in lines[-TAIL_LINES:])
        what = f"{self.digest[:12]} ({self.spec.describe()}, python {self.spec.python})"
        raise BuildError(f"building {what}: `{title}` {why}; its last output:{tail}")


def find_digest(spec: EnvSpec, store: NodeStore, repo_mirror: Path | None = None, log: Log | None = None) -> str:
    """What `build_environment` will call the environment; nothing is built. Raises as it does for what lacks."""
    return _place(spec, store, repo_mirror, log).digest


@dataclass(frozen=True, slots=True)
class _Place:
    """A spec, its interpreter and source found on this machine."""

    digest: str
    source_tree: str
    commit: Commit | None
    interpreter: InterpreterId


def _place(spec: EnvSpec, store: NodeStore, repo_mirror: Path | None, log: Log | None) -> _Place:
    interpreter, _ = store.interpreter(spec.python)
    source_tree = ""
    commit: Commit | None = None
    if spec.source is not None and spec.source.kind == "git":
        commit = find_commit(spec.source, repo_mirror, log)
        source_tree = tree_name(commit.tree)
    elif spec.machine is not None:
        _check_folder(spec.machine)
    elif spec.source is not None and spec.source.path is not None:
        if not spec.source.path.is_dir():
            raise ConfigError(f"source directory {spec.source.path} does not exist")
        source_tree = tree_hash(spec.source.path)
    digest = environment_digest(spec, interpreter.id, source_tree=source_tree)
    return _Place(digest, source_tree, commit, interpreter.id)


def _check_folder(machine: Machine) -> None:
    """Raise ConfigError unless the task folder holds what the recipe names."""
    for name, expected in (("environment", machine.content), ("tests", machine.tests)):
        folder = machine.folder / name
        found = tree_hash(folder) if folder.is_dir() else ""
        if found != expected:
            raise ConfigError(f"{folder} is not what it was when the task was read: read the data set again")


def build_environment(
    spec: EnvSpec,
    archives: Path,
    store: NodeStore,
    log: Log | None = None,
    repo_mirror: Path | None = None,
    output: Log | None = None,
    quick: bool = False,
) -> Manifest:
    """Build an environment into `archives`, and leave it unpacked in `store`; does nothing if the archive exists.

    `log` is called with one line per step, `output` with all that a step has printed; `repo_mirror` is a directory of
    repositories for sources of kind git (see `find_commit`); `quick`, for what may soon be thrown away, packs in less
    time and into more room. Concurrent calls for one spec on a node build once. Raises BuildError (with the tail of the
    failed command's output; also for a commit that can't be had, and if the repository's history holds more than its
    one commit), ConfigError for a source directory that isn't there and archives that can't be written, StoreFullError
    where the disk is or gets full.
    """
    place = _place(spec, store, repo_mirror, log)
    digest = place.digest
    with store.exclusive(f"build-{digest}"), store.scratch() as scratch:
        if is_complete(archives, digest):
            return read_manifest(archives, digest)
        writable_directory(archives)
        store.make_disk_room(f"building {digest[:12]}", store.root, ROOM)
        tree = scratch / "tree"
        try:
            commands = _fill(spec, place, store, scratch, log or _silent, output or _silent)
            made: list[Path] = []
            if spec.machine is None:
                made = replace_pack(tree / "testbed")
                (log or _silent)("check the history")
                check_history(tree / "testbed", f"building {digest[:12]} ({spec.describe()})", store.isolation)
        except BuildError as error:
            if is_full(error) and not free_room(store.root).holds(Room(1 << 20, 1)):
                raise StoreFullError(
                    f"building {digest[:12]} filled the disk of {store.root}: free some space there, or put "
                    f"MINISANDBOX_CACHE on a larger disk"
                ) from error
            raise
        (log or _silent)("pack the archive")
        normalise(tree)
        files, size = survey(tree)
        with holding(archives):
            packed = pack(tree, archives, digest, place.interpreter.version, made, quick)
            manifest = Manifest(
                digest=digest,
                spec=spec,
                source_tree=place.source_tree,
                interpreter=place.interpreter,
                base=BaseSystem.here(),
                archive_sha256=packed.archive_sha256,
                archive_bytes=packed.archive_bytes,
                layers=packed.layers,
                made_bytes=sum(path.stat().st_size for path in made) if made else None,
                unpacked_bytes=size,
                files=files,
                commands=commands,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            write_manifest(archives, manifest)
        store.adopt(manifest, tree)
        return manifest


def _fill(spec: EnvSpec, place: _Place, store: NodeStore, scratch: Path, log: Log, output: Log) -> list[str]:
    """Build scratch/tree/{venv,testbed}; returns the commands that did."""
    interpreter, copy = store.interpreter(spec.python)
    if spec.machine:
        tree = scratch / "tree"
        return fill_machine(
            spec.machine, spec.variables, interpreter, copy, tree, scratch, store.isolation, log, output
        )
    pip = host_pip_settings()
    index = DatedIndex(pip, spec.exclude_newer) if spec.exclude_newer else None
    if index is not None:
        index.open = True  # for the builder's own tools
        pip = index.settings
        for left_out in index.left_out:
            log(f"nothing is taken from {pip.redact(left_out)}, which does not tell upload times (exclude_newer)")
    places = {
        "/venv": scratch / "tree/venv",
        "/testbed": scratch / "tree/testbed",
        "/build": scratch / "build",
        "/pip-cache": (cache_root() / "wheels").resolve(),
    }
    system = scratch / "tree/system"
    installed: list[str] = []
    if spec.system_packages:
        (scratch / "apt").mkdir()
        installed = add_system_packages(spec.system_packages, system, scratch / "apt", store.isolation, log)
        # What is compiled against them is of no use to who lacks them.
        places["/pip-cache"] /= f"system-{content_hash(sorted(spec.system_packages))[:16]}"
    if spec.services:
        places["/opt/services"] = scratch / "tree/services"
    for folder in (*places.values(), scratch / "build/tmp", scratch / "build/sdist"):
        folder.mkdir(parents=True, exist_ok=True)
    blank = store.blank_venv(interpreter)
    if blank.exists():
        shutil.copyfile(blank, scratch / "build/venv.tar")
    cached = _cached_sdist(spec.source)
    if cached is not None:
        shutil.copyfile(cached, scratch / "build/sdist" / cached.name)
    if place.commit is not None:
        _export(place.commit, scratch / "build/source.tar", log)
    binds = [Bind(source=path, target=target, writable=True) for target, path in places.items()]
    binds += [Bind(source=copy, target=inside_prefix(interpreter.version))] if copy else []
    if spec.source is not None and spec.source.kind == "path" and spec.source.path is not None:
        binds.append(Bind(source=spec.source.path.absolute(), target="/source"))
    env = {
        "VIRTUAL_ENV": "/venv",
        "TMPDIR": "/build/tmp",
        "PIP_CACHE_DIR": "/pip-cache",
        "PIP_NO_INPUT": "1",
        "PIP_NO_COMPILE": "1",
        "PIP_PROGRESS_BAR": "off",
        "PIP_ROOT_USER_ACTION": "ignore",
        "SOURCE_DATE_EPOCH": str(FIXED_TIME),
        "LDFLAGS": "-Wl,--strip-debug",  # debug information names pip's temporary directories
        **IDENTITY,
        **pip.variables,
        **spec.variables,
    }
    box_spec = SandboxSpec(
        overlays=system_overlays(system),
        binds=binds + pip.binds + system_binds(system),
        env=env,
        network="host",
        hostname="build",
        cwd="/testbed",
        isolation=store.isolation,
        limits=LIMITS,
    )
    with index or nullcontext(), Sandbox(box_spec) as box:
        build = _Build(spec, place.digest, box, pip, log, output, [])
        _make_venv(build, f"{interpreter.inside} -m venv /venv", scratch / "build", blank)
        if interpreter.key < (3, 7):
            # 3.6 brings pip 18: it knows neither today's wheels nor editable installs from pyproject.toml, and picks
            # releases that don't run on it. These are the last that do.
            build.step("upgrade pip", f"pip install {_OLD_TOOLS}")
        for service in spec.services:
            _make_service(build, service, interpreter)
        if spec.source is not None:
            _bring_source(build, spec.source, cached)
        build.step("import the repository", _IMPORT_REPOSITORY, record=False)
        if index is not None:
            index.open = False
            build.step("date the index", _EASY_INSTALL, record=False)
        if spec.packages:
            build.step("install packages", f"pip install {shlex.join(spec.packages)}")
        for command in spec.install:
            build.step(command, command)
        build.step("compile and commit", _FINISH, record=False)
        if spec.services:
            build.step("compile the services", _FINISH_SERVICES, record=False)
    remove_tree(scratch / "build")
    return installed + build.commands


def _make_venv(build: _Build, command: str, folder: Path, blank: Path) -> None:
    """Make the venv, or unpack a fresh one that an earlier build made: installing pip takes seconds."""
    known = (folder / "venv.tar").exists()
    keep, bring = f"{command} && tar -cf /build/venv.tar -C /venv .", "tar -xf /build/venv.tar --no-same-owner -C /venv"
    build.step("make the venv", bring if known else keep, record=False)
    build.commands.append(command)
    if not known:
        (folder / "venv.tar").replace(blank)  # now, before anybody else's code runs in there


def _make_service(build: _Build, service: Service, interpreter: Interpreter) -> None:
    """A service's venv with its packages, which those of the repository never meet, and its files."""
    place = f"/opt/services/{service.name}"
    pip = f"{place}/bin/python -m pip install"
    build.step(f"make the venv of {service.name}", f"{interpreter.inside} -m venv {place}")
    if interpreter.key < (3, 7):
        build.step(f"upgrade pip of {service.name}", f"{pip} {_OLD_TOOLS}")
    if service.packages:
        build.step(f"install {service.name}", f"{pip} {shlex.join(service.packages)}")
    for name, text in service.files.items():
        build.box.write_file(f"{place}/files/{name}", text.encode())


def _export(commit: Commit, target: Path, log: Log) -> None:
    """The commit's files for the build, and a line for each kind of content that is not in them."""
    log(f"export {commit.name}")
    exported = commit.export(target)
    for kind, paths in (("submodules", exported.submodules), ("files that Git LFS keeps", exported.lfs_pointers)):
        if paths:
            more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
            log(f"{commit.name}: without the content of {kind}: {', '.join(paths[:5])}{more}")


def _bring_source(build: _Build, source: Source, cached: Path | None) -> None:
    if source.kind == "git":
        unpack = "tar -xf /build/source.tar --no-same-owner -C /testbed && rm /build/source.tar"
        build.step("unpack the commit", unpack, record=False)
        return
    if source.kind == "path":
        build.step("copy the source", "cp -a --no-preserve=ownership /source/. /testbed/", record=False)
        return
    wanted = f"{source.name}=={source.version}"
    if cached is None:
        # pip has no way to fetch a source distribution without asking its build backend for metadata.
        build.step(
            f"fetch {wanted}",
            f"pip download --quiet --no-deps --no-binary {source.name} --dest /build/sdist {wanted}",
        )
    # Somebody else's code has run in there by now: look through the sandbox's eyes, not along paths of the host.
    names = build.box.execute(["ls", "-A", "/build/sdist"]).stdout.decode(errors="replace").split()
    if len(names) != 1 or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", names[0]):
        raise BuildError(f"{wanted}: pip brought {len(names)} files instead of one source distribution")
    data = build.box.read_file(f"/build/sdist/{names[0]}", max_bytes=LARGEST_SDIST)
    sha256 = hashlib.sha256(data).hexdigest()
    if source.sha256 and sha256 != source.sha256:
        raise BuildError(f"{wanted}: {names[0]} has sha256 {sha256}, the spec expects {source.sha256}")
    if cached is None:
        folder = _sdist_folder(source)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / names[0], data)
    if names[0].endswith(".zip"):
        unpack = f"python -m zipfile -e /build/sdist/{names[0]} /build/tmp/unpacked"
    else:
        unpack = (
            f"mkdir -p /build/tmp/unpacked && tar -xf /build/sdist/{names[0]} --no-same-owner -C /build/tmp/unpacked"
        )
    # One directory NAME-VERSION at the top, by definition of the format.
    build.step(f"unpack {wanted}", f"{unpack} && cd /build/tmp/unpacked/* && cp -a . /testbed/", record=False)


def _sdist_folder(source: Source) -> Path:
    return cache_root() / "sdists" / f"{source.name}-{source.version}"


def _cached_sdist(source: Source | None) -> Path | None:
    if source is None or source.kind != "sdist" or not _sdist_folder(source).is_dir():
        return None
    return next((path for path in sorted(_sdist_folder(source).iterdir()) if not path.name.startswith(".")), None)


def _silent(line: str) -> None:
    """No log wanted."""

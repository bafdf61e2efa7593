"""A machine by Dockerfile instructions: built on this system's own /usr, kept as what lies over it.

Instructions run as root of a build sandbox, with Debian's own tools and maintainer scripts. dpkg is told that no more
than the required packages are installed, so that what is asked for becomes part of the machine wherever it is built.
Everything belongs to root in the end, and what the instructions removed of the system itself is there again.
"""

import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from minisandbox_ray.environments.instructions import Instruction, Machine
from minisandbox_ray.environments.interpreters import Interpreter, inside_prefix
from minisandbox_ray.environments.pip_settings import PipSettings, host_pip_settings
from minisandbox_ray.environments.system import required_packages
from minisandbox_ray.errors import BuildError
from minisandbox_ray.sandbox import Bind, Isolation, Limits, Overlay, Sandbox, SandboxSpec

DOCKER_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH that Docker gives where an image sets none: what $PATH means in ENV."""
TESTS = "verifier/tests"
"""Where the test script lies in the environment; its sandboxes do not show it."""

_DPKG = Path("/var/lib/dpkg")
_LIMITS = Limits(memory_mib=8192, pids=2048, disk_mib=6144)
_VAR = [
    *("backups", "cache/apt/archives/partial", "cache/debconf", "cache/ldconfig", "lib/apt/lists/partial"),
    *("lib/apt/mirrors/partial", "lib/apt/periodic", "lib/dpkg/alternatives", "lib/dpkg/info", "lib/dpkg/parts"),
    *("lib/dpkg/triggers", "lib/dpkg/updates", "lib/misc", "lib/pam", "lib/systemd", "local", "log/apt", "mail", "opt"),
    *("spool", "tmp"),
]
_READ_ONLY = ("/etc/alternatives", "/etc/fonts", "/etc/ssl/certs")
"""What a sandbox shows of the host's /etc, which packages write to."""
_PREPARE = """
printf 'APT::Sandbox::User "root";\\n' > /etc/apt/apt.conf.d/00minisandbox
printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
ln -sfn /run /var/run && ln -sfn /run/lock /var/lock && mkdir -p /run/lock
chmod 1777 /var/tmp
touch /build/began
"""
_PYTHON = "{python} -m venv /usr/local && ln -sfn python3 /usr/local/bin/python && rm -f /usr/local/bin/[Aa]ctivate*"
_OWN = "bin boot dev lib lib32 lib64 libx32 media mnt proc run sbin sys tmp usr build venv"
"""Of the root directory: what the system has, or nobody keeps."""
_COLLECT = r"""
set -eu
cd /
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /root/.cache/pip
rm -rf /etc/apt /etc/resolv.conf /etc/minisandbox /etc/mtab /var/tmp/*
{
    find usr -newercm /build/began ! -type d -print0
    find usr -newercm /build/began -type d -empty -print0
    for place in $(ls -A /); do
        case " $own " in *" $place "*) ;; *) find "$place" -xdev $pruned -print0 ;; esac
    done
    for place in $written; do
        find "$place" -print0
    done
} | tar --create --file /build/out/machine.tar --null --no-recursion --ignore-failed-read --files-from -
"""
_UNPACK = "tar -x --no-same-owner -f /out/machine.tar -C /system && chmod -R u+rwX /system"


def fill_machine(
    machine: Machine,
    variables: dict[str, str],
    interpreter: Interpreter,
    copy: Path | None,
    tree: Path,
    scratch: Path,
    isolation: Isolation,
    log: Callable[[str], None],
    output: Callable[[str], None],
) -> list[str]:
    """Build into the new directory `tree`; returns the commands. `copy` is the interpreter's in the store, if any.

    Raises BuildError with the end of what a failed instruction printed; also if the folder is not the recipe's.
    """
    pip = host_pip_settings()
    var, out = scratch / "var", scratch / "out"
    for folder in (*(var / name for name in _VAR), out, tree / "system", tree / "venv", tree / "testbed"):
        folder.mkdir(parents=True, exist_ok=True)
    _fill_dpkg(var / "lib/dpkg")
    context = machine.folder / "environment"
    binds = [Bind(source=out, target="/build/out", writable=True), *pip.binds]
    binds += [Bind(source=context, target="/build/context")] if context.is_dir() else []
    binds += [Bind(source=copy, target=inside_prefix(interpreter.version))] if copy and machine.has_python else []
    spec = SandboxSpec(
        overlays=[
            Overlay(target="/usr", lower=[Path("/usr")]),
            Overlay(target="/var", lower=[var]),
            *(Overlay(target=place, lower=[Path(place)]) for place in _READ_ONLY if Path(place).is_dir()),
        ],
        binds=binds,
        env={"DEBIAN_FRONTEND": "noninteractive", "PIP_ROOT_USER_ACTION": "ignore", "PATH": DOCKER_PATH}
        | pip.variables
        | variables,
        network="host",
        cwd="/",
        isolation=isolation,
        limits=_LIMITS,
    )
    deadline = time.monotonic() + machine.build_seconds
    commands: list[str] = []
    with Sandbox(spec) as box:
        if box.is_confined:
            raise BuildError(f"{machine.folder.name}: a machine needs namespaces, which this node does not give")
        if Path("/etc/apt").is_dir():
            box.upload(Path("/etc/apt"), "/etc/apt")
            box.execute(["/bin/sh", "-c", "rm -rf /etc/apt/auth.conf /etc/apt/auth.conf.d"])
        _run(box, machine, "prepare", f"mkdir -p /etc/apt/apt.conf.d\n{_PREPARE}", pip, output)
        if machine.has_python:
            _run(box, machine, "bring python", _PYTHON.format(python=interpreter.inside), pip, output)
        for number, instruction in enumerate(machine.instructions, 1):
            command = instruction.command if instruction.kind == "run" else _copy(instruction)
            title = f"{instruction.kind.upper()} {_short(instruction)}"
            log(f"{number} of {len(machine.instructions)}: {title}")
            commands.append(f"cd {shlex.quote(instruction.workdir)} && {command}")
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise BuildError(
                    f"{machine.folder.name}: its instructions took more than {machine.build_seconds:.0f} s"
                )
            _run(box, machine, title, command, pip, output, instruction=instruction, timeout=seconds)
        _run(box, machine, "workdir", f"mkdir -p {shlex.quote(machine.workdir)}", pip, output)
        log("collect what was made")
        settings = {
            "own": _OWN,
            "pruned": " ".join(f"-path {bind.target.lstrip('/')} -prune -o" for bind in binds),
            "written": " ".join(overlay.target.lstrip("/") for overlay in spec.overlays[2:]),
        }
        lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
        _run(box, machine, "collect", f"{lines}{_COLLECT}", pip, output)
    # Who wrote this archive may be anybody: it is unpacked where links lead nowhere.
    binds = [Bind(source=out, target="/out"), Bind(source=tree / "system", target="/system", writable=True)]
    with Sandbox(SandboxSpec(binds=binds, cwd="/", isolation=isolation, limits=_LIMITS)) as box:
        _run(box, machine, "unpack", _UNPACK, pip, output)
    tests = tree / TESTS
    tests.parent.mkdir()
    shutil.copytree(machine.folder / "tests", tests, symlinks=True)
    return commands


def machine_overlays(system: Path) -> list[Overlay]:
    """What shows the machine whose directory `fill_machine` made."""
    return [
        Overlay(target=f"/{place.name}", lower=[place, Path("/usr")] if place.name == "usr" else [place])
        for place in sorted(system.iterdir())
        if place.is_dir() and not place.is_symlink()
    ]


def _fill_dpkg(folder: Path) -> None:
    """A state of dpkg in which the required packages are installed, and nothing else."""
    if not (_DPKG / "status").is_file():
        return
    status = required_packages()
    (folder / "status").write_text(status)
    for name in re.findall(r"^Package: (\S+)", status, re.MULTILINE):
        for path in (_DPKG / "info").glob(f"{name}[.:]*"):
            shutil.copy(path, folder / "info" / path.name)
    for path in (_DPKG / "alternatives").iterdir():
        shutil.copy(path, folder / "alternatives" / path.name)


def _short(instruction: Instruction) -> str:
    if instruction.kind == "copy":
        return f"{' '.join(instruction.sources)} {instruction.target}"
    first, *rest = instruction.command.strip().splitlines()
    return f"{first[:100]}{' …' if rest or len(first) > 100 else ''}"


def _copy(instruction: Instruction) -> str:
    """COPY as a shell command, by Docker's rules: of a directory its content is copied."""
    target = shlex.quote(instruction.target)
    lines = []
    for source in instruction.sources:
        path = shlex.quote(f"/build/context/{source}")
        into = f"mkdir -p {target} && cp -a --no-preserve=ownership {path}/. {target}"
        parent = target if instruction.target.endswith("/") else '"$(dirname ' + target + ')"'
        file = f"mkdir -p {parent} && cp -a --no-preserve=ownership {path} {target}"
        lines.append(f"if [ -d {path} ]; then {into}; else {file}; fi")
    return "set -e\n" + "\n".join(lines)


def _run(
    box: Sandbox,
    machine: Machine,
    title: str,
    command: str,
    pip: PipSettings,
    output: Callable[[str], None],
    *,
    instruction: Instruction | None = None,
    timeout: float = 600.0,
) -> None:
    workdir = instruction.workdir if instruction else "/"
    if instruction:
        box.execute(["/bin/mkdir", "-p", workdir], cwd="/")
    done = box.execute(
        ["/bin/sh", "-c", f"exec 2>&1\n{command}"],
        timeout=timeout,
        cwd=workdir,
        env=instruction.variables if instruction else {},
    )
    printed = pip.redact(done.stdout.decode(errors="replace")).strip()
    output(printed)
    if done.exit_code == 0 and not done.timed_out and done.limit in (None, "output"):
        return
    why = f"hit its {done.limit} limit" if done.limit else f"ended with status {done.exit_code}"
    if done.timed_out:
        why = f"took longer than {timeout:.0f} s"
    tail = "".join(f"\n    {line[:500]}" for line in printed.splitlines()[-20:])
    raise BuildError(f"{machine.folder.name}: `{title}` {why}; its last output:{tail}")

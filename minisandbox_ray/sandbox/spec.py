"""What a sandbox is made of, and what its commands give back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

StoppedBy = Literal["timeout", "idle_timeout", "interrupt"]
Isolation = Literal["strict", "best-effort"]
LimitName = Literal["wall_time", "memory", "pids", "disk", "cpu", "output"]


def _inside(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or not parts or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is not an absolute path without '..' below /")
    if parts[0] in ("dev", "proc", "sys"):
        raise ValueError(f"/{parts[0]} is the sandbox's own: nothing can be mounted at {path!r}")
    return "/" + "/".join(parts)


def _outside(path: Any) -> Any:
    if path == "" or "\0" in str(path):
        raise ValueError(f"{path!r} is no path")
    return path


Target = Annotated[str, AfterValidator(_inside)]
HostPath = Annotated[Path, BeforeValidator(_outside), AfterValidator(Path.absolute)]
"""Made absolute when the spec is."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_Model):
    """What a sandbox may use. Which means enforce it on this machine: `python -m minisandbox_ray doctor`."""

    memory_mib: Annotated[int, Field(ge=16, le=1 << 30)] = 2048
    """All processes together and what they write (it lives in memory); MiB. The biggest process is killed."""
    swap_mib: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    """What may be swapped out beyond that; MiB."""
    cpus: Annotated[float, Field(ge=0.01, le=4096)] | None = None
    """Processor time per time, in processors. None: any that is free; busy sandboxes share the processors equally."""
    pids: Annotated[int, Field(gt=2, le=4_194_304)] = 256
    """Processes and threads at a time."""
    disk_mib: Annotated[int, Field(gt=0, le=1 << 30)] = 1024
    """Everything that is written, in all places together but /dev/shm, which may take as much again, at most 64 MiB. At
    most three quarters of `memory_mib` take effect; MiB."""
    open_files: Annotated[int, Field(ge=32, le=1 << 20)] = 4096
    """File descriptors of one process."""
    output_chars: Annotated[int, Field(gt=100)] = 60_000
    """Of a command's output, half from the start and half from the end are kept; bytes before decoding."""
    wall_seconds: Annotated[float, Field(gt=0, le=1e9)] = 86_400
    """From its start to its end; seconds. A command is cut to what is left, later calls raise WallTimeError."""


class Overlay(_Model):
    """A copy-on-write view of host directories."""

    target: Target
    """Where it appears inside; made if missing."""
    lower: Annotated[list[HostPath], Field(min_length=1)]
    """Host directories, topmost first; never written to."""


class Bind(_Model):
    """A host file or directory that appears inside."""

    source: HostPath
    target: Target
    """Where it appears inside; made if missing."""
    writable: bool = False
    """Whether writes inside reach the host."""


class SandboxSpec(_Model):
    overlays: list[Overlay] = []
    """Mounted in this order. Without one on /testbed, that is an empty writable directory."""
    binds: list[Bind] = []
    """Mounted after the overlays, in this order."""
    env: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Annotated[str, Field(pattern=r"^[^\x00]*$")]
    ] = {}
    """Environment variables, added to the clean default ones."""
    network: Literal["none", "sink", "host"] = "none"
    """`none`: a loopback of its own. `sink`: besides, packets to any other IPv4 address vanish, so that a connection
    times out instead of being refused at once. `host`: the host's network, name resolution included."""
    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}$")]] = []
    """Names that mean 127.0.0.1 inside."""
    hostname: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9.-]{0,62}$")] = "sandbox"
    """The host name inside."""
    cwd: str = "/testbed"
    """Where the session and one-shot programs start."""
    isolation: Isolation = "strict"
    """`strict`: no sandbox where the machine cannot isolate it. `best-effort`: with what there is; doctor says what.

    Where there are no namespaces, paths are others inside: /testbed is a private directory's `root/testbed`. Only
    what this interface is told is changed to that, and virtual environments; commands must use relative paths, `~` and
    $TMPDIR (the module starter/confined.py says what else is lost).
    """
    limits: Limits = Limits()
    """What the sandbox may use."""


DEFAULT_ENV = {
    "PATH": "/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command of a session gave."""

    output: str
    """Standard output and error as they came, terminal escapes removed, undecodable bytes replaced.

    What background jobs printed since the last command comes first.
    """
    exit_code: int
    """`$?`; 128 + signal if the shell itself died by a signal. An unspecified integer if timed out."""
    timed_out: bool
    """A time limit ended it (`stopped_by` says which); the session lives on."""
    truncated: bool
    """The middle of the output was cut; a marker in it says how much."""
    restarted: bool
    """The shell had to be replaced: directory and exported variables are kept, the rest of its state is lost."""
    limit: LimitName | None
    """The gravest limit that was hit since the last result.

    `wall_time`: the sandbox's time was up before the command's. `memory`: a process was killed. `pids`: one could not
    be started. `disk`: nothing is free on it, or in /dev/shm. `cpu`: the command took too long while it was held back.
    `output`: only what is told of it was cut; see `truncated`.
    """
    cwd: str
    """The session's directory afterwards."""
    seconds: float
    """Wall time."""
    output_bytes: int
    """How much was printed, before cutting."""
    stopped_by: StoppedBy | None = None
    """What ended it early: `timeout` (limit on time), `idle_timeout` (on time without output) or `interrupt`."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a one-shot program gave."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    """128 + signal if a signal ended it; 127 if there is no such program, 126 if it could not be started."""
    timed_out: bool
    """The time limit ended it and its process group."""
    truncated: bool
    """The middle of an output was cut; a marker in it says how much."""
    limit: LimitName | None
    """The gravest limit that was hit since the last result; see CommandResult."""
    seconds: float
    """Wall time."""

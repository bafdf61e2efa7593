"""Every failure has one owner, and a message for the person who reads it.

Only the owner ``agent`` turns into a reward. Everything else is reported, retried where that helps,
and masked out of the training loss where it persists.
"""

import errno
import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pydantic import ValidationError

Owner = Literal["agent", "task", "sandbox", "cluster", "model", "user"]


class MiniSandboxError(Exception):
    """Base of all errors of this package. The message is one line: what failed, where, what to do."""

    owner: Owner = "sandbox"


class ConfigError(MiniSandboxError):
    """Bad input by the person who started the program; the CLI prints it and exits with status 2."""

    owner: Owner = "user"


class SandboxError(MiniSandboxError):
    """A sandbox could not be started, died, or lost its terminal."""

    owner: Owner = "sandbox"


class TaskError(MiniSandboxError):
    """A task is unusable: its patch does not apply, its tests do not run."""

    owner: Owner = "task"


class BuildError(TaskError):
    """An environment could not be built from its spec."""


class ClusterError(MiniSandboxError):
    """Ray, a node, a worker or a lease failed."""

    owner: Owner = "cluster"


class ArchiveError(ClusterError):
    """An environment archive is missing, truncated, corrupted, or does not fit this node."""


class MissingArchiveError(ArchiveError):
    """An archive is not there, or cannot be read."""


class DamagedArchiveError(ArchiveError):
    """An archive or its manifest is not what was built: truncated, changed, or of something else."""


class StoreFullError(ClusterError):
    """A node has no room for an environment, neither free nor by eviction."""


class ModelServiceError(MiniSandboxError):
    """The model that samples actions failed or could not be reached."""

    owner: Owner = "model"


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


_NAMED_WRONG = {errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP}


def named_wrong(error: OSError) -> str:
    """One line where an error is that of a path which somebody named and nobody can use; empty for every other."""
    if error.errno not in _NAMED_WRONG or error.filename is None:
        return ""
    return f"cannot use {os.fsdecode(error.filename)[:300]}: {error.strerror}"


def first_wrong(error: "ValidationError", whole: str = "") -> str:
    """The first thing that is wrong with data, as ``field: what``; ``whole`` names the data where no field is at fault,
    empty for nothing."""
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"])) or whole
    return f"{field}: {first['msg']}" if field else first["msg"]

"""What an environment is made of, and the digest that names everything built from it."""

import hashlib
import json
import os
import platform
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from minisandbox_ray.environments.instructions import Machine
from minisandbox_ray.errors import BuildError

FORMAT = 1
"""Version of the builder's output; part of every digest, so that a changed builder never reuses old archives."""

_LATER_FIELDS = ("exclude_newer", "services", "system_packages", "machine")
"""Fields of EnvSpec that came later: with their default they are no part of digests, so that older archives stay."""


class Source(BaseModel):
    """What becomes /testbed: one commit in a git repository of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kind: Literal["sdist", "path", "git"]
    """A source distribution from the package index, a directory of this machine, or a commit of a repository."""
    name: str = ""
    """Project name (sdist)."""
    version: str = ""
    """Exact version (sdist)."""
    sha256: str = ""
    """Expected hash of the source distribution's file, checked if given."""
    path: Path | None = None
    """The directory (path), whose .git and __pycache__ are left out; or a clone, bare or not (git)."""
    repository: str = ""
    """owner/name, looked for in a mirror directory, else on GitHub; or a URL (git)."""
    commit: str = ""
    """A commit's id, whole or abbreviated, perhaps with ^ or ~N (git)."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "sdist" and not (self.name and self.version):
            raise ValueError("a source of kind sdist needs name and version")
        if self.kind == "path" and self.path is None:
            raise ValueError("a source of kind path needs path")
        if self.kind == "git" and ((self.path is None) == (not self.repository) or not self.commit):
            raise ValueError("a source of kind git needs commit, and either repository or path")
        if self.kind != "git" and (self.repository or self.commit):
            raise ValueError(f"a source of kind {self.kind} has no repository and no commit")
        for value in (self.name, self.version):
            if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", value):
                raise ValueError(f"not a project name or version: {value!r}")
        if self.commit and not re.fullmatch(r"[0-9a-f]{7,64}(\^|~\d{1,4})*", self.commit):
            raise ValueError(f"not a commit id: {self.commit!r}")
        return self

    @field_validator("repository")
    @classmethod
    def _fetchable(cls, value: str) -> str:
        if re.search(r"://[^/\s@]*:[^/\s@]*@|^https?://[^/\s@]+@", value):
            raise ValueError("no credentials in a spec: git finds them in ~/.netrc or with ssh's agent")
        forms = r"(https?|ssh|git|file)://\S+|[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^\s:-]\S*|[A-Za-z0-9_][\w.-]*/[\w.-]+"
        if value and not re.fullmatch(forms, value, re.ASCII):
            raise ValueError(f"expected owner/name or a URL (https, http, ssh, git, file), not {value!r}")
        return value

    def describe(self) -> str:
        """A few words for people: "inflection 0.5.1", "pallets/flask at 4c288bc9"."""
        if self.kind == "git":
            return f"{self.path or self.repository} at {self.commit[:12]}"
        return str(self.path or f"{self.name} {self.version}")

    def recipe(self) -> dict[str, Any]:
        """What of it an environment's digest covers. A directory's or commit's place is none of it: its tree is."""
        fields = {"kind"} if self.kind == "git" else {"kind", "name", "version", "sha256"}
        return self.model_dump(mode="json", include=fields)


Variables = dict[
    Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Annotated[str, Field(pattern=r"^[^\x00]*$")]
]


class Service(BaseModel):
    """A program that runs beside tests and agent inside the sandbox, in the sandbox's own network: a web server that
    the tests want, say. It has a venv of its own at /opt/services/NAME."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")
    """Unique among the services of an environment."""
    command: str = Field(min_length=1)
    """Shell command that starts it and does not end, with its venv's programs first in PATH."""
    packages: list[str] = []
    """pip requirements of its venv, of any date: `exclude_newer` is about the repository's."""
    files: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")], str] = {}
    """Texts beside its venv, at /opt/services/NAME/files/: programs, certificates."""
    ready: int | str = Field("", union_mode="left_to_right")
    """What tells that it serves: a TCP port of 127.0.0.1 that accepts, or a shell command that succeeds; empty: that it
    was started."""
    variables: Variables = {}
    """Environment variables of whatever else runs in the sandbox, such as the service's URL."""
    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*$")]] = []
    """Names that mean 127.0.0.1 inside (/etc/hosts)."""

    @field_validator("ready")
    @classmethod
    def _port(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 0 < value < 65536:
            raise ValueError(f"{value} is no TCP port")
        return value


class EnvSpec(BaseModel):
    """The recipe of an environment. Nothing is implicit: what is not listed is not installed.

    To have the repository importable, list ``pip install -e .`` in `install`. A copying ``pip install .`` would put
    the unbroken source into the venv, where neither a task's bug nor an agent's fix reaches it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    python: str = "3.12"
    """Interpreter version, "3.12" (newest 3.12 found) or "3.12.1"."""
    source: Source | None = None
    """What becomes /testbed; none leaves it empty."""
    packages: list[str] = []
    """pip requirements installed into the venv before `install` runs."""
    install: list[str] = []
    """Shell commands run at /testbed with the venv's python first in PATH."""
    variables: Variables = {}
    """Environment variables of the build and of every sandbox made from it."""
    exclude_newer: str = ""
    """Only package versions that were uploaded before this ISO 8601 time, or until the end of this date (UTC), are
    installed; empty: no limit."""
    services: list[Service] = []
    """What runs beside tests and agent in every sandbox made from it."""
    system_packages: list[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9][A-Za-z0-9.+~:-]*)?$")]] = []
    """Debian packages that the build and every sandbox made from it see, with what they depend on: names, perhaps
    with "=" and an exact version. Their maintainer scripts are not run."""
    machine: Machine | None = None
    """A whole root directory by Dockerfile instructions, in place of repository, packages and /venv."""

    def describe(self) -> str:
        """A few words for people: "inflection 0.5.1"."""
        if self.machine:
            return f"the machine of {self.machine.folder.name}"
        return self.source.describe() if self.source else "no source"

    @model_validator(mode="after")
    def _machine_alone(self) -> Self:
        parts = ("source", "packages", "install", "services", "system_packages", "exclude_newer")
        given = [name for name in parts if getattr(self, name)]
        if self.machine and given:
            raise ValueError(f"a machine is made by its instructions alone, not by {', '.join(given)}")
        return self

    @field_validator("python")
    @classmethod
    def _version(cls, value: str) -> str:
        if not re.fullmatch(r"3\.([6-9]|[1-9]\d)(\.\d+)?", value):
            raise ValueError(f'python must be a version from 3.6 on, like "3.12" or "3.12.1", not {value!r}')
        return value

    @field_validator("exclude_newer")
    @classmethod
    def _moment(cls, value: str) -> str:
        try:
            if value:
                datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f'exclude_newer must be a date or time like "2020-01-31", not {value!r}') from None
        return value

    @field_validator("services")
    @classmethod
    def _one_of_a_name(cls, value: list[Service]) -> list[Service]:
        names = [each.name for each in value]
        if len(set(names)) < len(names):
            raise ValueError(f"several services have one name: {', '.join(names)}")
        return value

    @field_validator("packages", "install")
    @classmethod
    def _no_credentials(cls, value: list[str]) -> list[str]:
        if any(re.search(r"://[^/\s@]+@", item) for item in value):
            raise ValueError("no credentials in a spec: they belong in pip's settings, which reach builds only")
        return value


class InterpreterId(BaseModel):
    """Which build of Python."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    """As in "3.12.1"."""
    build_id: str
    """sha256 over the executable and its libpython."""


class BaseSystem(BaseModel):
    """What an environment takes from the system below it: compiled code links against it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    os: str
    """ID and VERSION_ID of /etc/os-release, "debian 12"."""
    libc: str
    """"glibc 2.36"."""
    arch: str
    """"x86_64"."""

    @classmethod
    def here(cls) -> Self:
        """The system of this node."""
        release = platform.freedesktop_os_release()
        libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
        name = f"{release.get('ID', 'linux')} {release.get('VERSION_ID', '')}".strip()
        return cls(os=name, libc=libc or "unknown", arch=platform.machine())


def content_hash(value: Any) -> str:
    """sha256 over canonical JSON (sorted keys, no spaces, UTF-8) of a model or plain data."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return hashlib.sha256(
        json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()


def tree_hash(root: Path) -> str:
    """sha256 over the names, kinds, executable bits and content of a directory, without .git and __pycache__."""
    total = hashlib.sha256()
    for folder, folders, files in root.walk():
        folders[:] = sorted(set(folders) - {".git", "__pycache__"})
        links = [name for name in folders if (folder / name).is_symlink()]
        for name in sorted(files + links):
            path = folder / name
            if path.is_symlink():
                kind, data = "link", os.fsencode(path.readlink())
            elif path.is_file():
                kind, data = "x" if path.stat().st_mode & 0o100 else "file", path.read_bytes()
            else:
                continue
            relative = os.fsencode(path.relative_to(root)).hex()
            total.update(f"{relative} {kind} {hashlib.sha256(data).hexdigest()}\n".encode())
    return total.hexdigest()


def tree_name(tree: str) -> str:
    """A git tree's object id as what `environment_digest` takes for a source."""
    return f"git:{tree}"


def environment_digest(
    spec: EnvSpec, interpreter: InterpreterId, base: BaseSystem | None = None, source_tree: str | None = None
) -> str:
    """The name of an environment: sha256 (64 hex digits) over all that its content depends on.

    `base` defaults to this node's, `source_tree` to the hash of the directory if the source is one. For a commit it is
    `tree_name(commit.tree)`; raises BuildError if it is not given.
    """
    if spec.source is not None and source_tree is None:
        if spec.source.kind == "git":
            raise BuildError(f"the digest of an environment of {spec.describe()} needs the commit's tree")
        if spec.source.path is not None:
            source_tree = tree_hash(spec.source.path)
    later = {name for name in _LATER_FIELDS if getattr(spec, name) == EnvSpec.model_fields[name].get_default()}
    recipe = spec.model_dump(mode="json", exclude={"source", *later})
    recipe["source"] = spec.source.recipe() if spec.source else None
    if spec.machine:
        recipe["machine"] = spec.machine.recipe()
    return content_hash(
        {
            "format": FORMAT,
            "spec": recipe,
            "source_tree": source_tree or "",
            "interpreter": interpreter.model_dump(),
            "base": (base or BaseSystem.here()).model_dump(),
        }
    )

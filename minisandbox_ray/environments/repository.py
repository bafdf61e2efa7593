"""Commits of git repositories: from a mirror directory, a local clone or a URL, exported as files.

Git runs outside of a sandbox here, but on repositories that no agent could write, and on none of their configuration:
it sees an empty repository of ours and only the others' objects. So no hook, filter, fsmonitor, replacement, remote
helper or lazy fetch of theirs runs. Blobs are exported byte for byte: export-ignore, export-subst, end-of-line and
encoding attributes mean nothing.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from minisandbox_ray.environments.cache import cache_root, locked, remove_tree
from minisandbox_ray.environments.room import disk_errors
from minisandbox_ray.environments.spec import Source
from minisandbox_ray.errors import BuildError, ConfigError

HOST = "https://github.com/"
"""Where owner/name is looked for if no mirror has it: the public data sets name GitHub's repositories."""
FETCH_SECONDS = 3600.0
"""A large history on a slow line."""
GIT_SECONDS = 300.0
"""For one look into local objects."""
LARGEST = 4 << 30
"""Bytes of a commit's files."""
LARGEST_READ = 1 << 20
"""Bytes of a file that is read by itself: requirement files and the like."""

_CONFIG = "[core]\n\trepositoryformatversion = {}\n\tbare = true\n"
_LFS = b"version https://git-lfs.github.com/spec/v1\n"
_MODES = {"100644": 0o644, "100664": 0o644, "100755": 0o755}
_SETTINGS = ["core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", "maintenance.auto=false"]
_SETTINGS += ["fetch.writeCommitGraph=false", "core.logAllRefUpdates=false", "protocol.ext.allow=never"]
_PROXIES = ["http_proxy", "https_proxy", "no_proxy", "all_proxy"]
_PASSED = ["PATH", "HOME", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", *_PROXIES, *map(str.upper, _PROXIES)]

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """What is in a commit besides plain files; paths from its root."""

    submodules: list[str]
    """Empty directories here: their content is another repository's."""
    lfs_pointers: list[str]
    """Files that Git LFS keeps elsewhere: what is here is the pointer."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit whose objects are all on this machine."""

    name: str
    """For people: "pallets/flask at 4c288bc9"."""
    id: str
    tree: str
    """Object id of its tree, a hash of names, modes and content of all files: it names what is exported."""
    objects: Path
    """The object directory that has it."""

    def export(self, target: Path) -> Exported:
        """Write its files as a tar archive. Raises BuildError for objects that are missing, paths that lead out of the
        tree or into .git, and more than `LARGEST` bytes; StoreFullError where the disk is full."""
        entries = self._entries()
        submodules = [path for mode, _, path in entries if mode == "160000"]
        pointers: list[str] = []
        blobs = [(mode, oid, path) for mode, oid, path in entries if mode != "160000"]
        with disk_errors(target), tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in submodules:
                member = tarfile.TarInfo(path)
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
            with tempfile.TemporaryFile() as wanted:
                wanted.write("".join(f"{oid}\n" for _, oid, _ in blobs).encode())
                wanted.seek(0)
                self._pack(archive, blobs, wanted, pointers)
        return Exported(submodules, pointers)

    def read(self, path: str) -> bytes | None:
        """The content of one file, as it is; None if the commit has no such file. Raises BuildError for one of more
        than `LARGEST_READ` bytes."""
        look = _look(self.objects)
        found = _git(look, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{self.tree}:{path}")
        oid = found.stdout.decode().strip()
        size = _git(look, "cat-file", "-s", oid) if found.returncode == 0 else found
        if size.returncode:
            return None
        if int(size.stdout) > LARGEST_READ:
            raise BuildError(f"{self.name}: {path} has {int(size.stdout)} bytes")
        content = _git(look, "cat-file", "blob", oid)
        return None if content.returncode else content.stdout

    @property
    def date(self) -> str:
        """When it was committed: ISO 8601, UTC."""
        done = _git(
            {**_look(self.objects), "TZ": "UTC"},
            "show",
            "--no-patch",
            "--format=%cd",
            "--date=iso-strict-local",
            self.id,
        )
        if done.returncode:
            raise BuildError(f"{self.name}: its date cannot be read ({_reason(done)})")
        return done.stdout.decode().strip()

    def _pack(
        self, archive: tarfile.TarFile, blobs: list[tuple[str, str, str]], wanted: IO[bytes], pointers: list[str]
    ) -> None:
        total = 0
        command = _command("cat-file", "--batch")
        with subprocess.Popen(
            command, stdin=wanted, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_look(self.objects)
        ) as git:
            assert git.stdout is not None
            try:
                for mode, oid, path in blobs:
                    header = git.stdout.readline().split()
                    if len(header) != 3 or header[0] != oid.encode() or header[1] != b"blob":
                        raise BuildError(f"{self.name}: object {oid[:12]} of {path} is missing: fetch the whole commit")
                    size = int(header[2])
                    total += size
                    if total > LARGEST:
                        raise BuildError(f"{self.name}: its files are more than {LARGEST >> 30} GiB")
                    if mode == "120000" and size > 4096:
                        raise BuildError(f"{self.name}: {path} is a link of {size} bytes")
                    content = _Content(git.stdout, size)
                    if content.begins_with(_LFS) and mode in _MODES:
                        pointers.append(path)
                    archive.addfile(_member(mode, path, size, content), content)
                    content.drain()
                    git.stdout.read(1)
            finally:
                git.kill()

    def _entries(self) -> list[tuple[str, str, str]]:
        """(mode, object id, path) of all files. Paths that are not UTF-8 are escaped as Python does."""
        listed = _git(_look(self.objects), "ls-tree", "-r", "-z", "--full-tree", self.tree)
        if listed.returncode:
            raise BuildError(
                f"{self.name}: a directory's object is missing ({_reason(listed)}): fetch the whole commit"
            )
        entries: list[tuple[str, str, str]] = []
        for line in filter(None, listed.stdout.split(b"\0")):
            about, _, name = line.partition(b"\t")
            mode, _, oid = about.decode().split()
            entries.append((mode, oid, os.fsdecode(name)))
        seen: set[str] = set()
        for mode, _, path in entries:
            parts = path.split("/")
            if {"", ".", ".."} & set(parts) or any(part.lower() == ".git" for part in parts) or path in seen:
                raise BuildError(f"{self.name}: {path!r} is no path that git itself would check out")
            if mode not in {*_MODES, "120000", "160000"}:
                raise BuildError(f"{self.name}: {path} has mode {mode}, which git does not know")
            seen.add(path)
        for path in seen:
            if any(parent in seen for parent in _parents(path)):
                raise BuildError(f"{self.name}: {path!r} lies below what is no directory")
        return entries


def find_commit(source: Source, mirror: Path | None = None, log: Log | None = None) -> Commit:
    """The commit of a source of kind git.

    From its `path` (a clone, bare or not); else from `mirror`, tried as mirror/owner/name, mirror/owner/name.git,
    mirror/owner__name and mirror/owner+name/repo; else from its URL, which is fetched into the cache, only the commit
    where the server allows. Raises ConfigError for a path that is no repository, BuildError for a commit that cannot
    be had, with all places that were tried.
    """
    tried: list[str] = []
    if source.path is not None:
        objects = _objects(source.path)
        if objects is None:
            raise ConfigError(f"source {source.path} is no git repository")
        found = _commit(source, objects)
        if found is None:
            raise BuildError(f"{source.describe()}: the repository has no such commit, or not all of its trees")
        return found
    for place in _places(source.repository, mirror):
        objects = _objects(place)
        candidate = _commit(source, objects) if objects else None
        if candidate:
            return candidate
        tried.append(f"{place} ({'lacks the commit' if objects else 'no repository'})")
    return _fetched(source, tried, log)


def _places(repository: str, mirror: Path | None) -> list[Path]:
    """Where a mirror directory may have the repository."""
    if mirror is None:
        return []
    if not mirror.is_dir():
        raise ConfigError(f"repo_mirror {mirror} is no directory")
    match = re.search(r"([^/:]+)/([^/]+?)(?:\.git)?/?$", repository)
    if match is None:
        return []
    owner, name = match.groups()
    if {owner, name} & {".", ".."}:
        return []
    return [
        mirror / owner / name,
        mirror / owner / f"{name}.git",
        mirror / f"{owner}__{name}",
        mirror / f"{owner}+{name}/repo",
    ]


def _objects(place: Path) -> Path | None:
    """The object directory of a repository: bare, with a .git directory, or a worktree's .git file."""
    git = place
    dot = place / ".git"
    try:
        if dot.is_dir():
            git = dot
        elif dot.is_file():
            name = dot.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
            git = place / name
            if (git / "commondir").is_file():
                git = git / (git / "commondir").read_text(encoding="utf-8").strip()
        found = (git / "objects").is_dir() and (git / "HEAD").exists()
    except (OSError, UnicodeDecodeError):
        return None
    return (git / "objects").resolve() if found else None


def _commit(source: Source, objects: Path) -> Commit | None:
    environment = _look(objects)
    parsed = _git(environment, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{source.commit}^{{commit}}")
    if parsed.returncode:
        return None
    commit = parsed.stdout.decode().strip()
    tree = _git(environment, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}")
    if tree.returncode:
        return None
    return Commit(source.describe(), commit, tree.stdout.decode().strip(), objects)


def _fetched(source: Source, tried: list[str], log: Log | None) -> Commit:
    """From the URL, through a bare repository of ours in the cache."""
    url = source.repository
    if not re.match(r"[a-z]+://|[\w.-]+@[\w.-]+:", url):
        url = f"{HOST}{url}"
    if url.startswith("file://"):  # reading its objects runs nothing, where fetching would run its hooks
        objects = _objects(Path(url.removeprefix("file://")))
        local = _commit(source, objects) if objects else None
        if local:
            return local
        raise BuildError(_not_found(source, [*tried, f"{url} ({'lacks the commit' if objects else 'no repository'})"]))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", url.partition("://")[2] or url).strip("-.")[:80]
    name += f"-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
    place = cache_root() / "repositories" / f"{name}.git"
    with locked(place.with_name(f".{name}.lock")):
        _make_empty(place, 1 if len(source.commit) == 64 else 0)
        if found := _commit(source, place / "objects"):
            return found
        if log:
            log(f"fetch {source.describe()} from {url}")
        commit, suffix = re.match(r"([0-9a-f]+)(.*)", source.commit).groups()  # type: ignore[union-attr]
        if len(commit) in {40, 64}:
            depth = 1 + sum(int(number or 1) for number in re.findall(r"[\^~](\d*)", suffix))
            done = _fetch(place, url, f"--depth={depth}", commit)
            if done.returncode == 0 and (found := _commit(source, place / "objects")):
                return found
        deepen = ["--unshallow"] if (place / "shallow").exists() else []
        done = _fetch(place, url, *deepen, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        if done.returncode == 0 and (found := _commit(source, place / "objects")):
            return found
        why = "lacks the commit" if done.returncode == 0 else _reason(done)
    raise BuildError(_not_found(source, [*tried, f"{url} ({why})"]))


def _not_found(source: Source, tried: list[str]) -> str:
    return f"{source.describe()} cannot be had; tried {', '.join(tried)}: put a clone into repo_mirror"


def _fetch(place: Path, url: str, *what: str) -> subprocess.CompletedProcess[bytes]:
    options = [word for word in what if word.startswith("--")]
    refs = [word for word in what if not word.startswith("--")]
    environment = {**_environment(place), "GIT_ALLOW_PROTOCOL": "https:http:ssh:git"}
    words = (
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-recurse-submodules",
        "--no-write-fetch-head",
        *options,
        "--",
        url,
        *refs,
    )
    with disk_errors(place):
        return _git(environment, *words, timeout=FETCH_SECONDS)


def _make_empty(place: Path, version: int) -> None:
    """An empty bare repository, if there is none: made by hand, since `git init` copies templates."""
    if place.is_dir():
        return
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            for folder in ("objects/info", "objects/pack", "refs/heads"):
                (partial / folder).mkdir(parents=True)
            (partial / "HEAD").write_text("ref: refs/heads/main\n")
            extension = "[extensions]\n\tobjectFormat = sha256\n" if version else ""
            (partial / "config").write_text(_CONFIG.format(version) + extension)
            partial.chmod(0o755)
            partial.rename(place)
        except OSError:
            remove_tree(partial)
            if not place.is_dir():  # somebody else made it
                raise


def _look(objects: Path) -> dict[str, str]:
    """Git's environment to read the objects of a directory, through an empty repository of ours."""
    sha256 = _is_sha256(objects)
    empty = cache_root() / "repositories" / (".empty-sha256.git" if sha256 else ".empty.git")
    _make_empty(empty, int(sha256))
    return {**_environment(empty), "GIT_OBJECT_DIRECTORY": str(objects)}


def _is_sha256(objects: Path) -> bool:
    """By its repository's configuration, of which nothing else is read."""
    try:
        config = (objects.parent / "config").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^\s*objectformat\s*=\s*sha256\s*$", config, re.IGNORECASE | re.MULTILINE) is not None


def _environment(git_dir: Path) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {
        **passed,
        "GIT_DIR": str(git_dir),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
        "LC_ALL": "C",
    }


def _command(*words: str) -> list[str]:
    git = shutil.which("git")
    if git is None:
        raise ConfigError("sources of kind git need git on this machine: install it")
    return [git, *(word for setting in _SETTINGS for word in ("-c", setting)), *words]


def _git(environment: dict[str, str], *words: str, timeout: float = GIT_SECONDS) -> subprocess.CompletedProcess[bytes]:
    command = _command(*words)
    try:
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, b"", f"took longer than {timeout:.0f} s".encode())


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else f"git ended with status {done.returncode}"


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


class _Content(io.RawIOBase):
    """The next `size` bytes of a stream, and no more."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left = stream, size
        self._ahead = b""

    def begins_with(self, start: bytes) -> bool:
        """Looks ahead."""
        self._ahead = self._stream.read(min(len(start), self._left))
        self._left -= len(self._ahead)
        return self._ahead == start

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, all that are left without."""
        wanted = self._left + len(self._ahead) if size < 0 else size
        data, self._ahead = self._ahead[:wanted], self._ahead[wanted:]
        if len(data) < wanted and self._left:
            more = self._stream.read(min(wanted - len(data), self._left))
            if not more:
                raise BuildError("git ended in the middle of a file's content")
            self._left -= len(more)
            data += more
        return data

    def drain(self) -> None:
        """Skip what nobody read."""
        while self.read(1 << 20):
            pass


def _member(mode: str, path: str, size: int, content: _Content) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    if mode == "120000":
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, os.fsdecode(content.read(size)), 0o777
        return member
    member.size, member.mode = size, _MODES[mode]
    return member

"""What changed in /testbed, as a git patch, made by code and data that the sandbox's inhabitant never touched.

The changed paths come from the overlay's upper layer (the kernel's filesystems/overlayfs.rst: whiteouts, opaque and
redirected directories). Their content goes as raw blobs through `git fast-import` onto the pristine HEAD in a fresh
sandbox, where `git diff` prints the patch: no index, attribute, hook or configuration of the agent's is read.
"""

# ruff: noqa: PTH123, PTH208

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from minisandbox_ray.errors import Owner, SandboxError

from .spec import ExecResult
from .starter import identity, syscalls

MAX_CONTENT, MAX_PATCH = 128 << 20, 256 << 20  # bytes
_MEMO_CONTENT = 1 << 20  # bytes
_MAX_PATH = 4000  # bytes; git cannot check out longer ones either
_SECONDS = 300.0
_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_GIT = "git -c core.hooksPath=/dev/null -c core.protectNTFS=false -c core.protectHFS=false -c core.compression=1"
_PATHS, _DIRECTORIES = "/tmp/paths", "/tmp/directories"
_TEMPORARY = "${TMPDIR:-/tmp}"  # another, as commands see it, without namespaces
# links of the pristine tree that the agent replaced by directories would stop check-ignore
_CHECK_IGNORE = f"""
xargs -0 sh -c 'for path; do if [ -L "$path" ]; then rm "$path"; fi; done' sh < "{_TEMPORARY}/directories"
{_GIT} check-ignore -z --stdin < "{_TEMPORARY}/paths" || [ $? = 1 ]
"""
_MAKE_PATCH = f"""
{_GIT} -c fastimport.unpackLimit=0 fast-import --quiet --force
exec {_GIT} -c core.quotePath=true diff --binary --full-index --no-renames --no-textconv --no-ext-diff --no-color \
    --src-prefix=a/ --dst-prefix=b/ --unified=3 --inter-hunk-context=0 --diff-algorithm=myers --submodule=short \
    HEAD refs/minisandbox/change --
"""


class DiffTooLargeError(SandboxError):
    """More was written to the repository than a patch can hold."""

    owner: Owner = "agent"


@dataclass(frozen=True, slots=True)
class Change:
    """Paths below /testbed, as bytes, in order."""

    upper: int
    """Descriptor of the upper directory."""
    merged: int
    """Descriptor of /testbed itself."""
    removed: frozenset[bytes]
    """Paths that are no more, or whose content below is listed anew; parents come first."""
    upper_files: frozenset[bytes]
    """Regular files and links, to be read from the upper directory."""
    merged_files: frozenset[bytes]
    """Likewise, below directories that were renamed: to be read from /testbed."""
    hidden: re.Pattern[bytes] | None = None
    """What files hold only because the sandbox has no namespaces."""

    def read(self, path: bytes, budget: int) -> tuple[bytes, bytes] | None:
        """(git's mode, content), or None if it is neither file nor link any more."""
        found = _read(self.upper if path in self.upper_files else self.merged, path, budget)
        return (found[0], self.hidden.sub(b"", found[1])) if found and self.hidden else found

    def __bool__(self) -> bool:
        return bool(self.removed or self.upper_files or self.merged_files)


def collect(upper: int, merged: int) -> Change:
    """List what changed. `merged` is a descriptor of /testbed as the sandbox sees it."""
    removed: set[bytes] = set()
    upper_files: set[bytes] = set()
    merged_files: set[bytes] = set()
    directories = [b""]
    while directories:
        for path, status in _entries(upper, directories.pop()):
            kind = stat.S_IFMT(status.st_mode)
            if kind == stat.S_IFDIR:
                if _attribute(upper, path, "redirect"):
                    removed.add(path)
                    merged_files.update(_files_below(merged, path))
                    continue
                if _attribute(upper, path, "opaque") == b"y":
                    removed.add(path)
                directories.append(path)
            elif kind in (stat.S_IFREG, stat.S_IFLNK):
                upper_files.add(path)
            else:  # a whiteout, or what git does not know: a FIFO, a socket
                removed.add(path)
    return Change(upper, merged, frozenset(removed), frozenset(upper_files), frozenset(merged_files))


def places(directory: str) -> re.Pattern[bytes] | None:
    """Where the root of a sandbox with such a private directory lies, or that of those that it was forked from."""
    if not directory:
        return None
    name = re.sub(rb"\d+", rb"\\d+", re.escape(os.fsencode(Path(directory).name)))
    return re.compile(re.escape(os.fsencode(Path(directory).parent)) + b"/" + name + b"/root")


def compare(pristine: int, merged: int, hidden: re.Pattern[bytes] | None = None) -> Change:
    """The same from two whole trees, where there is no upper layer. What is `hidden` in files makes no difference."""
    before, after = (dict(_below(root)) for root in (pristine, merged))
    removed, changed = set(), set()
    for path, mode in before.items():
        if stat.S_IFMT(after.get(path, 0)) != stat.S_IFMT(mode) and not stat.S_ISDIR(mode):
            removed.add(path)
    for path, mode in after.items():
        if stat.S_ISDIR(mode) or not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            continue
        is_new = path not in before or stat.S_ISDIR(before[path])
        if (is_new or _differ(pristine, merged, path)) and not (
            hidden and _content(pristine, path, hidden) == _content(merged, path, hidden)
        ):
            changed.add(path)
        if stat.S_ISDIR(before.get(path, 0)):
            removed.add(path)
    return Change(merged, merged, frozenset(removed), frozenset(), frozenset(changed), hidden)


def _content(root: int, path: bytes, hidden: re.Pattern[bytes]) -> object:
    try:
        found = _read(root, path, _MEMO_CONTENT)
    except DiffTooLargeError:
        return object()
    return found and (found[0], hidden.sub(b"", found[1]))


def _below(root: int) -> Iterator[tuple[bytes, int]]:
    directories = [b""]
    while directories:
        for path, status in _entries(root, directories.pop()):
            yield path, status.st_mode
            if stat.S_ISDIR(status.st_mode):
                directories.append(path)


def _differ(pristine: int, merged: int, path: bytes) -> bool:
    """Whether git would see another file: its kind, whether it can be executed, its content."""
    descriptors: list[int] = []
    try:
        for root in (pristine, merged):
            descriptors.append(
                syscalls.openat2(root, path, os.O_PATH | os.O_NOFOLLOW, resolve=syscalls.RESOLVE_BENEATH)
            )
        one, two = map(os.fstat, descriptors)
        if stat.S_IFMT(one.st_mode) != stat.S_IFMT(two.st_mode) or one.st_size != two.st_size:
            return True
        if stat.S_ISLNK(one.st_mode):
            return os.readlink(b"", dir_fd=descriptors[0]) != os.readlink(b"", dir_fd=descriptors[1])
        if (one.st_mode ^ two.st_mode) & 0o100:
            return True
        paths = [f"/proc/self/fd/{descriptor}" for descriptor in descriptors]
        with open(paths[0], "rb", buffering=0) as before, open(paths[1], "rb", buffering=0) as after:
            while (piece := before.read(1 << 20)) == after.read(1 << 20):
                if not piece:
                    return False
        return True
    except OSError:  # it is going, or cannot be read
        return True
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _entries(root: int, directory: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """(path, status) of what is in a directory; git's own are left out, and so is what vanishes meanwhile."""
    try:
        descriptor = syscalls.openat2(root, directory or b".", os.O_RDONLY | os.O_DIRECTORY, resolve=_RESOLVE)
    except OSError:
        return
    try:
        for name in sorted(map(os.fsencode, os.listdir(descriptor))):
            path = directory + b"/" + name if directory else name
            if name == b".git" or len(path) > _MAX_PATH:
                continue
            try:
                yield path, os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError:
                continue
    finally:
        os.close(descriptor)


def _files_below(root: int, directory: bytes) -> Iterator[bytes]:
    directories = [directory]
    while directories:
        for path, status in _entries(root, directories.pop()):
            if stat.S_ISDIR(status.st_mode):
                directories.append(path)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                yield path


def _attribute(root: int, path: bytes, name: str) -> bytes | None:
    try:
        descriptor = syscalls.openat2(root, path, os.O_RDONLY | os.O_DIRECTORY, resolve=_RESOLVE)
    except OSError:
        return None
    try:
        # of the two kinds of attribute, the one that nobody inside can write
        return os.getxattr(descriptor, f"{'trusted' if identity.is_privileged() else 'user'}.overlay.{name}")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _read(root: int, path: bytes, budget: int) -> tuple[bytes, bytes] | None:
    """(git's mode, content), or None if it is neither file nor link any more."""
    try:
        descriptor = syscalls.openat2(root, path, os.O_PATH | os.O_NOFOLLOW, resolve=syscalls.RESOLVE_BENEATH)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISLNK(status.st_mode):
            return b"120000", os.readlink(b"", dir_fd=descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        with open(f"/proc/self/fd/{descriptor}", "rb", buffering=0) as file:
            chunks = []
            while data := file.read(1 << 20):
                chunks.append(data)
                budget -= len(data)
                if budget < 0:
                    raise DiffTooLargeError(f"more than {MAX_CONTENT >> 20} MiB of changed files in /testbed")
        return (b"100755" if status.st_mode & 0o100 else b"100644"), b"".join(chunks)
    finally:
        os.close(descriptor)


class Fresh(Protocol):
    """What is needed of a sandbox."""

    def execute(self, argv: list[str], *, stdin: bytes, timeout: float, max_output: int) -> ExecResult: ...

    def write_file(self, path: str, data: bytes) -> None: ...


def memo_key(lower: list[str], change: Change) -> str | None:
    """A name (sha256) of the change of these lower layers, equal only for equal ones; None for a large change."""
    total = hashlib.sha256(repr((lower, sorted(change.removed))).encode())
    budget = _MEMO_CONTENT
    try:
        for path in sorted(change.upper_files | change.merged_files):
            found = change.read(path, budget)
            mode, data = found or (b"", b"")
            budget -= len(data)
            total.update(repr((path, mode, len(data))).encode() + data)
    except DiffTooLargeError:
        return None
    return total.hexdigest()


def make_patch(fresh: Fresh, change: Change) -> str:
    """The patch, by git in a fresh sandbox of the same lower layers. Raises DiffTooLargeError, SandboxError."""
    files = sorted(change.upper_files | change.merged_files)
    ignored = _ignored(fresh, files) if files else frozenset()
    stream = [b"commit refs/minisandbox/change\ncommitter x <x@x> 0 +0000\ndata 0\nfrom HEAD^0\n"]
    budget = MAX_CONTENT
    for path in sorted(change.removed | set(files)):
        if path in change.removed or path in ignored:
            stream.append(b"D %s\n" % _quote(path))
        if path not in ignored and (path in change.upper_files or path in change.merged_files):
            content = change.read(path, budget)
            if content is not None:
                mode, data = content
                budget -= len(data)
                stream.append(b"M %s inline %s\ndata %d\n%s\n" % (mode, _quote(path), len(data), data))
    result = _git(fresh, _MAKE_PATCH, b"".join(stream))
    return os.fsdecode(result)


def _ignored(fresh: Fresh, files: list[bytes]) -> frozenset[bytes]:
    """Those that the pristine repository ignores and does not track."""
    parents = {path[:at] for path in files for at in range(len(path)) if path[at : at + 1] == b"/"}
    fresh.write_file(_PATHS, b"".join(b"./" + path + b"\0" for path in files))
    fresh.write_file(_DIRECTORIES, b"".join(b"./" + path + b"\0" for path in sorted(parents)))
    return frozenset(path[2:] for path in _git(fresh, _CHECK_IGNORE).split(b"\0") if path)


def _quote(path: bytes) -> bytes:
    return b'"' + path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'


def _git(fresh: Fresh, script: str, stdin: bytes = b"") -> bytes:
    result = fresh.execute(["sh", "-ec", script], stdin=stdin, timeout=_SECONDS, max_output=MAX_PATCH)
    if result.truncated:
        raise DiffTooLargeError(f"the patch of /testbed is larger than {MAX_PATCH >> 20} MiB")
    if result.timed_out or (result.exit_code != 0 and result.limit):
        reason = f"{_SECONDS:g} s" if result.timed_out else f"the limit on {result.limit}"
        raise DiffTooLargeError(f"so much was written to /testbed that git needs more than {reason} for a patch")
    if result.exit_code != 0:
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = (lines or ["no message"])[0]
        raise SandboxError(f"no patch of /testbed could be made: {reason}")
    return result.stdout

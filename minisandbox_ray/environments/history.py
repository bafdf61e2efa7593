"""Is the history of a built repository its one commit, and nothing else?

Names are read by Python, which runs nothing. Objects are compared by git in a fresh sandbox, where no process of the
build is left, through an empty repository of its own: no configuration that the build wrote is read.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from minisandbox_ray.environments.git_index import unfollowed
from minisandbox_ray.errors import BuildError
from minisandbox_ray.sandbox import Bind, Isolation, Limits, Sandbox, SandboxSpec

_BRANCH = "refs/heads/main"
_USUAL = {"HEAD", "config", "description", "index", _BRANCH, "info/attributes", "info/exclude", "info/refs"}
_USUAL |= {"objects/info/packs"}
_HEADS = re.compile(r"([A-Z]+_)*HEAD|BISECT_\w+|AUTO_MERGE")
_PACK = re.compile(r"objects/pack/(pack-[0-9a-f]+)\.(pack|idx|rev)")
_LOOSE = re.compile(r"objects/[0-9a-f]{2}/[0-9a-f]{38}([0-9a-f]{24})?")
_SECTION = re.compile(r"^\s*\[\s*([A-Za-z0-9-]+)(?:\.([^\]]*)|\s+\"(.*)\")?\s*\]", re.MULTILINE)
_TELLING = {"remote", "branch", "submodule", "url", "include", "includeif"}
"""Sections of a configuration that name other repositories, or files with more configuration."""
_SHOWN = 5
_SECONDS = 600.0
_LIMITS = Limits(memory_mib=4096)

_COMPARE = r"""
set -eu
LC_ALL=C; export LC_ALL
own=$(mktemp -d)
mkdir "$own/objects" "$own/refs"
echo "ref: refs/heads/main" > "$own/HEAD"
version=0 extension=
[ ${#1} = 40 ] || version=1 extension='[extensions]\n\tobjectFormat = sha256\n'
printf "[core]\n\trepositoryformatversion = $version\n\tbare = true\n$extension" > "$own/config"
export GIT_DIR="$own" GIT_OBJECT_DIRECTORY="$PWD/.git/objects" GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
export GIT_NO_REPLACE_OBJECTS=1
commits=$(git rev-list --count "$1" --)
[ "$commits" = 1 ] || echo "$commits commits instead of one"
git cat-file --batch-all-objects --batch-check='%(objectname) %(objecttype)' | sort -u > "$own/all"
git rev-list --objects --no-object-names "$1" -- | sort -u > "$own/reachable"
join -v 1 "$own/all" "$own/reachable" > "$own/extra"
if [ -s "$own/extra" ]; then
    echo "$(wc -l < "$own/extra") objects that no part of the commit needs, the first a $(head -n 1 "$own/extra" |
        sed 's/\(.*\) \(.*\)/\2 \1/')"
fi
GIT_INDEX_FILE="$PWD/.git/index" git diff-index --cached --quiet "$1" -- || echo "an index of another state"
rm -rf "$own"
"""


def check_history(testbed: Path, name: str = "the repository", isolation: Isolation = "strict") -> None:
    """Raises BuildError with all that is found besides the one commit, on the branch main, of its clean index.

    That is: further commits, branches, tags, remotes, reflog entries beyond one, objects that nothing needs (loose or
    packed), objects elsewhere (alternates), heads of earlier operations (ORIG_HEAD, FETCH_HEAD), any other file of
    git's that is not always there, and repositories inside. `name` says in the message of what.
    """
    git = testbed / ".git"
    if git.is_symlink() or not git.is_dir():
        raise BuildError(f"{name}: history cannot be checked: there is no directory .git")
    commit = _text(git / _BRANCH).strip()
    if _text(git / "HEAD").strip() != f"ref: {_BRANCH}" or not re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", commit):
        raise BuildError(f"{name}: history cannot be checked: HEAD is not the branch main")
    findings = [*_nested(testbed), *_by_name(git, commit), *_by_object(testbed, commit, isolation)]
    if findings:
        more = f", and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
        raise BuildError(f"{name}: history holds more than one commit: {', '.join(findings[:_SHOWN])}{more}")


def _by_name(git: Path, commit: str) -> Iterator[str]:
    packs: dict[str, set[str]] = {}
    for folder, folders, files in git.walk():
        links = [each for each in folders if (folder / each).is_symlink()]
        for each in sorted(files + links):
            path = folder / each
            relative = str(path.relative_to(git))
            if not stat.S_ISREG(path.lstat().st_mode):
                yield f"{relative}, which is no file"
            elif match := _PACK.fullmatch(relative):
                packs.setdefault(match[1], set()).add(match[2])
            elif relative.startswith("logs/"):
                yield from _reflog(relative.removeprefix("logs/"), _text(path), commit)
            elif relative not in _USUAL and not _LOOSE.fullmatch(relative):
                yield _kind(relative)
    yield from _packs(git, packs)
    for match in _SECTION.finditer(_text(git / "config")):
        if match[1].lower() in _TELLING:
            yield " ".join(filter(None, [match[1].lower(), match[2] or match[3], "in the configuration"]))
    for line in _text(git / "info/refs").splitlines():
        if line.split("\t") != [commit, _BRANCH]:
            yield f"info/refs with {line.partition(chr(9))[2] or line}"


def _kind(relative: str) -> str:
    """What a file of git's means, for people."""
    for prefix, kind in (("refs/tags/", "tag"), ("refs/heads/", "branch"), ("refs/remotes/", "remote branch")):
        if relative.startswith(prefix):
            return f"{kind} {relative.removeprefix(prefix)}"
    if relative.startswith("refs/"):
        return f"reference {relative}"
    if relative in {"objects/info/alternates", "objects/info/http-alternates"}:
        return "alternates (objects of another repository)"
    if _HEADS.fullmatch(relative):
        return relative
    return f"git's file {relative}"


def _reflog(reference: str, text: str, commit: str) -> Iterator[str]:
    entries = text.splitlines()
    own = reference in {"HEAD", _BRANCH} and len(entries) <= 1
    if not own or not all(re.fullmatch(rf"0+ {commit} .*", entry) for entry in entries):
        yield f"reflog of {reference} with {len(entries)} entries"


def _packs(git: Path, packs: dict[str, set[str]]) -> Iterator[str]:
    """Packs without an index, or whose index leaves some of their objects out: git would not list those."""
    for name, kinds in packs.items():
        if not {"pack", "idx"} <= kinds:
            yield f"{name} without its {'index' if 'pack' in kinds else 'pack'}"
            continue
        with (git / f"objects/pack/{name}.pack").open("rb") as file:  # gitformat-pack(5)
            packed = int.from_bytes(file.read(12)[8:], "big")
        with (git / f"objects/pack/{name}.idx").open("rb") as file:
            version2 = file.read(8) == b"\xfftOc\0\0\0\2"
            file.seek((8 if version2 else 0) + 255 * 4)
            indexed = int.from_bytes(file.read(4), "big")
        if packed != indexed:
            yield f"{name} with {packed} objects, of which its index lists {indexed}"


def _nested(testbed: Path) -> Iterator[str]:
    for folder, folders, files in testbed.walk():
        if folder == testbed:
            folders.remove(".git")
        elif ".git" in folders + files:
            yield f"a repository in {folder.relative_to(testbed)}"
            folders[:] = [each for each in folders if each != ".git"]


def _by_object(testbed: Path, commit: str, isolation: Isolation) -> list[str]:
    bind = Bind(source=testbed.absolute(), target="/testbed")
    with Sandbox(SandboxSpec(binds=[bind], hostname="build", isolation=isolation, limits=_LIMITS)) as box:
        done = box.execute(["/bin/sh", "-c", _COMPARE, "sh", commit], timeout=_SECONDS)
    findings = done.stdout.decode(errors="replace").splitlines()
    if done.exit_code != 0 or done.timed_out or done.limit:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"{done.limit or 'time'} limit"]
        findings.append(f"what git cannot read ({lines[-1]})")
    return findings


def _text(path: Path) -> str:
    """A file's text; "" if there is none, a link is in its place, or it is too large to be one of git's small ones."""
    try:
        fd = unfollowed(path)
    except OSError:
        return ""
    with open(fd, "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(1 << 20).decode(errors="replace")

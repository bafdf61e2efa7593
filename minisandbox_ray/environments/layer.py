"""A task's starting state as a thin layer over an environment's repository.

The layer holds the files that the patch changes, whiteouts for those it deletes, and a .git of its own with one
commit: neither its objects, its index nor a reflog holds the state before the patch.
"""

import os
import stat
from pathlib import Path

from minisandbox_ray.environments.archive import survey
from minisandbox_ray.environments.git_objects import IDENTITY, MESSAGE
from minisandbox_ray.environments.tar import FIXED_TIME
from minisandbox_ray.errors import TaskError
from minisandbox_ray.sandbox import Bind, Sandbox, SandboxSpec

GIT = "git -c safe.directory=* -c core.checkStat=minimal -c core.trustctime=false -c core.logAllRefUpdates=false "
GIT += "-c core.hooksPath=/dev/null -c gc.auto=0 -c pack.threads=1 -c core.fsmonitor=false"

ONE_COMMIT = f"""
commit=$({GIT} commit-tree "$({GIT} write-tree)" -m '{MESSAGE}')
{GIT} update-ref --no-deref HEAD "$commit"
{GIT} symbolic-ref HEAD refs/heads/main
{GIT} update-ref refs/heads/main "$commit"
rm -rf .git/logs .git/ORIG_HEAD .git/COMMIT_EDITMSG .git/FETCH_HEAD .git/refs/tags .git/packed-refs
rm -rf .git/refs/heads .git/refs/remotes && mkdir -p .git/refs/heads .git/refs/tags
echo "$commit" > .git/refs/heads/main
{GIT} repack -a -d -q -n
{GIT} prune --expire=now
{GIT} update-index -q --refresh || true
loose=$(find .git/objects -type f -path '.git/objects/??/*' | wc -l)
packed=$({GIT} count-objects -v | sed -n 's/^in-pack: //p')
reachable=$({GIT} rev-list --objects --all | wc -l)
if [ "$loose" != 0 ] || [ "$packed" != "$reachable" ]; then
    echo "the repository keeps objects of an older state" >&2
    exit 1
fi
"""
"""Shell: turn what is staged into the only commit, and drop every object and log that is not part of it."""

_DERIVE = f"""
set -eu
cd /testbed
{GIT} apply --index --whitespace=nowarn /tmp/task.patch
{GIT} diff --cached --name-only --no-renames --diff-filter=d -z HEAD > /tmp/changed
{GIT} diff --cached --name-only --no-renames --diff-filter=D -z HEAD > /tmp/deleted
xargs -0 -r touch -h -d @{FIXED_TIME} -- < /tmp/changed
{ONE_COMMIT}
find .git ! -name index -exec touch -h -d @{FIXED_TIME} {{}} +
touch -d @{FIXED_TIME + 86400} .git/index
xargs -0 -r cp -a --parents -t /layer -- < /tmp/changed
cp -a .git /layer/.git
cat /tmp/deleted
"""


def make_layer(spec: SandboxSpec, testbed: Path, patch: str, layer: Path, name: str) -> None:
    """Fill the new directory `layer` for `patch` over the repository `testbed`, which `spec` shows at /testbed.

    Raises TaskError if the patch does not apply; `name` says in the message to what.
    """
    layer.mkdir()
    if not patch.strip():
        return
    binds = [*spec.binds, Bind(source=layer, target="/layer", writable=True)]
    with Sandbox(spec.model_copy(update={"binds": binds})) as box:
        box.write_file("/tmp/task.patch", patch.encode(errors="surrogateescape"))
        done = box.execute(["/bin/sh", "-c", _DERIVE], timeout=300, env=IDENTITY)
    if done.exit_code != 0 or done.timed_out or done.limit:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or [f"{done.limit or 'time'} limit"]
        raise TaskError(f"the task's patch does not apply to {name}: {reason[0]}")
    survey(layer)
    for deleted in filter(None, done.stdout.split(b"\0")):
        _whiteout(layer, Path(os.fsdecode(deleted)))
    # The overlay merges the layer's .git with the one below: hide what only the lower one has, its pack above all.
    for folder, folders, files in (testbed / ".git").walk():
        place = folder.relative_to(testbed)
        for each in files + folders:
            _whiteout(layer, place / each)
        folders[:] = [each for each in folders if (layer / place / each).is_dir()]


def write_layer_size(made: Path) -> None:
    """Note the size of a layer's directory in the file ``bytes``, for the store's budget."""
    size = sum(path.lstat().st_size for path in made.rglob("*") if stat.S_ISREG(path.lstat().st_mode))
    (made / "bytes").write_text(str(size))


def _whiteout(layer: Path, path: Path) -> None:
    """Hide the lower file `path`: overlayfs takes a character device 0:0 for "deleted", also if made without root."""
    folder = layer
    for part in path.parent.parts:
        folder /= part
        if not os.path.lexists(folder):
            folder.mkdir()
        elif not stat.S_ISDIR(folder.lstat().st_mode):
            return  # the patch put something else where this directory was, which hides it already
    if not os.path.lexists(folder / path.name):
        os.mknod(folder / path.name, stat.S_IFCHR | 0o000, os.makedev(0, 0))

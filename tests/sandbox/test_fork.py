"""Copies of a sandbox's files: forks, forks of forks, snapshots."""

import os
from pathlib import Path

import pytest

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import Bind, Sandbox, SandboxSpec

from .conftest import Factory, run_for_ever

LISTING = (
    "cd / && find . -xdev \\( -path ./dev -o -path ./proc \\) -prune -o -path ./dev/minisandbox -prune -o"
    " -printf '%p %y %m %U %G %s %l %n\\n' | grep -v '^./tmp \\|^. ' | sort;"
    " find /testbed /dev/shm -printf '%p %y %m %U %G %l %n\\n' | sort;"
    " find /testbed /tmp /root /dev/shm -type f -size -1M -print0 | sort -z | xargs -0 cat | md5sum"
)


def listing(sandbox: Sandbox) -> str:
    result = sandbox.execute(["/bin/sh", "-c", LISTING], cwd="/")
    assert result.exit_code == 0, result.stderr
    return os.fsdecode(result.stdout)


WRITE = """
set -e
cd /testbed
echo two > a.txt; mkdir -p new/deep; echo x > new/deep/file; ln new/deep/file new/hard; ln -s ../a.txt new/link
mkfifo new/fifo; chmod 751 new; chmod 600 new/deep/file; touch -d @1000000000 new/deep/file
truncate -s 10G /opt/sparse; echo end >> /opt/sparse
printf 'odd' > $'new/line\\nbreak'; printf 'latin' > $'new/\\xe9'
echo in-root > /root/file; echo in-tmp > /tmp/file; rm /etc/hostname; echo more >> /etc/passwd; mkdir /opt/tool
echo shared > /dev/shm/file
rm -rf .git; mkdir .git; echo new > .git/HEAD
"""


def test_a_fork_has_the_same_files(start: Factory) -> None:
    parent = start()
    assert parent.run(WRITE + "cd /").exit_code == 0
    with parent.fork() as child:
        assert listing(child) == listing(parent)
        assert child.run("cat /testbed/a.txt; ls -A /testbed/.git; cat /etc/hostname").output.startswith("two\nHEAD\n")
        assert child.run("find / -xdev -size +1G").output == parent.run("find / -xdev -size +1G").output
        assert child.diff() == parent.diff()


def test_forks_are_independent(start: Factory) -> None:
    parent = start()
    parent.run("echo parent > a.txt")
    with parent.fork() as one, parent.fork() as two:
        one.run("echo one > a.txt; rm -rf .git; echo x > /tmp/x")
        two.run("echo two > a.txt")
        assert parent.run("cat a.txt; ls -d .git; ls /tmp").output == "parent\n.git\n"
        assert two.run("cat a.txt; ls -d .git; ls /tmp").output == "two\n.git\n"
        parent.close()
        assert one.run("cat a.txt").output == "one\n"


def test_forks_of_forks(start: Factory) -> None:
    sandbox = start()
    for depth in range(50):
        sandbox.run(f"echo {depth} >> a.txt; echo {depth} > file{depth}; rm -f file{depth - 2}; echo {depth} > /tmp/x")
        child = sandbox.fork()
        sandbox.close()
        sandbox = child
    with sandbox:
        assert sandbox.run("wc -l < a.txt; ls -1; cat /tmp/x").output == "51\na.txt\nfile48\nfile49\n49\n"
        assert "+49" in sandbox.diff()


def test_directories_and_variables_go_with_a_fork(start: Factory) -> None:
    parent = start()
    parent.run("mkdir -p /tmp/work; cd /tmp/work; export COLOUR=blue; /bin/true")
    parent.open_session("second", cwd="/etc", rows=10, columns=30)
    with parent.fork() as child:
        assert child.sessions == ["main", "second"]
        result = child.run("pwd; echo $COLOUR")
        assert result.output == "/tmp/work\nblue\n"
        assert child.run("pwd; stty size", session="second").output == "/etc\n10 30\n"
        with child.fork() as grandchild:
            assert grandchild.run("echo $COLOUR").output == "blue\n"


def test_processes_stay_behind(start: Factory) -> None:
    parent = start()
    parent.run("sleep 1000 & echo $! > /tmp/pid")
    with parent.fork() as child:
        assert child.run("kill -0 $(cat /tmp/pid)").exit_code != 0


def test_renamed_and_removed_directories(start: Factory, tmp_path: Path) -> None:
    """What an overlay keeps in extended attributes."""
    lower = tmp_path / "lower"
    for name in ("old/deep", "gone", "opaque"):
        (lower / name).mkdir(parents=True)
        (lower / name / "file").write_text(name)
    parent = start(lower=lower)
    parent.run("mv old moved; rm -r gone; rm -r opaque; mkdir opaque; echo x > opaque/new")
    with parent.fork() as child:
        shown = "find . | sort; cat moved/deep/file; rm -r moved; ls"
        assert child.run(shown).output == parent.run(shown).output


def test_limits_and_binds_are_the_specs(start: Factory, tmp_path: Path) -> None:
    parent = start(spec={"binds": [Bind(source=tmp_path, target="/data", writable=True)]}, disk_mib=32)
    parent.run("echo x > /data/x; head -c 20M /dev/zero > big")
    with parent.fork() as child:
        assert child.run("cat /data/x").output == "x\n"
        assert child.run("head -c 20M /dev/zero > more").limit == "disk"


def test_a_fork_of_what_is_closed() -> None:
    with Sandbox(SandboxSpec()) as sandbox:
        pass
    with pytest.raises(SandboxError, match="closed"):
        sandbox.fork()


def test_snapshot_and_restore(start: Factory) -> None:
    sandbox = start()
    assert sandbox.run(WRITE + "cd /tmp; export KEPT=1; /bin/true").exit_code == 0
    before, patch = listing(sandbox), sandbox.diff()
    with sandbox.snapshot() as snapshot:
        sandbox.run("rm -rf /testbed/* /root/file; echo new > /tmp/new; cd /; export KEPT=2; sleep 1000 & /bin/true")
        assert listing(sandbox) != before
        sandbox.restore(snapshot)
        assert listing(sandbox) == before
        assert sandbox.diff() == patch
        assert sandbox.run("pwd; echo $KEPT; pgrep sleep").output == "/tmp\n1\n"
        sandbox.run("echo again > /testbed/a.txt")
        sandbox.restore(snapshot)
        assert sandbox.run("cat /testbed/a.txt").output == "two\n"
        sandbox.close()
        with Sandbox(sandbox.spec, snapshot=snapshot) as other:
            assert listing(other) == before


def test_snapshots_of_another_kind_are_refused(start: Factory) -> None:
    sandbox = start()
    with sandbox.snapshot() as snapshot, pytest.raises(ValueError, match="another spec"):
        Sandbox(SandboxSpec(), snapshot=snapshot)
    with pytest.raises(SandboxError, match="closed"):
        sandbox.restore(snapshot)
    assert sandbox.run("cat a.txt").output == "one\n"


def test_restore_ends_what_runs(start: Factory) -> None:
    sandbox = start()
    with sandbox.snapshot() as snapshot:
        (thread,), raised = run_for_ever(sandbox)
        sandbox.restore(snapshot)
        thread.join(30)
        assert raised
        assert sandbox.run("ls /tmp; ls | grep up").output == ""


def test_of_a_tree_that_no_path_reaches(start: Factory) -> None:
    """Deeper than the kernel takes paths: neither a reason to fail, nor to take long."""
    sandbox = start()
    code = "import os\nfor _ in range(2000):\n os.mkdir('d' * 20); os.chdir('d' * 20)\nopen('file', 'w').close()"
    for place in ("/tmp", "/testbed"):
        result = sandbox.execute(["/usr/bin/python3", "-c", code], cwd=place)
        assert result.exit_code == 0, result.stderr
    sandbox.run("cd /tmp; for i in $(seq 100); do cd dddddddddddddddddddd; done; echo x > here; ln here there")
    place = "/tmp/" + "dddddddddddddddddddd/" * 100
    with sandbox.fork() as child, sandbox.snapshot() as snapshot, Sandbox(sandbox.spec, snapshot=snapshot) as other:
        for copy in (child, other):
            assert copy.run(f"cat {place}/here; stat -c %h {place}/there").output == "x\n2\n"
    assert sandbox.diff() == ""


def test_restore_needs_a_snapshot(start: Factory) -> None:
    sandbox = start()
    sandbox.run("echo two > a.txt")
    for wrong in (None, "x"):
        with pytest.raises(TypeError, match="snapshot"):
            sandbox.restore(wrong)  # type: ignore[arg-type]
    assert sandbox.run("cat a.txt").output == "two\n"

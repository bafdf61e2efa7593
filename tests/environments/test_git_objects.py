"""Git's pack, made of the files of repositories that are made as builds make them."""

import hashlib
import os
import shutil
import stat
import subprocess
import tracemalloc
from functools import partial
from pathlib import Path

import pytest

from minisandbox_ray.environments import Environment, Manifest, NodeStore, cache_root
from minisandbox_ray.environments import git_objects as module
from minisandbox_ray.environments.archive import archive_path, pack, survey, unpack, write_manifest
from minisandbox_ray.environments.git_objects import ForeignObjectsError, check_pack, make_pack, replace_pack
from minisandbox_ray.environments.history import check_history
from minisandbox_ray.environments.layer import ONE_COMMIT
from minisandbox_ray.environments.verify import verify
from minisandbox_ray.errors import DamagedArchiveError, StoreFullError
from minisandbox_ray.sandbox import Sandbox

from .conftest import filled, on_small_disk
from .test_history import BLOB, START, shell

FILES = {
    b"a": b"before a/ by name, a directory\n",
    b"sub/a.py": b"print()\n",
    b"sub-b/x": b"sorts between sub and sub/\n",
    b"sub.c": b"the same\n",
    b"sub/deep/er/x": b"the same\n",
    b"empty": b"",
    b"name \xff\n": b"not UTF-8\n",
    b"text": b"\r\n".join(b"line %d" % number for number in range(40_000)),
    b"zeros": bytes(300_000),
    b"fifteen": b"x" * 15,
    b"sixteen": b"x" * 16,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("objects") / "testbed"
    for name, content in FILES.items():
        path = Path(os.fsdecode(os.fsencode(place) + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (place / "sub/a.py").chmod(0o755)
    (place / "link").symlink_to("sub/deep")
    (place / "dangling").symlink_to("/nowhere/at all")
    shell(place, START)
    return place


@pytest.fixture
def testbed(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "testbed", symlinks=True)


def git(testbed: Path, *words: str) -> str:
    command = ["git", "-c", "safe.directory=*", *words]
    done = subprocess.run(command, cwd=testbed, capture_output=True, text=True, check=True, errors="replace")
    return done.stdout + done.stderr


def packed(testbed: Path) -> dict[str, bytes]:
    return files(testbed / ".git/objects/pack")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() if path.is_file() else b"" for path in folder.iterdir()}


def test_git_finds_the_same_objects_in_it(testbed: Path) -> None:
    listing = ("cat-file", "--batch-all-objects", "--batch-check")
    before = git(testbed, *listing)
    assert len(before.splitlines()) > len(FILES) and "commit" in before and "tree" in before
    ours = replace_pack(testbed)
    assert {path.suffix for path in ours} == {".pack", ".idx"} and set(packed(testbed)) == {path.name for path in ours}
    assert git(testbed, *listing) == before
    assert git(testbed, "fsck", "--full", "--strict") == ""
    git(testbed, "verify-pack", str(next(path for path in ours if path.suffix == ".idx")))
    assert git(testbed, "status", "--porcelain", "--ignored") == ""
    shutil.rmtree(testbed / "sub")
    git(testbed, "checkout", "--", "sub")
    assert os.access(testbed / "sub/a.py", os.X_OK) and (testbed / "sub/deep/er/x").read_bytes() == b"the same\n"
    assert check_pack(testbed) == ""


def test_it_is_made_again_without_the_first(testbed: Path) -> None:
    for path in replace_pack(testbed):
        path.unlink()
        assert check_pack(testbed)
    other = shutil.copytree(testbed, testbed.with_name("other"), symlinks=True)
    for each in (testbed, other):
        make_pack(each)
        assert git(each, "fsck", "--full", "--strict") == "" and check_pack(each) == ""
    assert packed(testbed) == packed(other)


@pytest.mark.parametrize(
    "script",
    [
        f"{BLOB}; git repack -adk",
        "echo other >> a",
        "rm a",
        "rm -r link; cp -r sub/deep link",
        "mv sub elsewhere; ln -s elsewhere sub",
        "rm a; mkfifo a",
        "rm a; ln -s /etc/hostname a",
        "git commit -q --amend -m Other; rm -rf .git/logs; git repack -adq; git prune",
        "git commit -q --amend --author 'o <o@o>' --no-edit; rm -rf .git/logs; git repack -adq; git prune",
        "git update-index --index-version 4",
        "git update-index --skip-worktree a; echo other > a",
        "echo more > new; git add -N new",
        "git add -A; echo x > .git/refs/heads/main",
        "rm .git/index; ln -s /etc/passwd .git/index",
        "rm .git/refs/heads/main; mkfifo .git/refs/heads/main",
        "mv .git/objects/pack packs; ln -s ../../packs .git/objects/pack",
        "mv .git repository; ln -s repository .git",
        "git tag -am other x; git repack -ad",
        "mkdir .git/objects/pack/x",
        "mkfifo .git/objects/pack/x.keep",
        "truncate -s 1T .git/index",
        "cd .git/objects/pack; for each in *; do cp $each pack-0.${each##*.}; done",
    ],
)
def test_what_is_not_only_the_files_stays_as_it_is(testbed: Path, script: str) -> None:
    shell(testbed, script)
    place = (testbed / ".git/objects/pack").resolve()
    before = files(place)
    assert replace_pack(testbed) == []
    assert files(place) == before


def test_a_large_file_keeps_its_pack(testbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 200_000)
    before = packed(testbed)
    assert replace_pack(testbed) == []
    assert packed(testbed) == before
    check_history(testbed)


def test_memory_does_not_grow_with_files(testbed: Path) -> None:
    (testbed / "large").write_bytes(os.urandom(24 << 20))
    shell(testbed, f"git add -A; {ONE_COMMIT}")
    tracemalloc.start()
    try:
        assert replace_pack(testbed)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert git(testbed, "fsck", "--full", "--strict") == ""


def test_a_pack_that_no_index_lists_goes(testbed: Path) -> None:
    """Whatever it may hold."""
    shell(testbed, "cd .git/objects/pack; cp *.pack pack-0.pack")
    made = replace_pack(testbed)
    assert made and set(packed(testbed)) == {path.name for path in made}
    check_history(testbed)


def test_another_pack_under_its_name_is_found(testbed: Path) -> None:
    index, pack_file = replace_pack(testbed)
    data = pack_file.read_bytes()[:-30]
    pack_file.write_bytes(data + hashlib.sha1(data).digest())
    assert check_pack(testbed) == f"{index.relative_to(testbed)} is another pack's"
    index.rename(index.with_name("pack-0.idx"))
    assert "or others are" in check_pack(testbed)


def _on_a_full_disk(disk: Path, testbed: Path) -> None:
    copy = shutil.copytree(testbed, disk / "testbed", symlinks=True)
    with filled(disk, leave=20_000), pytest.raises(StoreFullError, match=r"^cannot write .*: free some space there"):
        replace_pack(copy)
    assert packed(copy) == packed(testbed)
    assert replace_pack(copy)


def test_a_full_disk_leaves_gits_pack(testbed: Path, tmp_path: Path) -> None:
    on_small_disk(partial(_on_a_full_disk, testbed=testbed), tmp_path, 8)


def test_directories_may_be_deeper_than_python_recurses(tmp_path: Path) -> None:
    try:
        shell(
            tmp_path, f"mkdir testbed; cd testbed; p=$(printf 'd/%.0s' $(seq 1100)); mkdir -p $p; echo > $p/f; {START}"
        )
        assert replace_pack(tmp_path / "testbed")
        assert git(tmp_path / "testbed", "fsck", "--full", "--strict") == ""
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "testbed"], check=True)  # shutil's cannot


def test_places_of_more_than_31_bits_are_as_git_reads_them(tmp_path: Path) -> None:
    places = [12, 5 << 30, (1 << 31) - 1, 1 << 31, 1 << 40]
    rows = [module._Row(bytes([number * 50]) * 20, number, place) for number, place in enumerate(places)]
    done = subprocess.run(["git", "show-index"], input=module._index(rows, bytes(20)), capture_output=True, check=True)
    expected = [f"{row.place} {row.sha1.hex()} ({row.crc:08x})" for row in rows]
    assert done.stdout.decode().splitlines() == expected


def test_a_link_is_not_followed(testbed: Path, tmp_path: Path) -> None:
    """The same files elsewhere on this machine are none of the repository's."""
    shutil.move(testbed / "sub", tmp_path / "outside")
    (testbed / "sub").symlink_to(tmp_path / "outside")
    for path in (testbed / ".git/objects/pack").iterdir():
        path.unlink()
    with pytest.raises(ForeignObjectsError, match=r": 'sub/.*' is not there$"):
        make_pack(testbed)


def test_an_archive_is_smaller_by_it(environment: Environment, archives: Path, tmp_path: Path) -> None:
    manifest = environment.manifest
    made_of_files = sorted((environment.testbed / ".git/objects/pack").iterdir())
    assert manifest.made_bytes == sum(path.stat().st_size for path in made_of_files)
    packed = archive_path(archives, manifest.digest)
    listed = subprocess.run(["tar", "--zstd", "-tf", str(packed)], capture_output=True, text=True, check=True).stdout
    assert "testbed/.git/index\n" in listed and "testbed/.git/objects/pack/\n" in listed
    assert not [line for line in listed.splitlines() if line.endswith((".pack", ".idx", ".rev"))]
    target = tmp_path / "target"
    target.mkdir()
    unpack(archives, manifest, target)
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in target.glob("testbed/.git/objects/pack/*"))
    with Sandbox(environment.sandbox_spec()) as sandbox:
        assert sandbox.run("git fsck --full --strict && git show --stat | tail -1").exit_code == 0
        assert sandbox.run("git ls-files | wc -l").output.strip() != "0"


def changed(environment: Environment, tmp_path: Path, change: str) -> tuple[Path, Manifest]:
    """The archive of an environment whose repository's files were changed before it was packed."""
    tree, shelf = tmp_path / "tree", tmp_path / "shelf"
    shutil.copytree(environment.root, tree, symlinks=True, ignore=shutil.ignore_patterns("manifest.json", "layers"))
    shell(tree / "testbed", change)
    made = list((tree / "testbed/.git/objects/pack").iterdir())
    made_bytes = sum(path.stat().st_size for path in made)
    files, size = survey(tree)
    packed = pack(tree, shelf, environment.digest, without=made)
    manifest = environment.manifest.model_copy(
        update={
            "archive_sha256": packed.archive_sha256,
            "archive_bytes": packed.archive_bytes,
            "layers": packed.layers,
            "files": files,
            "unpacked_bytes": size,
            "made_bytes": made_bytes,
        }
    )
    write_manifest(shelf, manifest)
    return shelf, manifest


def test_files_that_are_not_those_of_the_commit_are_a_damaged_archive(
    environment: Environment, tmp_path: Path, fresh: NodeStore
) -> None:
    shelf, _ = changed(environment, tmp_path, "echo '# more' >> setup.py")
    with pytest.raises(DamagedArchiveError, match=r"holds something else than its files: 'setup\.py'") as caught:
        fresh.materialise(environment.digest, shelf)
    assert "\n" not in str(caught.value)
    assert not fresh.contains(environment.digest)


def test_a_repository_that_is_a_link_is_not_written_to(
    environment: Environment, tmp_path: Path, fresh: NodeStore
) -> None:
    outside = shutil.copytree(environment.testbed / ".git", tmp_path / "outside")
    for path in (outside / "objects/pack").iterdir():
        path.unlink()
    shelf, _ = changed(
        environment,
        tmp_path,
        f"cp -r .git/objects/pack .git/p; rm -r .git/objects/pack; "
        f"ln -s {outside}/objects/pack .git/objects/pack; mv .git/p/* .git/ && rmdir .git/p",
    )
    with pytest.raises(DamagedArchiveError, match="is no directory"):
        fresh.materialise(environment.digest, shelf)
    assert list((outside / "objects/pack").iterdir()) == []


def test_a_damaged_pack_of_an_unpacked_copy_is_found(
    environment: Environment, archives: Path, fresh: NodeStore
) -> None:
    copy = fresh.materialise(environment.digest, archives)
    assert [each.problem for each in verify(environment.digest, [archives], [fresh])] == ["", ""]
    (pack_file,) = (copy.testbed / ".git/objects/pack").glob("*.pack")
    times = pack_file.stat()
    data = bytearray(pack_file.read_bytes())
    data[len(data) // 2] ^= 1
    pack_file.write_bytes(data)
    os.utime(pack_file, ns=(times.st_atime_ns, times.st_mtime_ns))
    for shelves in ([archives], [cache_root() / "nothing"]):
        (problem,) = (each.problem for each in verify(environment.digest, shelves, [fresh]) if each.problem)
        assert f"{pack_file.name} is damaged" in problem
    assert stat.S_IMODE(pack_file.stat().st_mode) == 0o644

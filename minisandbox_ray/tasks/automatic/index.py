"""Source distributions as the package indexes list them, downloaded without running anything of theirs.

pip has no such way: it asks a source distribution's build backend for metadata before it keeps the file.
"""

import base64
import hashlib
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit, urlunsplit

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from minisandbox_ray.environments import cache_root, dated_index
from minisandbox_ray.environments.cache import write_atomically
from minisandbox_ray.environments.pip_settings import PipSettings, host_pip_settings
from minisandbox_ray.errors import BuildError

LARGEST = 256 << 20
"""Bytes of a source distribution."""
SECONDS = 120.0
"""For a download to answer."""


@dataclass(frozen=True, slots=True)
class Sdist:
    """A source distribution on an index."""

    filename: str
    url: str
    sha256: str
    """Empty where the index tells none."""
    version: Version
    uploaded: datetime


def list_sdists(name: str) -> list[Sdist]:
    """A project's source distributions that are not yanked, oldest version first; empty if no index knows it.

    Raises BuildError where an index does not answer or tells no upload times.
    """
    pip = host_pip_settings()
    variables = pip.variables
    urls = [
        variables.get("PIP_INDEX_URL") or dated_index.default_index(),
        *variables.get("PIP_EXTRA_INDEX_URL", "").split(),
    ]
    found: dict[str, Sdist] = {}
    for url in urls:
        if urlsplit(url).scheme not in {"http", "https"}:
            continue
        try:
            files = dated_index.project_files(url, canonicalize_name(name), dated_index.Reach.of(pip))
        except (OSError, ValueError) as error:
            raise BuildError(f"{name}: the package index does not answer: {pip.redact(str(error))}") from None
        for each in files or ():
            try:
                _, version = parse_sdist_filename(each.name)
            except (InvalidSdistFilename, InvalidVersion):
                continue
            if each.yanked is None:
                address, fragment = urldefrag(each.url)
                sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
                found.setdefault(each.name, Sdist(each.name, address, sha256, version, each.uploaded))
    # A project may have both a .zip and a .tar.gz of a version: the tar is what pip takes, too.
    return sorted(found.values(), key=lambda each: (each.version, each.filename.endswith(".tar.gz")))


def newest_sdist(name: str) -> Sdist | None:
    """The newest that is no pre-release; None if there is none. Raises BuildError where the index does not answer."""
    return next((each for each in reversed(list_sdists(name)) if not each.version.is_prerelease), None)


def find_sdist(name: str, version: str) -> Sdist | None:
    """That of one version; None if there is none. Raises BuildError where the index does not answer."""
    try:
        wanted = Version(version)
    except InvalidVersion:
        return None
    return next((each for each in reversed(list_sdists(name)) if each.version == wanted), None)


def download(sdist: Sdist, largest: int = LARGEST) -> bytes:
    """The file. Raises BuildError if it can't be had, is larger than that many bytes, or is not what the index says."""
    pip = host_pip_settings()
    try:
        with _opener(pip).open(_request(sdist.url), timeout=SECONDS) as answer:
            data = answer.read(largest + 1)
    except OSError as error:
        raise BuildError(f"{sdist.filename} can't be downloaded: {pip.redact(str(error))}") from None
    if len(data) > largest:
        raise BuildError(f"{sdist.filename} is larger than {largest >> 20} MiB")
    if sdist.sha256 and hashlib.sha256(data).hexdigest() != sdist.sha256:
        raise BuildError(f"{sdist.filename} is not the file that the index names: its sha256 differs")
    return bytes(data)


def keep(sdist: Sdist, name: str, version: str) -> Path:
    """Download into the cache, where builds of this source look first; does nothing if it is there."""
    folder = cache_root() / "sdists" / f"{name}-{version}"
    known = sorted(path for path in folder.glob("*") if not path.name.startswith("."))
    if not known:
        folder.mkdir(parents=True, exist_ok=True)
        known = [folder / sdist.filename]
        write_atomically(known[0], download(sdist))
    return known[0]


def _request(url: str) -> urllib.request.Request:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host)))
    if user:
        request.add_header("Authorization", f"Basic {base64.b64encode(unquote(user).encode()).decode()}")
    return request


def _opener(pip: PipSettings) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cafile=pip.variables.get("PIP_CERT") or None)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if proxy := pip.variables.get("PIP_PROXY"):
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    return urllib.request.build_opener(*handlers)

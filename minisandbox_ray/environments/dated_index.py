"""The package indexes as they were at a date, for pips of every age.

pip's own cut-off needs a pip, and so a Python, that old repositories don't run on. So a build with a date talks to a
server on 127.0.0.1 that shows the pages of the host's indexes (the simple repository API, PEP 503) without the files
that were uploaded later (``upload-time``, PEP 700). The files themselves come from where they always do.
"""

import base64
import functools
import html
import json
import re
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from minisandbox_ray.environments.pip_settings import PipSettings
from minisandbox_ray.errors import BuildError

SECONDS = 60.0
"""For one page of an index."""
LARGEST_PAGE = 64 << 20
"""Bytes."""
_JSON = "application/vnd.pypi.simple.v1+json"


def cutoff(value: str) -> datetime:
    """The moment before which uploads count: an ISO 8601 time (UTC if it says no zone), or the end of a date's day.

    Raises ValueError for what is neither.
    """
    if re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        return datetime.combine(date.fromisoformat(value), time(), UTC) + timedelta(days=1)
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _File:
    """One file of a project."""

    name: str
    url: str
    uploaded: datetime
    requires_python: str
    metadata: str
    """"sha256=…" if the file's metadata can be had alone, "true" without a hash, else empty."""
    yanked: str | None

    def anchor(self) -> str:
        """Its line on a page, in the form that all pips read."""
        attributes = {"data-requires-python": self.requires_python, "data-core-metadata": self.metadata}
        attributes["data-dist-info-metadata"] = self.metadata
        words = [f'{name}="{html.escape(value)}"' for name, value in attributes.items() if value]
        words += [f'data-yanked="{html.escape(self.yanked)}"'] if self.yanked is not None else []
        return f'<a href="{html.escape(self.url)}" {" ".join(words)}>{html.escape(self.name)}</a><br/>\n'


class DatedIndex:
    """Serves the host's indexes as of `exclude_newer` inside a ``with``; everything as long as `open` is set.

    Indexes on disk, ``find-links`` and servers that tell no upload times have no part in it: `left_out` names them.
    Raises BuildError where that leaves none.
    """

    def __init__(self, pip: PipSettings, exclude_newer: str) -> None:
        self._cutoff = cutoff(exclude_newer)
        self._pip = pip
        variables = pip.variables
        indexes = [
            variables.get("PIP_INDEX_URL") or default_index(),
            *variables.get("PIP_EXTRA_INDEX_URL", "").split(),
        ]
        self._indexes = [url for url in indexes if urlsplit(url).scheme in {"http", "https"}]
        self.left_out = [url for url in indexes if url not in self._indexes] + variables.get(
            "PIP_FIND_LINKS", ""
        ).split()
        """Where nothing is taken from."""
        self.open = False
        """Whether files of any date are shown: for the builder's own tools."""
        if not self._indexes or variables.get("PIP_NO_INDEX", "").lower() in {"1", "true", "yes", "on"}:
            raise BuildError(
                "exclude_newer needs a package index with upload times (PEP 700), and pip's settings name none"
            )
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, self))
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True, name="dated-index").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The address for ``pip --index-url``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/simple/"

    @property
    def settings(self) -> PipSettings:
        """What pip is told in a build: this index and nothing else."""
        dropped = {"PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"}
        variables = {name: value for name, value in self._pip.variables.items() if name not in dropped}
        direct = ",".join(filter(None, [variables.get("no_proxy") or variables.get("NO_PROXY"), "127.0.0.1"]))
        return replace(
            self._pip, variables={**variables, "PIP_INDEX_URL": self.url, "no_proxy": direct, "NO_PROXY": direct}
        )

    def page(self, project: str) -> str | None:
        """A project's page; None if no index knows it. Raises OSError and ValueError where an index does not answer."""
        name = re.sub(r"[-_.]+", "-", project).lower()
        pages = (project_files(base, name, Reach.of(self._pip)) for base in self._indexes)
        found = [files for files in pages if files is not None]
        if not found:
            return None
        shown = (each for files in found for each in files if self.open or each.uploaded < self._cutoff)
        return f"<!DOCTYPE html><html><body>\n{''.join(each.anchor() for each in shown)}</body></html>\n"


class _Handler(BaseHTTPRequestHandler):
    """One request of a pip or an easy_install."""

    def __init__(self, index: DatedIndex, *args: Any) -> None:
        self._index = index
        super().__init__(*args)

    def do_GET(self) -> None:
        match = re.fullmatch(r"/simple/([A-Za-z0-9][A-Za-z0-9._-]*)/?", self.path)
        status, text = 404, "not here"
        if match:
            try:
                page = self._index.page(match[1])
                status, text = (200, page) if page is not None else (404, "no such project")
            except (OSError, ValueError) as error:
                status, text = 502, " ".join(str(error).split())
        data = text.encode()
        self.send_response(status, None if status == 200 else re.sub(r"[^ -~]", "?", text)[:200])
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """The build's log has what pip says."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How an index is asked: the part of pip's settings that concerns connections."""

    certificates: str
    proxy: str
    trusted: frozenset[str]

    @classmethod
    def of(cls, pip: PipSettings) -> Self:
        variables = pip.variables
        trusted = frozenset(variables.get("PIP_TRUSTED_HOST", "").split())
        return cls(variables.get("PIP_CERT", ""), variables.get("PIP_PROXY", ""), trusted)


@functools.lru_cache(maxsize=512)
def project_files(base: str, project: str, reach: Reach) -> tuple[_File, ...] | None:
    """A project's files with their upload times; kept for the life of the process: a past date's don't change."""
    parts = urlsplit(base if base.endswith("/") else f"{base}/")
    user, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urljoin(urlunsplit(parts._replace(netloc=host)), f"{project}/"))
    request.add_header("Accept", _JSON)
    if user:
        request.add_header("Authorization", f"Basic {base64.b64encode(unquote(user).encode()).decode()}")
    context = ssl.create_default_context(cafile=reach.certificates or None)
    if {host, parts.hostname} & reach.trusted:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if reach.proxy:
        handlers.append(urllib.request.ProxyHandler({"http": reach.proxy, "https": reach.proxy}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=SECONDS) as answer:
            page, data = answer.url, answer.read(LARGEST_PAGE)
            kind = answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        if error.code in {404, 410}:
            return None
        raise
    if kind != _JSON:
        raise ValueError(f"the index {host} does not tell upload times (PEP 691 and 700)")
    found: list[_File] = []
    for each in json.loads(data)["files"]:
        if not each.get("upload-time"):
            continue
        url = urljoin(page, each["url"])
        if user and urlsplit(url).netloc == host:
            url = urlunsplit(urlsplit(url)._replace(netloc=f"{user}@{host}"))
        sha256 = each.get("hashes", {}).get("sha256")
        metadata = each.get("core-metadata", each.get("dist-info-metadata")) or ""
        if isinstance(metadata, dict):
            metadata = f"sha256={metadata['sha256']}" if "sha256" in metadata else "true"
        yanked = each.get("yanked") or None
        found.append(
            _File(
                name=each["filename"],
                url=f"{url}#sha256={sha256}" if sha256 else url,
                uploaded=cutoff(each["upload-time"]),
                requires_python=each.get("requires-python") or "",
                metadata="true" if metadata is True else str(metadata),
                yanked="" if yanked is True else yanked,
            )
        )
    return tuple(found)


@functools.cache
def default_index() -> str:
    """What pip asks where nobody configured an index: its help says."""
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    match = re.search(r"--index-url.*?\(default\s+(https?://[^\s)]+)\)", done.stdout, re.DOTALL)
    if match is None:
        raise BuildError("pip on this machine does not say which index it asks: set PIP_INDEX_URL")
    return match[1]

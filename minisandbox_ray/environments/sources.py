"""Where an archive can come from besides a directory of this node: a URL, or another node."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from minisandbox_ray.environments.archive import Manifest, archive_path
from minisandbox_ray.environments.package_layers import PackageLayer, layer_path
from minisandbox_ray.errors import ConfigError

PIECE_BYTES = 32 << 20
"""How much is asked for at a time."""
CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 60.0
"""An HTTP server that sends nothing for so long has broken off."""


class Peer(Protocol):
    """Another node that may hold archives. Whatever its methods raise means that they can't be had from there."""

    name: str
    """For people."""

    def manifest(self, digest: str) -> bytes | None:
        """The manifest's JSON (`read_manifest_bytes`); None if it has no such archive."""

    def read(self, digest: str, offset: int, length: int) -> bytes:
        """At most `length` bytes of the archive from `offset` on (`read_piece`)."""

    def read_layer(self, sha256: str, offset: int, length: int) -> bytes:
        """The same of a layer; none at its end."""


class Source(Protocol):
    """What `provide` fetches archives from."""

    name: str

    def manifest(self, digest: str) -> bytes | None:
        """The manifest's JSON; None if there is no such archive."""

    def pieces(self, manifest: Manifest) -> Iterator[bytes]:
        """The archive from its beginning to its end."""

    def layer(self, layer: PackageLayer) -> Iterator[bytes]:
        """A layer from its beginning to its end."""


class PeerSource:
    """A peer, read piece by piece."""

    def __init__(self, peer: Peer) -> None:
        self.name = f"node {peer.name}"
        self._peer = peer

    def manifest(self, digest: str) -> bytes | None:
        """The manifest's JSON."""
        return self._peer.manifest(digest)

    def pieces(self, manifest: Manifest) -> Iterator[bytes]:
        """Pieces of `PIECE_BYTES`."""
        for offset in range(0, manifest.archive_bytes, PIECE_BYTES):
            yield self._peer.read(manifest.digest, offset, min(PIECE_BYTES, manifest.archive_bytes - offset))

    def layer(self, layer: PackageLayer) -> Iterator[bytes]:
        """Pieces of `PIECE_BYTES`, until there are no more: who packed it may have packed it better."""
        offset = 0
        while piece := self._peer.read_layer(layer.sha256, offset, PIECE_BYTES):
            yield piece
            offset += len(piece)


class UrlSource:
    """A prefix that fsspec understands: s3://bucket/path, gs://…, http(s)://…, file:///…

    Raises ConfigError for a kind of URL that is unknown, or whose package is not installed on this node.
    """

    def __init__(self, url: str) -> None:
        self.name = hide_credentials(url)
        self._url = url.rstrip("/")
        try:
            import fsspec

            self._files, self._root = fsspec.core.url_to_fs(self._url, **_options(self._url))
        except ImportError as error:
            needed = re.sub(r"\s+", " ", str(error)).strip() or "a package is missing"
            raise ConfigError(f"archives at {self.name} can't be read on this node: {needed}") from error
        except ValueError as error:
            raise ConfigError(f"archives at {self.name} can't be read: {error}") from error

    def manifest(self, digest: str) -> bytes | None:
        """The manifest's JSON. Raises whatever the file system does, for instance for bad credentials."""
        try:
            data: bytes = self._files.cat_file(f"{self._root}/{digest}.json")
        except FileNotFoundError:
            return None
        return data

    def pieces(self, manifest: Manifest) -> Iterator[bytes]:
        """Pieces of at most `PIECE_BYTES`."""
        return self._read(archive_path(Path(), manifest.digest), manifest.archive_bytes)

    def layer(self, layer: PackageLayer) -> Iterator[bytes]:
        """Pieces of at most `PIECE_BYTES`."""
        return self._read(layer_path(Path(), layer.sha256), layer.packed_bytes)

    def _read(self, path: Path, size: int) -> Iterator[bytes]:
        # Without a block size fsspec streams over HTTP, which works with servers that know no ranges; with a size it
        # does not ask for that first.
        options = {"block_size": 0, "size": size} if _is_http(self._url) else {}
        with self._files.open(f"{self._root}/{path}", "rb", **options) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


def is_url(archives: str) -> bool:
    """Whether it names a URL and not a directory."""
    return "://" in archives


def hide_credentials(text: str) -> str:
    """Without the user and password that a URL in it may carry."""
    return re.sub(r"://[^/\s@]+@", "://…@", text)


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _options(url: str) -> dict[str, Any]:
    """fsspec's own limit, five minutes for a whole download, would fail large archives and bound no silence."""
    if not _is_http(url):
        return {}
    import aiohttp

    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
    return {"client_kwargs": {"timeout": limits}}

"""An index of the test's own, a real server, and what pip and a build make of its dates."""

import json
import re
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import ValidationError

from minisandbox_ray.environments import EnvSpec, NodeStore, build_environment
from minisandbox_ray.environments.dated_index import DatedIndex, cutoff
from minisandbox_ray.environments.pip_settings import PipSettings
from minisandbox_ray.errors import BuildError
from minisandbox_ray.sandbox import Sandbox

UPLOADS = {"1.0": "2019-05-01T10:00:00Z", "1.1": "2020-05-01T10:00:00.123456Z", "1.2": None}
"""Of the project dated_thing: version and time, none for what does not say."""


class _Index(BaseHTTPRequestHandler):
    def __init__(self, folder: Path, *args: object) -> None:
        self.folder = folder
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        kind, data = "application/octet-stream", b""
        if self.path == "/simple/dated-thing/":
            kind, data = "application/vnd.pypi.simple.v1+json", (self.folder / "page.json").read_bytes()
        elif self.path == "/simple/undated/":
            kind, data = "text/html", b"<a href='undated-1.0-py3-none-any.whl'>undated-1.0-py3-none-any.whl</a>"
        elif (self.folder / self.path.rpartition("/")[2]).is_file():
            data = (self.folder / self.path.rpartition("/")[2]).read_bytes()
        self.send_response(200 if data else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("index")
    files = []
    for version, uploaded in UPLOADS.items():
        name = f"dated_thing-{version}-py3-none-any.whl"
        about = f"dated_thing-{version}.dist-info"
        with zipfile.ZipFile(folder / name, "w") as wheel:
            wheel.writestr("dated_thing.py", f"version = {version!r}\n")
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: dated_thing\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
        row = {"filename": name, "url": f"../../files/{name}", "hashes": {}, "requires-python": ">=3.6"}
        files.append(row if uploaded is None else {**row, "upload-time": uploaded})
    page = {"meta": {"api-version": "1.1"}, "name": "dated-thing", "files": files}
    (folder / "page.json").write_text(json.dumps(page))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Index, folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    server.server_close()


def _settings(address: str, **more: str) -> PipSettings:
    return PipSettings(variables={"PIP_INDEX_URL": address, **more}, binds=[])


def test_a_date_counts_to_its_end_and_a_time_to_itself() -> None:
    assert cutoff("2020-05-01") == datetime(2020, 5, 2, tzinfo=UTC)
    assert cutoff("2020-05-01T10:00:00") == cutoff("2020-05-01T12:00:00+02:00") == datetime(2020, 5, 1, 10, tzinfo=UTC)
    with pytest.raises(ValidationError, match="exclude_newer must be a date or time"):
        EnvSpec(exclude_newer="last year")


@pytest.mark.parametrize(
    ("date", "versions"),
    [("2019-04-30", []), ("2019-05-01", ["1.0"]), ("2020-05-01T10:00:00", ["1.0"]), ("2020-05-02", ["1.0", "1.1"])],
)
def test_a_page_shows_what_was_there_at_the_date(address: str, date: str, versions: list[str]) -> None:
    with DatedIndex(_settings(address), date) as index:
        # Any spelling of the name; the address has none.
        page = urllib.request.urlopen(f"{index.url}Dated_Thing/").read().decode()
        assert re.findall(r">dated_thing-(.*?)-py3", page) == versions
        assert f'href="{address.removesuffix("/simple")}/files/dated_thing-1.0' in page or not versions
        index.open = True
        assert re.findall(r">dated_thing-(.*?)-py3", index.page("dated-thing") or "") == ["1.0", "1.1"]


def test_what_an_index_does_not_know_or_tell(address: str) -> None:
    with DatedIndex(_settings(address), "2020-01-01") as index:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{index.url}nothing/")
        with pytest.raises(urllib.error.HTTPError, match=r"502: the index 127.0.0.1:\d+ does not tell upload times"):
            urllib.request.urlopen(f"{index.url}undated/")


def test_a_build_sees_this_index_and_no_other(address: str) -> None:
    pip = _settings(address, PIP_EXTRA_INDEX_URL="file:///opt/index", PIP_FIND_LINKS="/opt/files", PIP_TIMEOUT="9")
    index = DatedIndex(pip, "2020-01-01")
    with index:
        assert index.left_out == ["file:///opt/index", "/opt/files"]
        variables = index.settings.variables
        assert variables["PIP_INDEX_URL"] == index.url and variables["PIP_TIMEOUT"] == "9"
        assert not {"PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"} & set(variables)
        assert variables["no_proxy"].endswith("127.0.0.1")
    for settings in (_settings("file:///opt/index"), _settings(address, PIP_NO_INDEX="1")):
        with pytest.raises(BuildError, match="exclude_newer needs a package index with upload times"):
            DatedIndex(settings, "2020-01-01")


def test_what_is_built_is_of_its_time(
    address: str, store: NodeStore, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", address)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    spec = EnvSpec(packages=["dated_thing"], exclude_newer="2019-12-31", install=["cat ~/.pydistutils.cfg > config"])
    manifest = build_environment(spec, archives, store)
    with store.use(manifest.digest, archives) as environment, Sandbox(environment.sandbox_spec()) as sandbox:
        said = sandbox.run("python -c 'import dated_thing; print(dated_thing.version)'; cat config; env").output
    assert said.startswith("1.0\n[easy_install]\nindex_url = http://127.0.0.1:")
    assert "PIP_" not in said
    assert build_environment(spec.model_copy(update={"exclude_newer": "2020-12-31"}), archives, store) != manifest
    later = EnvSpec(packages=["dated_thing"], exclude_newer="2018-01-01")
    with pytest.raises(BuildError, match="No matching distribution found for dated_thing"):
        build_environment(later, archives, store)

"""Services: programs that run inside each sandbox of an environment, with venvs of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox_ray.environments import Environment, EnvSpec, NodeStore, Service, build_environment, services
from minisandbox_ray.environments.services import open_sandbox
from minisandbox_ray.errors import BuildError, TaskError
from minisandbox_ray.sandbox import SandboxSpec
from trainer_integration.environments import open_held

SERVER = """\
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.prefix.encode())

http.server.HTTPServer(("127.0.0.1", 80), Handler).serve_forever()
"""
GET = "import os, urllib.request as r; print(r.urlopen(os.environ['WEB_URL']).read().decode())"
WEB = Service(
    name="web",
    command="python /opt/services/web/files/server.py",
    files={"server.py": SERVER},
    ready=80,
    variables={"WEB_URL": "http://web.example/"},
    hosts=["web.example"],
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NodeStore]:
    root = tmp_path_factory.mktemp("services")
    return root / "archives", NodeStore(root / "store")


@pytest.fixture(scope="module")
def env(sandboxes: None, places: tuple[Path, NodeStore]) -> Iterator[Environment]:
    """Unpacked from its archive: services are in there."""
    archives, store = places
    try:
        manifest = build_environment(EnvSpec(services=[WEB]), archives, store)
    except BuildError as error:
        pytest.skip(f"no environment: {str(error).splitlines()[0]}")
    assert store.evict(manifest.digest)
    with store.use(manifest.digest, archives) as environment:
        yield environment


def test_a_service_serves_before_anything_runs(env: Environment) -> None:
    with open_sandbox(env) as sandbox:
        assert sandbox.spec.network == "sink"
        result = sandbox.execute(["/venv/bin/python", "-c", GET])
        assert (result.stdout, result.stderr) == (b"/opt/services/web\n", b"")
        assert sandbox.execute(["touch", "/opt/services/web/x"]).exit_code != 0
        with sandbox.fork() as other:  # files are forked, processes are not
            assert b"URLError" in other.execute(["/venv/bin/python", "-c", GET]).stderr


def test_it_serves_other_agents(
    env: Environment, places: tuple[Path, NodeStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(places[0].parent))
    sandbox, lease = open_held(SandboxSpec(env={"A": "b"}), environment=env.manifest.digest)
    with lease:
        assert sandbox.execute(["/venv/bin/python", "-c", GET]).stdout == b"/opt/services/web\n"
        assert sandbox.execute(["sh", "-c", "echo $A"]).stdout == b"b\n"
    assert not sandbox.is_alive


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"command": "echo no port; exit 3", "ready": 81},
            "the service web does not serve after 1 s; it printed: no port",
        ),
        ({"ready": "false"}, "the service web does not serve after 1 s"),
    ],
)
def test_one_that_does_not_come_up(
    env: Environment, change: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "READY_SECONDS", 1.0)
    spec = env.manifest.spec.model_copy(update={"services": [WEB.model_copy(update=change)]})
    broken = Environment(env.manifest.model_copy(update={"spec": spec}), env.root, env.interpreter, env.isolation)
    with pytest.raises(TaskError, match=reason):
        open_sandbox(broken)


def test_one_that_is_ready_by_a_command(env: Environment) -> None:
    ready = WEB.model_copy(update={"ready": "python -c 'import socket; socket.create_connection((\"127.0.0.1\", 80))'"})
    spec = env.manifest.spec.model_copy(update={"services": [ready]})
    changed = Environment(env.manifest.model_copy(update={"spec": spec}), env.root, env.interpreter, env.isolation)
    with open_sandbox(changed) as sandbox:
        assert sandbox.execute(["/venv/bin/python", "-c", GET]).exit_code == 0

"""An OpenAI-compatible endpoint of the tests' own, on this machine."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from minisandbox_ray.tasks.automatic.advisor import AdvisorConfig


class Endpoint:
    """Answers every request with `content`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.content, self.status = "", 200
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                endpoint.keys.append(self.headers.get("Authorization", ""))
                body = json.dumps({"choices": [{"message": {"content": endpoint.content}}]}).encode()
                self.send_response(endpoint.status if self.path == "/v1/chat/completions" else 404)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.config = AdvisorConfig(
            base_url=f"http://127.0.0.1:{self.server.server_address[1]}/v1",
            model="some",
            key_variable="TEST_ADVISOR_KEY",
        )


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("TEST_ADVISOR_KEY", "hidden")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever)
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()
    thread.join()

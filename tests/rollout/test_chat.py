"""The policy that asks a server, against one that answers from a list."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("openai", reason="the package openai is not installed")

from pydantic import ValidationError

from minisandbox_ray.errors import ConfigError, ModelServiceError
from minisandbox_ray.rollout import Command, Malformed, Submit, parse_action
from minisandbox_ray.rollout.chat import ChatConfig, chat_policy
from minisandbox_ray.rollout.policies import SUBMIT, choose_policy
from minisandbox_ray.tasks import Task

TASK = Task(instance_id="a", repo="r", problem_statement="It is broken.", FAIL_TO_PASS=["t.py::t"])


class Server(ThreadingHTTPServer):
    """Answers chat completions with texts, tool calls (name, arguments) or statuses, in order; keeps what it was
    asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[str | list[tuple[str, str]] | tuple[int, str]] = []
        self.asked: list[dict] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({**asked, "path": self.path, "key": self.headers["Authorization"]})
        answer = self.server.answers.pop(0)
        message: dict = {"role": "assistant", "content": answer}
        if isinstance(answer, list):
            calls = [
                {"id": f"call-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for n, (name, arguments) in enumerate(answer)
            ]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        status, body = 200, {"choices": [{"index": 0, "message": message}]}
        if isinstance(answer, tuple):
            status, body = answer[0], {"error": {"message": answer[1]}}
        text = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", **body}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_conversation(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    file = tmp_path / "model.yaml"
    file.write_text(
        f"model: m\nbase_url: {server.url}\nkey_variable: MY_KEY\nsystem: Repair.\n"
        "user: 'Task: {problem_statement}'\n"
        "sampling: {temperature: 0.5, max_tokens: 7}\n"
    )
    name, make, turns = choose_policy(str(file), [TASK], 1)
    assert name.startswith("m@")
    assert turns == 1
    policy = make()
    server.answers = ["```bash\nls\n```", SUBMIT, "again"]
    policy.reset(TASK, 0, 11)
    assert [policy.act("It is broken."), policy.act("a.py")] == ["```bash\nls\n```", SUBMIT]
    first, second = server.asked
    assert (first["path"], first["key"]) == ("/v1/chat/completions", "Bearer secret")
    assert (first["model"], first["temperature"], first["max_tokens"], first["seed"]) == ("m", 0.5, 7, 11)
    assert [(each["role"], each["content"]) for each in second["messages"]] == [
        ("system", "Repair."),
        ("user", "Task: It is broken."),
        ("assistant", "```bash\nls\n```"),
        ("user", "a.py"),
    ]
    policy.reset(TASK, 1, 12)
    policy.act("It is broken.")
    assert len(server.asked[-1]["messages"]) == 2


def test_tool_calls_become_actions_and_observations_their_answers(server: Server) -> None:
    _, make = chat_policy(ChatConfig(model="m", base_url=server.url, acts="tool_calls"))
    policy = make()
    policy.reset(TASK, 0, 0)
    server.answers = [
        [("bash", '{"command": "echo \'</tool_call>\'"}')],
        [("bash", '{"command": "ls"}'), ("submit", "")],
        [("bash", "{no json")],
        "no call",
        [("submit", "{}")],
    ]
    told = ["It is broken.", "printed", "one only", "mend it", "call one"]
    actions = [parse_action(policy.act(each), "tools") for each in told]
    assert actions[0] == Command("echo '</tool_call>'")
    assert [isinstance(each, Malformed) for each in actions] == [False, True, True, True, False]
    assert actions[4] == Submit()
    last = server.asked[-1]
    assert [each["function"]["name"] for each in last["tools"]] == ["bash", "str_replace_editor", "submit"]
    answered = [(each["role"], each.get("tool_call_id"), each["content"]) for each in last["messages"][1:]]
    assert [each for each in answered if each[0] != "assistant"] == [
        ("user", None, "It is broken."),
        ("tool", "call-0", "printed"),
        ("tool", "call-0", "one only"),
        ("tool", "call-1", "one only"),
        ("tool", "call-0", "mend it"),
        ("user", None, "call one"),
    ]


def test_prompts_are_templates(server: Server) -> None:
    user = "{% if problem_statement %}<pr>{{ problem_statement }}</pr>{% endif %}"
    _, make = chat_policy(ChatConfig(model="m", base_url=server.url, acts="xml", user=user))
    policy = make()
    policy.reset(TASK, 0, 0)
    server.answers = ["fine"]
    policy.act("It is {{ broken }}.")
    system, first = server.asked[0]["messages"]
    assert "BEGIN FUNCTION #2: str_replace_editor" in system["content"]
    assert first["content"] == "<pr>It is {{ broken }}.</pr>"
    with pytest.raises(ValidationError, match="problem"):
        ChatConfig(model="m", user="{{ problem }}")


def test_what_passes_is_tried_again_and_what_does_not_is_the_service_s_failure(server: Server) -> None:
    _, make = chat_policy(ChatConfig(model="m", base_url=server.url, retries=1))
    policy = make()
    policy.reset(TASK, 0, 0)
    server.answers = [(503, "busy"), "fine", (400, "no such field"), (500, "broken"), (500, "broken")]
    assert policy.act("It is broken.") == "fine"
    with pytest.raises(ModelServiceError, match=r"no answer of model m at http://127.*no such field"):
        policy.act("a.py")
    with pytest.raises(ModelServiceError, match="broken"):
        policy.act("a.py")
    assert len(server.asked) == 5


def test_a_full_context_submits(server: Server) -> None:
    _, make = chat_policy(ChatConfig(model="m", base_url=server.url))
    policy = make()
    policy.reset(TASK, 0, 0)
    server.answers = ["look", (400, "This model's maximum context length is 16 tokens")]
    policy.act("It is broken.")
    assert policy.act("x" * 1000) == SUBMIT


def test_nobody_there_is_told(server: Server) -> None:
    _, make = chat_policy(ChatConfig(model="m", base_url="http://127.0.0.1:9/v1", retries=0))
    policy = make()
    policy.reset(TASK, 0, 0)
    with pytest.raises(ModelServiceError, match=r"at http://127\.0\.0\.1:9/v1"):
        policy.act("It is broken.")


def test_bad_configurations_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        chat_policy(ChatConfig(model="m"))
    file = tmp_path / "model.yaml"
    for text, said in (
        ("model: ''", "model: String should"),
        ("models: m", "model: Field required"),
        ("[", "not YAML"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said) as caught:
            choose_policy(str(file), [TASK], 1)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        choose_policy(str(tmp_path / "none.yaml"), [TASK], 1)

"""A policy that asks a server which speaks OpenAI's chat completions: vLLM, llama.cpp, `transformers serve`, …"""

import hashlib
import json
import os
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from minisandbox_ray.errors import ConfigError, ModelServiceError
from minisandbox_ray.rollout.actions import HOW_TO_ACT
from minisandbox_ray.rollout.observations import render
from minisandbox_ray.rollout.policies import SUBMIT, Policy
from minisandbox_ray.rollout.tools import DEFAULT_TOOLS, document, load_tools, schemas, write_call
from minisandbox_ray.tasks import Task

SYSTEM = (
    "You repair a repository by running shell commands, one per answer, and reading what they print. The repository is "
    "in the current directory, /testbed. Do not change tests.\n\n" + HOW_TO_ACT
)
SYSTEM_WITH_TOOLS = (
    "You repair the repository in /testbed by calling one function per answer and reading what it says. Do not change "
    "tests. When you are done, call submit."
)
Acts = Literal["bash", "xml", "tool_calls"]


def _template(text: str) -> str:
    render(text, problem_statement="", tools="")
    return text


def _tools(names: tuple[str, ...]) -> tuple[str, ...]:
    load_tools(names)
    return names


class ChatConfig(BaseModel):
    """Which model is asked, and how. A YAML file with these fields is a policy: ``--policy FILE.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    """Name by which the server knows it."""
    base_url: str | None = None
    """Where the server is, up to /v1; none: OpenAI's."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; a server of one's own needs none."""
    acts: Acts = "bash"
    """How it is told to act: by one fenced block (``episode.action_format: bash``); by a function call in XML in its
    text, or by tool calls of the protocol (both ``episode.action_format: tools``)."""
    tools: Annotated[tuple[str, ...], AfterValidator(_tools)] = DEFAULT_TOOLS
    """Which tools it is told of, as in ``episode.tools``."""
    system: Annotated[str, AfterValidator(_template)] | None = None
    """System message; empty for none, null for ours. Like `user`, a text with ``{problem_statement}`` and ``{tools}``
    (their documentation), or a Jinja template of the two."""
    user: Annotated[str, AfterValidator(_template)] = "{problem_statement}"
    """First user message."""
    sampling: dict[str, Any] = {}
    """More fields of each request: temperature, max_tokens, …"""
    timeout: float = Field(300, gt=0)
    """Seconds for one answer."""
    retries: int = Field(5, ge=0)
    """Times that a request is sent again after a failure which may pass (busy, gone, too slow)."""

    def system_text(self) -> str:
        """The system message before values are put in."""
        if self.system is not None:
            return self.system
        return {"bash": SYSTEM, "xml": SYSTEM_WITH_TOOLS + "\n\n{tools}", "tool_calls": SYSTEM_WITH_TOOLS}[self.acts]

    def identity(self) -> str:
        """What of it tells policies apart, as JSON: what came later is left out where it changes nothing."""
        later = {name for name in ("acts", "tools") if getattr(self, name) == type(self).model_fields[name].default}
        shown = self if self.system is not None else self.model_copy(update={"system": self.system_text()})
        return shown.model_dump_json(exclude={"timeout", "retries", *later})


def chat_policy(config: ChatConfig) -> tuple[str, Callable[[], Policy]]:
    """(name and digest for trajectories, what makes one for an episode). Raises ConfigError without the package
    `openai` or without a key where one is needed."""
    try:
        import openai
    except ImportError as error:
        raise ConfigError("asking a model needs the package openai: pip install 'minisandbox-ray[openai]'") from error
    key = os.environ.get(config.key_variable)
    if not key and config.base_url is None:
        raise ConfigError(f"{config.key_variable} is not set: it holds the key of OpenAI's service; or set base_url")
    client = openai.OpenAI(
        api_key=key or "none", base_url=config.base_url, timeout=config.timeout, max_retries=config.retries
    )
    digest = hashlib.sha256(config.identity().encode()).hexdigest()[:12]
    return f"{config.model}@{digest}", lambda: _Chat(client, config)


class _Chat:
    """One conversation at a time. Tool calls beside the text become text (`write_call`): an action is one string."""

    def __init__(self, client: Any, config: ChatConfig) -> None:
        self._client, self._config = client, config
        self._tools = load_tools(config.tools)
        self._messages: list[dict[str, Any]] = []
        self._asked: list[str] = []
        """Ids of the last answer's tool calls, which the next observation answers."""
        self._seed = 0

    def reset(self, task: Task, sample: int, seed: int) -> None:
        """See Policy."""
        self._messages, self._asked, self._seed = [], [], seed

    def act(self, observation: str) -> str:
        """See Policy. A conversation that no longer fits the model's context is submitted as it is."""
        import openai

        self._observe(observation)
        request = {"seed": self._seed, **self._config.sampling}
        if self._config.acts == "tool_calls":
            request = {"tools": schemas(self._tools), **request}
        try:
            answer = self._client.chat.completions.create(model=self._config.model, messages=self._messages, **request)
            message = answer.choices[0].message
            text, calls = message.content or "", message.tool_calls or []
            if calls and self._config.acts == "tool_calls":
                return self._called(text, [(each.id, each.function.name, each.function.arguments) for each in calls])
        except openai.BadRequestError as error:
            if "context" in str(error).lower() and len(self._messages) > 2:
                return SUBMIT
            raise ModelServiceError(self._complaint(error)) from error
        except (openai.OpenAIError, IndexError, AttributeError, TypeError) as error:
            raise ModelServiceError(self._complaint(error)) from error
        self._messages.append({"role": "assistant", "content": text})
        return text

    def _observe(self, observation: str) -> None:
        if not self._messages:
            values = {"problem_statement": observation, "tools": document(self._tools)}
            if system := render(self._config.system_text(), **values):
                self._messages.append({"role": "system", "content": system})
            observation = render(self._config.user, **values)
        if self._asked:
            # Each call wants an answer, also where there were too many and none was made.
            self._messages += [{"role": "tool", "tool_call_id": each, "content": observation} for each in self._asked]
            self._asked = []
        else:
            self._messages.append({"role": "user", "content": observation})

    def _called(self, text: str, calls: list[tuple[str, str, str]]) -> str:
        told = [
            {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}
            for key, name, arguments in calls
        ]
        self._messages.append({"role": "assistant", "content": text, "tool_calls": told})
        self._asked = [key for key, _, _ in calls]
        # As an object, if it is one: that is how models are trained on such text.
        return "\n\n".join(filter(None, [text, *(write_call(name, _read(arguments)) for _, name, arguments in calls)]))

    def _complaint(self, error: Exception) -> str:
        where = self._config.base_url or "OpenAI's service"
        return f"no answer of model {self._config.model} at {where}: {' '.join(str(error).split())[:300]}"


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments

"""A policy that asks a server which speaks OpenAI's chat completions: vLLM, llama.cpp, `transformers serve`, …"""

import hashlib
import os
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.errors import ConfigError, ModelServiceError
from minisandbox_ray.rollout.actions import HOW_TO_ACT
from minisandbox_ray.rollout.policies import SUBMIT, Policy
from minisandbox_ray.tasks import Task

SYSTEM = (
    "You repair a repository by running shell commands, one per answer, and reading what they print. The repository is "
    "in the current directory, /testbed. Do not change tests.\n\n" + HOW_TO_ACT
)


class ChatConfig(BaseModel):
    """Which model is asked, and how. A YAML file with these fields is a policy: ``--policy FILE.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    """Name by which the server knows it."""
    base_url: str | None = None
    """Where the server is, up to /v1; none: OpenAI's."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; a server of one's own needs none."""
    system: str = SYSTEM
    """System message; empty for none."""
    user: str = "{problem_statement}"
    """First user message; ``{problem_statement}`` stands for the task's."""
    sampling: dict[str, Any] = {}
    """More fields of each request: temperature, max_tokens, …"""
    timeout: float = Field(300, gt=0)
    """Seconds for one answer."""
    retries: int = Field(5, ge=0)
    """Times that a request is sent again after a failure which may pass (busy, gone, too slow)."""


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
    digest = hashlib.sha256(config.model_dump_json(exclude={"timeout", "retries"}).encode()).hexdigest()[:12]
    return f"{config.model}@{digest}", lambda: _Chat(client, config)


class _Chat:
    """One conversation at a time."""

    def __init__(self, client: Any, config: ChatConfig) -> None:
        self._client, self._config = client, config
        self._messages: list[dict[str, str]] = []
        self._seed = 0

    def reset(self, task: Task, sample: int, seed: int) -> None:
        """See Policy."""
        self._messages, self._seed = [], seed

    def act(self, observation: str) -> str:
        """See Policy. A conversation that no longer fits the model's context is submitted as it is."""
        import openai

        if not self._messages:
            if self._config.system:
                self._messages.append({"role": "system", "content": self._config.system})
            observation = self._config.user.replace("{problem_statement}", observation)
        self._messages.append({"role": "user", "content": observation})
        request = {"seed": self._seed, **self._config.sampling}
        try:
            answer = self._client.chat.completions.create(model=self._config.model, messages=self._messages, **request)
            text = answer.choices[0].message.content or ""
        except openai.BadRequestError as error:
            if "context" in str(error).lower() and len(self._messages) > 2:
                return SUBMIT
            raise ModelServiceError(self._complaint(error)) from error
        except (openai.OpenAIError, IndexError, AttributeError, TypeError) as error:
            raise ModelServiceError(self._complaint(error)) from error
        self._messages.append({"role": "assistant", "content": text})
        return text

    def _complaint(self, error: Exception) -> str:
        where = self._config.base_url or "OpenAI's service"
        return f"no answer of model {self._config.model} at {where}: {' '.join(str(error).split())[:300]}"

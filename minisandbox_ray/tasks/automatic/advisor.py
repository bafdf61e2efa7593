"""Asks a language model what to try next, when no known repair is left. Off unless configured.

What it is told is a summary of the source tree and the end of a log; what it answers is a change of the plan, checked
field by field, which runs where every other plan does: in a build sandbox.
"""

import json
import os
import re
import urllib.error
import urllib.request
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minisandbox_ray.errors import ConfigError, ModelServiceError
from minisandbox_ray.tasks.automatic.plans import Plan, Strategy
from minisandbox_ray.tasks.automatic.requirements import parse

_LARGEST = 1 << 20
_LOG = 6000
_PROMPT = """You repair the installation of a Python project so that its tests run under pytest, without a network.
Answer with one JSON object and nothing else. All fields are optional; give only those to change:
{"why": "one line", "python": "3.9", "strategy": "editable|no-isolation|metadata|wheel|path", "requirements": ["pip \
requirement", …], "build_requirements": […], "prepare": ["shell command at the repository's root before the \
installation", …], "variables": {"NAME": "value"}, "exclude_newer": "2020-01-31 or empty", "options": ["pytest \
option", …], "targets": ["test file or directory", …]}
A list replaces the present one. The interpreters that there are: """


class AdvisorConfig(BaseModel):
    """An OpenAI-compatible endpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field(pattern=r"^https?://\S+$")
    """As OpenAI's clients take it: "https://HOST/v1"."""
    model: str
    """Which model is asked."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the key. An endpoint of your own may want none: then the variable may be unset."""
    requests: int = Field(3, ge=1)
    """How often it is asked about one source, at most."""
    timeout: float = Field(120, gt=0)
    """Seconds for an answer."""


class Advice(BaseModel):
    """A change of a plan."""

    model_config = ConfigDict(extra="forbid")

    why: str = Field("advised", max_length=300)
    python: str | None = Field(None, pattern=r"^3\.\d{1,2}(\.\d{1,2})?$")
    strategy: Strategy | None = None
    requirements: list[str] | None = Field(None, max_length=60)
    build_requirements: list[str] | None = Field(None, max_length=30)
    prepare: list[str] | None = Field(None, max_length=20)
    variables: dict[str, str] | None = None
    exclude_newer: str | None = Field(None, pattern=r"^(\d{4}-\d\d-\d\d)?$")
    options: list[str] | None = Field(None, max_length=40)
    targets: list[str] | None = Field(None, max_length=100)

    def applied(self, plan: Plan) -> Plan:
        """The plan with it. Raises ModelServiceError for requirements that are none and targets outside of the tree."""
        changes: dict[str, Any] = self.model_dump(exclude={"why"}, exclude_none=True)
        for text in [*changes.get("requirements", []), *changes.get("build_requirements", [])]:
            if parse(text) is None:
                raise ModelServiceError(f"the advisor's requirement {text!r} is none that an index has")
        for target in changes.get("targets", []):
            if target.startswith(("/", "-")) or ".." in target.split("/"):
                raise ModelServiceError(f"the advisor's target {target!r} is not in the source tree")
        return plan.changed(" ".join(self.why.split()), **changes)


def advise(
    config: AdvisorConfig, plan: Plan, cause: str, log: str, facts: dict[str, object], pythons: list[str]
) -> Plan:
    """The plan that the model proposes.

    Raises ModelServiceError where it can't be reached or its answer is no change of a plan; ConfigError for a key that
    no header can hold.
    """
    told = {"plan": plan.model_dump(exclude={"learned"}), "tried": plan.learned, "project": facts, "failure": cause}
    text = f"{json.dumps(told, default=str)[:20_000]}\n\nThe end of the log:\n{log[-_LOG:]}"
    messages = [
        {"role": "system", "content": _PROMPT + ", ".join(pythons)},
        {"role": "user", "content": text},
    ]
    answer = _ask(config, {"model": config.model, "messages": messages, "temperature": 0})
    try:
        content = answer["choices"][0]["message"]["content"]
        found = re.search(r"\{.*\}", content, re.DOTALL)
        return Advice.model_validate_json(found[0] if found else content).applied(plan)
    except (KeyError, IndexError, TypeError) as error:
        raise ModelServiceError(f"the advisor {config.model} answers in another form: no {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its answer"
        raise ModelServiceError(f"the advisor {config.model} proposes no plan: {place}: {first['msg']}") from None


def _ask(config: AdvisorConfig, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{config.base_url.rstrip('/')}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    key = os.environ.get(config.key_variable, "")
    if not key.isascii() or "\n" in key:
        raise ConfigError(f"{config.key_variable} holds no key: it has characters that no header can have")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=config.timeout) as answer:
            return json.loads(answer.read(_LARGEST))
    except urllib.error.HTTPError as error:
        raise ModelServiceError(f"the advisor {config.model} answers with status {error.code}") from None
    except (OSError, ValueError) as error:
        raise ModelServiceError(f"the advisor {config.model} does not answer: {error}") from None

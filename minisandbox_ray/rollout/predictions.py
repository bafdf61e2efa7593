"""Patches that some agent made elsewhere, in SWE-bench's forms: JSON (SWE-agent's preds.json) and JSON lines."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minisandbox_ray.errors import ConfigError, first_wrong
from minisandbox_ray.rollout.policies import Policy, Scripted
from minisandbox_ray.tasks import Task

# In the harness's order (swebench.harness.run_evaluation, GIT_APPLY_CMDS): what git refuses, patch may still take.
_APPLY = "git apply --whitespace=nowarn {file} || git apply --reject {file} || patch --batch --fuzz=5 -p1 -i {file}"
_FILE = "/tmp/prediction.patch"


class Prediction(BaseModel):
    """One task's patch."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    instance_id: str
    """The task's."""
    model_patch: str | None = Field(None)
    """The patch; None or empty where the agent made none."""
    model_name_or_path: str = ""
    """Who made it."""


def read_predictions(path: Path) -> tuple[dict[str, Prediction], str]:
    """(by instance_id, name and digest of the file). Raises ConfigError that names a bad entry.

    The file is a JSON object of instance ids, a JSON list, or JSON lines.
    """
    try:
        content = path.read_bytes()
        text = content.decode("utf-8", "surrogatepass")
    except OSError as error:
        raise ConfigError(f"cannot read the predictions {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the predictions {path} are not UTF-8 text: {error.reason} at byte {error.start}") from error
    predictions: dict[str, Prediction] = {}
    for where, entry in _entries(path, text):
        try:
            prediction = Prediction.model_validate(entry)
        except ValidationError as error:
            raise ConfigError(f"{path}, {where}: {first_wrong(error)}") from error
        if prediction.instance_id in predictions:
            raise ConfigError(f"{path}, {where}: {prediction.instance_id} occurs twice")
        predictions[prediction.instance_id] = prediction
    if not predictions:
        raise ConfigError(f"{path} holds no predictions")
    return predictions, f"{path.name}@{hashlib.sha256(content).hexdigest()[:12]}"


def _entries(path: Path, text: str) -> list[tuple[str, object]]:
    try:
        if path.suffix == ".jsonl":
            lines = enumerate(text.split("\n"), 1)
            return [(f"line {number}", json.loads(line)) for number, line in lines if line.strip()]
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON file of predictions: {error}") from error
    if isinstance(whole, list):
        return [(f"entry {number}", entry) for number, entry in enumerate(whole, 1)]
    if isinstance(whole, dict):
        return [
            (name, {"instance_id": name, **entry} if isinstance(entry, dict) else entry)
            for name, entry in whole.items()
        ]
    raise ConfigError(f"{path} holds neither an object nor a list of predictions")


def predictions_policy(predictions: dict[str, Prediction]) -> Callable[[], Policy]:
    """Applies a task's patch and submits; what makes one for an episode."""

    def script(task: Task, sample: int, seed: int) -> list[str]:
        patch = predictions[task.instance_id].model_patch or ""
        return [apply_action(patch)] if patch.strip() else []

    return lambda: Scripted(script)


def apply_action(patch: str) -> str:
    """Model text that applies a patch as SWE-bench's harness does."""
    end = "END_OF_PATCH"
    while f"\n{end}\n" in f"\n{patch}\n":
        end += "_"
    fence = "```"
    while fence in patch:
        fence += "`"
    whole = patch if patch.endswith("\n") else patch + "\n"
    command = _APPLY.format(file=_FILE)
    return f"{fence}bash\ncat > {_FILE} <<'{end}'\n{whole}{end}\n{command}\n{fence}"

"""The configuration of a training run: one YAML file and ``key=value`` overrides, checked before anything starts.

A file may begin with ``extends: OTHER.yaml``, relative to itself: its keys are then laid over those of the other one,
section by section; lists are replaced as a whole.
"""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from minisandbox_ray.cluster import ClusterConfig
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout import EpisodeConfig
from minisandbox_ray.rollout.config import check_lifetime
from minisandbox_ray.rollout.observations import render
from minisandbox_ray.rollout.tools import DEFAULT_TOOLS, document, load_tools
from minisandbox_ray.tasks import GradingConfig
from minisandbox_ray.tasks.quickstart import QuickstartConfig

# For the suggestion to someone who writes SkyRL's keys as SkyRL does.
SKYRL_SECTIONS = ("skyrl.data", "skyrl.environment", "skyrl.generator", "skyrl.trainer")


class PromptConfig(BaseModel):
    """What the model is told at the start of an episode."""

    model_config = ConfigDict(extra="forbid")

    system: str = ""
    """System message; empty for none. Like `user`, a text with ``{problem_statement}`` and ``{tools}`` (what a model is
    told of the tools that it calls by XML), or a Jinja template of the two."""
    user: str = "{problem_statement}"
    """First user message."""

    def messages(self, problem_statement: str, tools: tuple[str, ...] = DEFAULT_TOOLS) -> list[dict[str, str]]:
        """The chat so far. Raises ConfigError for a template that cannot be rendered."""
        values = {"problem_statement": problem_statement, "tools": document(load_tools(tools))}
        try:
            user = render(self.user, **values)
            system = [{"role": "system", "content": render(self.system, **values)}] if self.system else []
        except ValueError as error:
            raise ConfigError(f"prompt: {error}") from error
        return [*system, {"role": "user", "content": user}]


class PolicyConfig(BaseModel):
    """Size of a causal language model that is initialised from scratch."""

    model_config = ConfigDict(extra="forbid")

    layers: int = Field(default=2, ge=1)
    """Transformer layers."""
    width: int = Field(default=128, ge=8, multiple_of=8)
    """Size of the hidden state."""
    words: int = Field(default=40, ge=1)
    """Words of the problem statements that the tokenizer knows; all other text is one ``<unk>`` per gap."""


class EvaluationConfig(BaseModel):
    """Evaluation during training: before the first step, and every so many."""

    model_config = ConfigDict(extra="forbid")

    tasks: Path | None = None
    """A file of held-out tasks (JSON lines); None: those that are trained on."""
    every: int = Field(default=10, ge=1)
    """Training steps between two evaluations."""
    samples: int = Field(default=1, ge=1)
    """Episodes of each task, N in ``eval/all/pass_at_N``."""
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Of sampling; 0 is greedy."""


class DebugConfig(BaseModel):
    """Switches that break learning on purpose."""

    model_config = ConfigDict(extra="forbid")

    constant_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Reward of every episode, whatever it did; the policy must then learn nothing. ``environment/resolved_mean`` still
    tells how many were resolved."""


def _kind_of_tasks(value: Any) -> str:
    return "<file>" if isinstance(value, str | Path) else "<quickstart>"


class TrainConfig(BaseModel):
    """One training run."""

    model_config = ConfigDict(extra="forbid")

    name: str = "train"
    """Name of the run's directory and of the run in W&B."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of the policy, of sampling and of the order of tasks: the same seed gives the same curve."""
    run_dir: Path | None = None
    """Where everything of the run is written; None: ``runs/<name>-<time>``."""
    resume: bool = False
    """Go on with the run in ``run_dir`` from its last checkpoint (``skyrl.trainer.ckpt_interval``), with the rest of
    the configuration as it was; ``skyrl.trainer.max_training_steps`` may grow."""
    backend: Literal["cpu", "gpu"] = "cpu"
    """``cpu``: policy and sampler in the driver's process; ``gpu``: SkyRL's FSDP workers and vLLM servers."""
    tasks: Annotated[
        Annotated[QuickstartConfig, Tag("<quickstart>")] | Annotated[Path, Tag("<file>")],
        Discriminator(_kind_of_tasks),
    ]
    """A file of tasks (JSON lines), or what to make tasks from on first use."""
    allow_unvalidated: bool = False
    """Whether tasks of a file may be trained on that `python -m minisandbox_ray validate` has not found valid, neither
    on this machine nor where the file comes from. The quickstart validates its own."""
    archives: str | None = None
    """Where environments lie: a directory, or the URL of one (s3://, gs://, http://, file://); None: this machine's
    cache. What a node does not find there it gets from another one."""
    prompt: PromptConfig = PromptConfig()
    """What the model is told."""
    policy: PolicyConfig | None = None
    """A policy from scratch whose actions are the quickstart's commands; None: ``skyrl.trainer.policy.model.path``."""
    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster."""
    episode: EpisodeConfig = EpisodeConfig()
    """Bounds of an episode."""
    grading: GradingConfig = GradingConfig()
    """How diffs become rewards."""
    evaluation: EvaluationConfig | None = None
    """Evaluation during training; None: none. An episode that fails through no fault of the agent is left out
    of the scores there, and counted in ``eval/all/environment/failures``. Trajectories are kept in
    ``evaluations/step-N.jsonl``."""
    max_failed_share: float = Field(default=1.0, ge=0, le=1)
    """Of a step's episodes: if more than this share fail through no fault of the agent, the run ends with one line that
    says why most of them did. Up to then such episodes are left out: of the loss, of what their group is compared with,
    and of the mean reward. A run always ends if all of a step's episodes fail."""
    tracking: Literal["wandb", "console"] = "wandb"
    """``wandb`` (offline by itself where there is no key) or ``console`` only; metrics.jsonl is always written."""
    debug: DebugConfig = DebugConfig()
    """For tests of the machinery itself."""
    skyrl: dict[str, Any] = {}
    """SkyRL's own keys (``trainer``, ``generator``, …), see its documentation; checked as strictly as ours."""

    def episode_config(self) -> EpisodeConfig:
        """The episode's bounds with the run's grading."""
        return self.episode.model_copy(update={"grading": self.grading})


def load_config(arguments: list[str]) -> TrainConfig:
    """The configuration from ``config=FILE key=value a.b=c …``. Raises ConfigError: one line that names the key."""
    content = read_arguments(arguments, "train")
    if isinstance(content.get("episode"), dict) and "grading" in content["episode"]:
        raise ConfigError("unknown key episode.grading: set grading")
    try:
        config = TrainConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(one_line(error, [*known_keys(TrainConfig), *SKYRL_SECTIONS])) from error
    check_lifetime(config.episode_config(), config.cluster.lease_seconds)
    return config


def read_arguments(arguments: list[str], program: str) -> dict[str, Any]:
    """Keys and values of ``config=FILE key=value a.b=c …``, not yet checked. Raises ConfigError, one line."""
    files = [argument.removeprefix("config=") for argument in arguments if argument.startswith("config=")]
    overrides = [argument for argument in arguments if not argument.startswith("config=")]
    if len(files) != 1:
        raise ConfigError(f"usage: python -m minisandbox_ray.{program} config=FILE.yaml [key=value ...]")
    for override in overrides:
        if "=" not in override or override.startswith(("=", "-")):
            raise ConfigError(f"{override!r} is not of the form key=value")
    merged = _read(Path(files[0]))
    for override in overrides:
        try:
            merged = OmegaConf.merge(merged, OmegaConf.from_dotlist([override]))
        except (OmegaConfBaseException, yaml.YAMLError, TypeError, ValueError) as error:
            raise ConfigError(f"bad override {override!r}: {' '.join(str(error).split())}") from error
    try:
        content: Any = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"config file {files[0]}: {' '.join(str(error).split())}") from error
    return content


def _read(path: Path, extended_by: tuple[Path, ...] = ()) -> Any:
    """The file over those that it extends. ``extended_by``: the files that led here, the first one first."""
    if path.resolve() in (file.resolve() for file in extended_by):
        raise ConfigError(f"config file {extended_by[0]} extends itself: {' -> '.join(map(str, [*extended_by, path]))}")
    try:
        content: Any = OmegaConf.create(path.read_text(encoding="utf-8"))
    except OSError as error:
        where = f", which {extended_by[-1]} extends" if extended_by else ""
        raise ConfigError(f"cannot read config file {path}{where}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not OmegaConf.is_dict(content):
        raise ConfigError(f"config file {path} must hold keys and values")
    if "extends" not in content:
        return content
    base = content.pop("extends")
    if not isinstance(base, str) or not base:
        raise ConfigError(f"config file {path}: extends must name one file, got {base!r}")
    return OmegaConf.merge(_read(path.parent / base, (*extended_by, path)), content)


def one_line(error: ValidationError, known: list[str]) -> str:
    """The first thing that is wrong, with a suggestion out of the ``known`` keys for one that there is not."""
    first = error.errors(include_url=False)[0]
    parts = [str(part) for part in first["loc"] if not str(part).startswith("<")]
    key = ".".join(parts)
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}{suggestion(parts, known)}"
    if first["type"] == "missing":
        return f"missing key {key}"
    return f"bad value for {key}: {first['msg']}, got {first['input']!r}"


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """All dotted keys of a model and of the models in it."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        for inner in _models_in(field.annotation):
            keys += known_keys(inner, f"{prefix}{name}.")
    return keys


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if getattr(annotation, "__metadata__", None) is not None:
        return _models_in(annotation.__origin__)
    # Only unions: the fields of a list's items have no dotted keys.
    is_list = getattr(annotation, "__origin__", None) in {list, tuple, dict}
    return [] if is_list else [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]


def suggestion(parts: list[str], known: list[str]) -> str:
    """``; did you mean …?`` for an unknown key: the same name elsewhere, else the nearest sibling, else the nearest."""
    key, parent = ".".join(parts), ".".join(parts[:-1])
    near = [k for k in known if k.rpartition(".")[2] == parts[-1]][:1]
    near = near or difflib.get_close_matches(key, [k for k in known if k.rpartition(".")[0] == parent], n=1)
    near = near or difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""

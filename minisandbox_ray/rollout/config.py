"""The bounds of an episode."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.rollout.actions import ActionFormat, Submit, parse_action
from minisandbox_ray.rollout.grades import CLAIM_MARGIN_SECONDS
from minisandbox_ray.rollout.observations import Style, render
from minisandbox_ray.rollout.tools import DEFAULT_TOOLS, load_tools
from minisandbox_ray.sandbox import Limits
from minisandbox_ray.tasks import GradingConfig

# What bounds the two parts of grading that GradingConfig does not: sandbox.diff, and git apply in the fresh sandbox.
DIFF_SECONDS = 300.0
APPLY_SECONDS = 60.0
# Sandboxes that start and end, calls on the way.
MARGIN_SECONDS = 60.0
# What a worker is given for the task's layer and a sandbox, once the environment is there, before it counts as hung.
RESET_SECONDS = 600.0
# Likewise for ending a command whose time is over, and starting another shell.
STEP_MARGIN_SECONDS = 120.0


def _tools(names: tuple[str, ...]) -> tuple[str, ...]:
    load_tools(names)
    return names


def _template(text: str) -> str:
    if text:
        render(text, output="", exit_code=0, notes=[], turns_left=1, reminder="")
    return text


class EpisodeConfig(BaseModel):
    """How long an agent may work on a task, with what, and how it is graded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_turns: int = Field(default=30, ge=1)
    """Actions that the agent may take, malformed ones included; then the episode is truncated and graded."""
    action_format: ActionFormat = "bash"
    """How the agent acts: ``bash``, one fenced block in its text; or ``tools``, one call of a tool, written as
    ``<function=NAME><parameter=KEY>…</parameter></function>``, or as JSON in ``<tool_call>``."""
    tools: Annotated[tuple[str, ...], AfterValidator(_tools)] = DEFAULT_TOOLS
    """Which tools there are in ``tools``: ``bash``, ``str_replace_editor``, ``submit``, and ``module:Class`` of your
    own that every node can import (a subclass of `rollout.tools.Tool`)."""
    observation_template: Annotated[str, AfterValidator(_template)] = ""
    """Jinja template of what the agent reads after a command or a tool, of ``output``, ``exit_code`` (none for tools),
    ``notes`` (a list), ``turns_left`` and ``reminder``; empty: ours."""
    reminder_from: int | None = Field(default=None, ge=0)
    """At how many turns left and fewer an observation says how many; none: each does."""
    command_timeout: float = Field(default=60, gt=0, le=1e6)
    """Seconds that one command may take."""
    episode_timeout: float = Field(default=1800, gt=0, le=1e6)
    """Seconds from the end of reset, the model's time included; then the episode is truncated and graded."""
    observation_chars: int = Field(default=10_000, ge=200)
    """Characters of a command's output that the agent sees; the middle of longer ones is cut."""
    replays: int = Field(default=2, ge=0)
    """How many failures of a sandbox, worker or node an episode survives by being played again elsewhere."""
    limits: Limits = Limits()
    """What the agent's sandbox may use."""
    grading: GradingConfig = GradingConfig()
    """How its diff is graded."""

    @property
    def style(self) -> Style:
        """How observations are written."""
        return Style(self.action_format, self.observation_template, self.reminder_from)


def grading_seconds(grading: GradingConfig) -> float:
    """What grading takes at most: the diff, waiting for a worker that was lost while it made the same grade, and the
    tests in a fresh sandbox."""
    claim = grading.longest_seconds + CLAIM_MARGIN_SECONDS if grading.cache else 0.0
    return DIFF_SECONDS + claim + 2 * APPLY_SECONDS + grading.longest_seconds + MARGIN_SECONDS


def step_seconds(config: EpisodeConfig, turn: int, elapsed: float, action: str) -> float:
    """What a step takes at most, at that turn and after so many seconds of the episode: its worker counts as hung
    after that."""
    seconds = config.command_timeout + STEP_MARGIN_SECONDS
    is_last = turn >= config.max_turns or elapsed + seconds >= config.episode_timeout
    may_be_graded = is_last or isinstance(parse_action(action, config.action_format, config.tools), Submit)
    return seconds + grading_seconds(config.grading) if may_be_graded else seconds


def check_lifetime(config: EpisodeConfig, lease_seconds: float) -> None:
    """Raise ConfigError when an episode may outlast its lease: agent time and grading time must fit into it."""
    grading = grading_seconds(config.grading)
    if config.episode_timeout + grading > lease_seconds:
        raise ConfigError(
            f"episode.episode_timeout={config.episode_timeout:g} and at most {grading:g} s of grading "
            f"(grading.timeout={config.grading.timeout:g}) do not fit into cluster.lease_seconds={lease_seconds:g}: "
            f"raise cluster.lease_seconds to {config.episode_timeout + grading:g}, or lower the others"
        )

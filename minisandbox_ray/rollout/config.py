"""The bounds of an episode."""

from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.sandbox import Limits
from minisandbox_ray.tasks import GradingConfig


class EpisodeConfig(BaseModel):
    """How long an agent may work on a task, with what, and how it is graded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_turns: int = Field(default=30, ge=1)
    """Actions that the agent may take, malformed ones included; then the episode is truncated and graded."""
    command_timeout: float = Field(default=60, gt=0, le=1e6)
    """Seconds that one command may take."""
    episode_timeout: float = Field(default=1800, gt=0, le=1e6)
    """Seconds from the end of reset, the model's time included; then the episode is truncated and graded."""
    observation_chars: int = Field(default=10_000, ge=200)
    """Characters of a command's output that the agent sees; the middle of longer ones is cut."""
    limits: Limits = Limits()
    """What the agent's sandbox may use."""
    grading: GradingConfig = GradingConfig()
    """How its diff is graded."""

"""Where a training run's metrics go, one dictionary of numbers per step, under SkyRL's names."""

import json
import netrc
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from minisandbox_ray.errors import ConfigError

Metrics = Mapping[str, Any]

# Where W&B's client looks for a login when WANDB_BASE_URL names no server (wandb 0.31 added the second).
WANDB_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")


class Tracker(Protocol):
    """Receives the metrics of each step, in order; ``finish`` is called once, also after an error."""

    def log(self, metrics: Metrics, step: int) -> None: ...

    def finish(self) -> None: ...


class JsonlTracker:
    """``metrics.jsonl`` in the run directory: one JSON object per step, readable while the run goes on."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def log(self, metrics: Metrics, step: int) -> None:
        numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
        self._file.write(json.dumps({"step": step, **numbers}) + "\n")

    def finish(self) -> None:
        self._file.close()


class ConsoleTracker:
    """One line per training step: reward, loss, seconds, episodes per second, grade cache hits, time to go."""

    def __init__(self, total_steps: int, write: Callable[[str], object] = print) -> None:
        self._total = total_steps
        self._write = write
        self._started = time.monotonic()
        self._seen = 0

    def log(self, metrics: Metrics, step: int) -> None:
        if "reward/avg_raw_reward" not in metrics:
            return
        self._seen += 1
        left = (time.monotonic() - self._started) / self._seen * max(0, self._total - step)
        episodes = metrics.get("environment/episodes", 0)
        parts = [
            f"step {step:>{len(str(self._total))}}/{self._total}",
            f"reward {metrics['reward/avg_raw_reward']:.3f}",
            f"loss {metrics.get('policy/final_loss', float('nan')):+.4f}",
            f"{metrics.get('timing/step', 0.0):.1f} s",
            f"{episodes / max(metrics.get('timing/generate', 0.0), 1e-9):.1f} episodes/s",
            f"{metrics.get('environment/grade_cache_hits', 0):.0f}/{episodes:.0f} grades from cache",
        ]
        if failures := metrics.get("environment/failures", 0):
            parts.append(f"{failures:.0f} episodes failed and masked")
        self._write(" | ".join([*parts, f"{_clock(left)} to go"]))

    def finish(self) -> None:
        pass


class WandbTracker:
    """Weights & Biases, with its own environment variables and modes; its files lie in the run directory.

    Without a key (``WANDB_API_KEY``, an identity token or a netrc entry) and without a ``WANDB_MODE``
    the run is recorded offline; ``hint`` then says how to upload it.
    """

    def __init__(self, run_dir: Path, project: str, name: str, config: Mapping[str, Any]) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE") or (None if _has_wandb_key() else "offline")
        # The console belongs to our own line per step; W&B would copy and announce it.
        settings = wandb.Settings(console="off", silent=True)
        try:
            self._run = wandb.init(
                project=project, name=name, dir=run_dir, mode=mode, config=dict(config), settings=settings
            )
        except wandb.errors.Error as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigError(f"W&B cannot be used: {reason}; WANDB_MODE=offline records without it") from error
        offline = self._run.settings.mode in ("offline", "dryrun")
        self.hint = f"W&B recorded offline; upload with: wandb sync {self._run.settings.sync_dir}" if offline else ""

    def log(self, metrics: Metrics, step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        import wandb

        self._run.finish()
        wandb.teardown()  # waits for W&B's service process, which writes the end of the file after `finish`


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    hosts = [urlsplit(os.environ["WANDB_BASE_URL"]).netloc] if "WANDB_BASE_URL" in os.environ else WANDB_HOSTS
    try:
        known = netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return any(host in known for host in hosts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"

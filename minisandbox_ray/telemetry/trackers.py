"""Where a training run's metrics go, one dictionary of numbers per step, under SkyRL's names."""

import io
import json
import netrc
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from minisandbox_ray.errors import ConfigError
from minisandbox_ray.telemetry.provenance import provenance
from minisandbox_ray.telemetry.report import read_rows, write_time_breakdown
from minisandbox_ray.telemetry.wandb_file import cut_back

Metrics = Mapping[str, Any]

# Where W&B's client looks for a login when WANDB_BASE_URL names no server (wandb 0.31 added the second).
WANDB_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")


OFFLINE = ("offline", "dryrun")
CHART_EVERY = 10  # steps


class Tracker(Protocol):
    """Receives the metrics of each step, in order; ``finish`` is called once, also after an error.

    A table belongs to a step, and comes before that step's metrics or after them.
    """

    def log(self, metrics: Metrics, step: int) -> None: ...

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None: ...

    def finish(self) -> None: ...


class JsonlTracker:
    """``metrics.jsonl`` in the run directory: one JSON object per step, readable while the run goes on."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def log(self, metrics: Metrics, step: int) -> None:
        numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
        self._file.write(json.dumps({"step": step, **numbers}) + "\n")

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        """Numbers only: whoever makes a table keeps it in a file of its own."""

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
            f"{episodes / max(metrics.get('timing/generate', metrics.get('timing/step', 0.0)), 1e-9):.1f} episodes/s",
            f"{metrics.get('environment/grade_cache_hits', 0):.0f}/{episodes:.0f} grades from cache",
        ]
        if failures := metrics.get("environment/failures", 0):
            parts.append(f"{failures:.0f} episodes failed and masked")
        self._write(" | ".join([*parts, f"{_clock(left)} to go"]))

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        """One line per step, and no tables."""

    def finish(self) -> None:
        pass


class WandbTracker:
    """Weights & Biases, with its own environment variables and modes; its files lie in the run directory.

    Without a key (``WANDB_API_KEY``, an identity token or a netrc entry) and without a ``WANDB_MODE``
    the run is recorded offline; ``hint`` then says how to upload it.

    The run's id is kept in ``wandb-id``. A resumed run goes on with it: what was recorded offline is cut back to the
    step that it goes on from, and what a killed run did not write is taken from ``metrics.jsonl``, so that each step is
    recorded once. (W&B's server ignores steps that it has already.)
    """

    def __init__(
        self, run_dir: Path, project: str, name: str, config: Mapping[str, Any], resumed_step: int | None = None
    ) -> None:
        """``resumed_step``: the last step that a resumed run keeps; None for a new run. Raises ConfigError."""
        import wandb

        mode: Any = os.environ.get("WANDB_MODE") or (None if _has_wandb_key() else "offline")
        # The console belongs to our own line per step; W&B would copy and announce it.
        settings = wandb.Settings(console="off", silent=True)
        kept = run_dir / "wandb-id"
        if resumed_step is None or not kept.exists():
            kept.write_text(f"{secrets.token_hex(4)}\n", encoding="utf-8")
        run_id = kept.read_text(encoding="utf-8").strip()
        steps = _steps_until(run_dir / "metrics.jsonl", resumed_step or 0)
        recorded = _cut_back(run_dir, run_id, resumed_step or 0)
        try:
            self._run = wandb.init(
                project=project,
                name=name,
                dir=run_dir,
                mode=mode,
                id=run_id,
                resume="allow" if resumed_step is not None and mode not in OFFLINE else None,
                config={**config, "provenance": provenance()},
                settings=settings,
            )
        except wandb.errors.Error as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigError(f"W&B cannot be used: {reason}; WANDB_MODE=offline records without it") from error
        offline = self._run.settings.mode in OFFLINE
        directories = " ".join(str(path) for path in [*recorded, self._run.settings.sync_dir])
        self.hint = f"W&B recorded offline; upload with: wandb sync {directories}" if offline else ""
        self._times: list[dict[str, Any]] = []
        for row in steps:
            self._keep_times(row, row["step"])
            # A run that was killed had not written its last steps to its file yet.
            if row["step"] > (max(recorded.values(), default=0) if offline else self._run.step - 1):
                self._run.log({key: value for key, value in row.items() if key != "step"}, step=row["step"])

    def log(self, metrics: Metrics, step: int) -> None:
        self._run.log(dict(metrics), step=step)
        if self._keep_times(metrics, step) and len(self._times) % CHART_EVERY == 0:
            self._chart()

    def _keep_times(self, metrics: Metrics, step: int) -> bool:
        is_training = "reward/avg_raw_reward" in metrics
        if is_training:
            times = {key: value for key, value in metrics.items() if key.endswith("_seconds_mean")}
            self._times.append({"step": step, **times})
        return is_training

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        import wandb

        self._run.log({name: wandb.Table(columns=[*columns], data=rows)}, step=step)

    def _chart(self) -> None:
        """Where rollout time went so far, stacked: W&B has lines only."""
        import wandb
        from PIL import Image

        picture = io.BytesIO()
        write_time_breakdown(self._times, picture)
        self._run.log({"environment/time_breakdown": wandb.Image(Image.open(picture))}, step=self._times[-1]["step"])

    def finish(self) -> None:
        import wandb

        if len(self._times) % CHART_EVERY:
            self._chart()
        self._run.finish()
        wandb.teardown()  # waits for W&B's service process, which writes the end of the file after `finish`


def _steps_until(path: Path, step: int) -> list[dict[str, Any]]:
    return [row for row in read_rows(path) if row["step"] <= step] if step else []


def _cut_back(run_dir: Path, run_id: str, step: int) -> dict[Path, int]:
    """What was recorded offline of a run until that step: directories in order, and the last step in each."""
    recorded = {}
    for path in sorted(run_dir.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")):
        if last := cut_back(path, step):
            recorded[path.parent] = last
        else:
            shutil.rmtree(path.parent)
    return recorded


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

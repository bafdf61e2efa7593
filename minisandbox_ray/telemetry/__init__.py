"""What a run leaves to look at: trackers (W&B, console, metrics.jsonl), and the report at its end."""

from minisandbox_ray.telemetry.report import final_line, read_metrics, write_report
from minisandbox_ray.telemetry.trackers import ConsoleTracker, JsonlTracker, Tracker, WandbTracker

__all__ = [
    "ConsoleTracker",
    "JsonlTracker",
    "Tracker",
    "WandbTracker",
    "final_line",
    "read_metrics",
    "write_report",
]

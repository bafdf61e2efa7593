"""Tasks → environments: which ones they need, built in parallel, failures told by cause."""

from minisandbox_ray.tasks.building.jobs import Job, Plan, plan_jobs
from minisandbox_ray.tasks.building.report import BuildReport, EnvironmentRow, TaskRow, make_report
from minisandbox_ray.tasks.building.run import Builder, Outcome, Watcher

__all__ = [
    "BuildReport",
    "Builder",
    "EnvironmentRow",
    "Job",
    "Outcome",
    "Plan",
    "TaskRow",
    "Watcher",
    "make_report",
    "plan_jobs",
]

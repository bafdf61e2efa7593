"""A page about runs: curves, where time went, failures, and trajectories to click through."""

from minisandbox_ray.report.figures import figures_of
from minisandbox_ray.report.page import page
from minisandbox_ray.report.read import Episode, Run, read_run

__all__ = ["Episode", "Run", "figures_of", "page", "read_run"]

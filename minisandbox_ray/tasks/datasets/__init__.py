"""Public data sets, read into the one `Task` schema: SWE-bench, SWE-smith, SWE-Gym, R2E-Gym, Harbor's task folders."""

from minisandbox_ray.tasks.datasets.read import Format, Loaded, read_dataset
from minisandbox_ray.tasks.datasets.row import Refusal

__all__ = ["Format", "Loaded", "Refusal", "read_dataset"]

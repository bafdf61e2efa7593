"""Task, task factory, grading, and the quickstart's commands."""

from minisandbox_ray.tasks.cache import GradeCache
from minisandbox_ray.tasks.commands import Candidate, enumerate_commands
from minisandbox_ray.tasks.cutdown import cut_down
from minisandbox_ray.tasks.factory import FactoryConfig, PackageSpec, make_tasks
from minisandbox_ray.tasks.grading import Grade, GradingConfig, gold_diff, grade, grade_key, validate
from minisandbox_ray.tasks.quickstart import Quickstart, QuickstartConfig, make_quickstart
from minisandbox_ray.tasks.task import Task, load_tasks, require_environments, save_tasks

__all__ = [
    "Candidate",
    "FactoryConfig",
    "Grade",
    "GradeCache",
    "GradingConfig",
    "PackageSpec",
    "Quickstart",
    "QuickstartConfig",
    "Task",
    "cut_down",
    "enumerate_commands",
    "gold_diff",
    "grade",
    "grade_key",
    "load_tasks",
    "make_quickstart",
    "make_tasks",
    "require_environments",
    "save_tasks",
    "validate",
]

from pathlib import Path

import pytest

from minisandbox_ray.environments import NodeStore
from minisandbox_ray.errors import BuildError, StoreFullError
from minisandbox_ray.tasks.building import plan_jobs
from minisandbox_ray.tasks.building.causes import cause_of

from ..recipes.conftest import Mirror, commit_to, mirror  # noqa: F401
from .conftest import task


def _failed(command: str, why: str, *output: str) -> str:
    return "\n    ".join([f"building 12 (a): `{command}` {why}; its last output:", *output])


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("pallets/flask at 12 cannot be had; tried …: put a clone into repo_mirror", "repository"),
        ("no python 3.5 on this machine (found: 3.6)", "interpreter"),
        (_failed("pip install b", "ended with status 1", "No matching distribution found for b"), "version not found"),
        (_failed("pip install b", "ended with status 1", "subprocess-exited-with-error"), "package does not build"),
        (_failed("pip install b", "ended with status 1", "x.c:1: fatal error: z.h: No such file"), "system library"),
        (_failed("make", "hit its memory limit", "history"), "memory limit"),
        (_failed("make", "took longer than 1800 s"), "time limit"),
        ("building 12 (a): history holds more than one commit: a tag", "history"),
        (_failed("make", "ended with status 2", "no recipe for target"), "install command"),
    ],
)
def test_causes(message: str, cause: str) -> None:
    assert cause_of(BuildError(message)) == cause


def test_a_full_disk_is_no_fault_of_the_recipe() -> None:
    assert cause_of(StoreFullError("building 12 filled the disk")) == "disk full"


def test_tasks_of_one_digest_share_a_job(commit_to: Mirror, mirror: Path, store: NodeStore) -> None:  # noqa: F811
    pytest.importorskip("swebench", reason="the tables are those of the package swebench")
    first = commit_to("psf/requests", {"setup.py": "1"})
    second = commit_to("psf/requests", {"setup.py": "2"})
    fields = {"repo": "psf/requests", "version": "2.0"}
    tasks = [
        task("a", base_commit=first, **fields),
        task("b", base_commit=second, **fields),
        task("c", base_commit=first, **fields),
        task("d", base_commit=first, repo="owner/unknown", version="1"),
        task("e", repo="owner/unknown"),
    ]
    plan = plan_jobs(tasks, store, mirror)
    assert [[each.instance_id for each in job.tasks] for job in plan.jobs] == [["a", "c"], ["b"]]
    assert set(plan.jobs[0].recipes) == {"a", "c"} and not plan.jobs[0].automatic
    assert "no recipe for owner/unknown" in plan.unplanned["d"] and "no table has it" in plan.unplanned["e"]
    alone = plan_jobs(tasks[:2], store, mirror, "no-tables")
    assert [job.key for job in alone.jobs] == [f"psf/requests@{first}", f"psf/requests@{second}"]
    assert all(job.automatic for job in alone.jobs)

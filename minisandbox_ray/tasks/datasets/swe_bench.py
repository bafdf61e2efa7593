"""SWE-bench (all, Lite, Verified) and what follows its columns: SWE-Gym."""

from minisandbox_ray.tasks.datasets.row import Row
from minisandbox_ray.tasks.task import Task

_KNOWN = {"instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement", "hints_text", "created_at"}
_KNOWN |= {"version", "environment_setup_commit", "FAIL_TO_PASS", "PASS_TO_PASS"}


def swe_bench_task(row: Row) -> Task:
    """A row of SWE-bench (card of the data set SWE-bench/SWE-bench_Verified; swebench.harness).

    The repository at ``base_commit`` has the bug. ``patch`` is the gold fix and ``test_patch`` the tests that judge it.
    FAIL_TO_PASS and PASS_TO_PASS are JSON text of lists. ``version`` is the key of the harness's table of installations
    and ``environment_setup_commit`` the commit whose requirement files it installs.
    """
    return Task.model_validate(
        {
            **row.rest(_KNOWN),
            "instance_id": row.needed("instance_id"),
            "repo": row.repository(),
            "base_commit": row.commit("base_commit"),
            "problem_statement": row.needed("problem_statement"),
            "gold_patch": row.patch("patch"),
            "test_patch": row.patch("test_patch"),
            "hints_text": row.text("hints_text"),
            "created_at": row.text("created_at"),
            "version": row.text("version"),
            "environment_setup_commit": row.commit("environment_setup_commit", optional=True),
            "FAIL_TO_PASS": row.tests("FAIL_TO_PASS", needed=True),
            "PASS_TO_PASS": row.tests("PASS_TO_PASS"),
        }
    )


def swe_gym_task(row: Row) -> Task:
    """A row of SWE-Gym (card of the data set SWE-Gym/SWE-Gym): SWE-bench's columns with lists for the tests, and no
    ``environment_setup_commit``."""
    return swe_bench_task(row)

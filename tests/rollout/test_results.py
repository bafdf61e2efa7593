import math
from itertools import combinations

import pytest

from minisandbox_ray.errors import Owner
from minisandbox_ray.rollout.actions import Command, parse_action
from minisandbox_ray.rollout.predictions import apply_action
from minisandbox_ray.rollout.results import make_report, pass_at_k
from minisandbox_ray.rollout.trajectory import Trajectory


def row(instance_id: str, sample: int, resolved: bool, owner: Owner | None = None) -> Trajectory:
    return Trajectory(
        instance_id=instance_id,
        sample=sample,
        seed=sample,
        environment="",
        policy="p",
        turns=[],
        diff="",
        reward=float(resolved),
        resolved=resolved,
        graded=None,
        failure_owner=owner,
        failure="it broke" if owner else "",
        replay=None,
        seconds={},
        node="",
        versions={},
    )


@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (5, 0), (5, 2), (6, 5), (8, 8)])
def test_pass_at_k_is_the_share_of_draws_with_a_success(n: int, c: int) -> None:
    for k in range(1, n + 1):
        draws = list(combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert math.isnan(pass_at_k(n, c, n + 1))


def test_samples_of_a_task_count_together_and_failures_of_ours_do_not() -> None:
    rows = [row("a", 0, False), row("a", 1, True), row("b", 0, False), row("b", 1, False, "sandbox")]
    rows += [row("c", 0, False, "cluster"), row("d", 0, False, "task")]
    report = make_report(["a", "b", "c", "d", "e"], rows)
    assert report["resolved_ids"] == ["a"]
    assert report["unresolved_ids"] == ["b"]
    assert report["completed_ids"] == ["a", "b"]
    assert report["error_ids"] == ["c", "d"]
    assert report["errors"] == {"c": "it broke", "d": "it broke"}
    assert report["incomplete_ids"] == ["e"]
    assert report["pass_at_k"] == {"1": 0.25, "2": 1.0}  # a: 1 of 2; b has one sample that says something
    assert (report["total_instances"], report["submitted_instances"], report["schema_version"]) == (5, 4, 2)


def test_nothing_played_is_a_report_too() -> None:
    report = make_report(["a"], [])
    assert report["incomplete_ids"] == ["a"]
    assert report["pass_at_k"] == {}


@pytest.mark.parametrize("patch", ["a\n", "no newline", "END_OF_PATCH\n", "```\nEND_OF_PATCH\n````\n", "'$(x)' `y`\n"])
def test_any_patch_is_one_command(patch: str) -> None:
    action = parse_action(apply_action(patch))
    assert isinstance(action, Command)
    assert patch.rstrip("\n") in action.text

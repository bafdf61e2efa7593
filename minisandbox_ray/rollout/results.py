"""What a batch of episodes came to, in the form of SWE-bench's reports."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import comb, nan
from typing import Any

from minisandbox_ray.rollout.trajectory import Trajectory


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k samples is right where c of n are: 1 - C(n-c, k) / C(n, k), the unbiased estimator
    of Chen et al., "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374); nan for k > n."""
    if k > n:
        return nan
    return 1.0 - comb(n - c, k) / comb(n, k)


def make_report(
    task_ids: Iterable[str],
    rows: Iterable[Trajectory],
    empty: Iterable[str] = (),
    failed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A report of schema version 2 (swebench.harness.reporting), with ``pass_at_k`` and ``errors`` besides.

    ``rows`` are the last lines of trajectories, of which those count that are finished; a task is resolved if any of
    its samples is. ``empty`` are tasks without a patch, ``failed`` those whose patch did not come to a grade, and why.
    ``pass_at_k`` averages over the tasks with at least k samples, for k = 1, 2, 4, … up to the most samples of a task;
    an empty patch and one that does not apply are samples that failed.
    """
    ids, empty_ids, errors = set(task_ids), set(empty), dict(failed or {})
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if not row.is_finished or row.failure_owner not in (None, "agent"):
            errors.setdefault(row.instance_id, row.failure)
        else:
            outcomes[row.instance_id].append(row.resolved)
    for name in outcomes.keys() - (failed or {}).keys():
        errors.pop(name, None)
    completed = outcomes.keys() - errors.keys() - empty_ids
    resolved = {name for name in completed if any(outcomes[name])}
    submitted = set(outcomes) | set(errors) | empty_ids
    named = {
        "completed": completed,
        "incomplete": ids - submitted,
        "empty_patch": empty_ids,
        "submitted": submitted,
        "resolved": resolved,
        "unresolved": completed - resolved,
        "error": set(errors) - empty_ids,
    }
    counts = {f"{name}_instances": len(named[name]) for name in named if name != "incomplete"}
    samples = {**{key: [False] for key in [*empty_ids, *(failed or {})]}, **outcomes}
    most = max(map(len, samples.values()), default=0)
    return {
        "total_instances": len(ids),
        **counts,
        **{f"{name}_ids": sorted(found) for name, found in named.items()},
        "schema_version": 2,
        "pass_at_k": {str(k): _mean_pass_at_k(samples, k) for k in _powers_of_two(most)},
        "errors": dict(sorted(errors.items())),
    }


def _mean_pass_at_k(samples: Mapping[str, list[bool]], k: int) -> float:
    values = [pass_at_k(len(each), sum(each), k) for each in samples.values() if len(each) >= k]
    return sum(values) / len(values)


def _powers_of_two(most: int) -> list[int]:
    return [1 << bit for bit in range(most.bit_length())]

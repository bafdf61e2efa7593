"""SWE-smith: synthetic bugs in working repositories."""

import re

from minisandbox_ray.tasks.datasets.row import BadRowError, Row, shown
from minisandbox_ray.tasks.task import Task

_KNOWN = {"instance_id", "repo", "base_commit", "patch", "problem_statement", "created_at", "image_name"}
_KNOWN |= {"FAIL_TO_PASS", "PASS_TO_PASS"}
_MIRROR = re.compile(r"(?P<owner>[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*)__(?P<name>.+?)\.(?P<commit>[0-9a-f]{8})(?:\..+)?")
_IMAGE = re.compile(
    r"(?:.*/)?swesmith\.[^.]+\.(?P<owner>.+?)(?:_1776_|__)(?P<name>.+)\.(?P<commit>[0-9a-f]{8})(?::.*)?"
)


def swe_smith_task(row: Row) -> Task:
    """A row of SWE-smith (card of the data set SWE-bench/SWE-smith; swesmith.profiles.base, swesmith.harness.utils).

    ``patch`` INTRODUCES the bug (the harness's gold is ``git apply --reverse`` of it). ``repo`` names a mirror,
    "swesmith/OWNER__NAME.COMMIT8" (``mirror_name``); ``image_name`` is the same in lower case, with _1776_ or __ for
    the slash; ``instance_id`` is the mirror's name, the kind of bug and a hash. Repository and commit are read from the
    first of instance_id, repo and image_name that has them; one in another row's place is refused.
    """
    found = {
        field: match
        for field, pattern in (("instance_id", _MIRROR), ("repo", _MIRROR), ("image_name", _IMAGE))
        if (match := pattern.fullmatch(row.text(field).removeprefix("swesmith/")))
    }
    if not found:
        value = row.text("image_name") or row.text("instance_id")
        raise BadRowError(
            "image_name", f"names no repository and commit, and neither do instance_id and repo: {shown(value)}"
        )
    field, first = next(iter(found.items()))
    for other, match in found.items():
        if [part.lower() for part in match.groups()] != [part.lower() for part in first.groups()]:
            raise BadRowError(other, f"{shown(row.text(other))} is of another repository or commit than {field}")
    patch = row.patch("patch")
    if not patch:
        raise BadRowError("patch", "is missing: it is what introduces the bug")
    return Task.model_validate(
        {
            **row.rest(_KNOWN),
            "instance_id": row.needed("instance_id"),
            "repo": f"{first['owner']}/{first['name']}",
            "base_commit": first["commit"],
            "problem_statement": row.text("problem_statement"),
            "patch": patch,
            "created_at": row.text("created_at"),
            "image_name": row.text("image_name"),
            "FAIL_TO_PASS": row.tests("FAIL_TO_PASS", needed=True),
            "PASS_TO_PASS": row.tests("PASS_TO_PASS"),
        }
    )

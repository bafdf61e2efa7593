"""R2E-Gym: commits with tests of their own; the reward is that every test's status is as expected."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from minisandbox_ray.tasks.datasets.row import BadRowError, Row, shown
from minisandbox_ray.tasks.task import Task

REPOSITORIES = {
    "aiohttp": "aio-libs/aiohttp",
    "bokeh": "bokeh/bokeh",
    "coveragepy": "nedbat/coveragepy",
    "datalad": "datalad/datalad",
    "numpy": "numpy/numpy",
    "orange3": "biolab/orange3",
    "pandas": "pandas-dev/pandas",
    "pillow": "python-pillow/Pillow",
    "pyramid": "Pylons/pyramid",
    "scrapy": "scrapy/scrapy",
    "sympy": "sympy/sympy",
    "tornado": "tornadoweb/tornado",
}
"""What its Dockerfiles clone for each ``repo_name`` (r2egym.repo_analysis, base_dockerfiles)."""
TESTS = "r2e_tests"
"""Where its tests lie below the repository; the agent never sees them."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_STATUSES = ("PASSED", "FAILED", "ERROR")


def r2e_gym_task(row: Row) -> Task:
    """A row of R2E-Gym (r2egym.repo_analysis.validate_docker_and_hf, DatasetRow).

    ``parsed_commit_content`` is JSON of the commit: its ``old_commit_hash`` is the base, and its hunks in Python files
    that are no tests are the gold fix (r2egym.commit_models.diff_classes). ``execution_result_content`` is JSON with
    the test files, which belong to ``r2e_tests/``. ``expected_output_json`` is JSON of a status for each test; the
    reward compares it with the parsed summary (r2egym.agenthub.runtime.docker, _calculate_reward_r2e). The statement
    stands between [ISSUE] and [/ISSUE].
    """
    repo_name, commit = row.needed("repo_name"), row.commit("commit_hash")
    repo = REPOSITORIES.get(repo_name.lower(), repo_name)
    if "/" not in repo:
        raise BadRowError("repo_name", f"{shown(repo_name)} is none of {', '.join(REPOSITORIES)}, nor owner/name")
    parsed = _object(row, "parsed_commit_content")
    executed = _object(row, "execution_result_content")
    statement = row.needed("problem_statement")
    tagged = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", statement, re.DOTALL)
    name = row.instance_id if row.text("instance_id") else f"{repo.replace('/', '__')}-{commit}"
    return Task.model_validate(
        {
            "instance_id": name,
            "repo": repo,
            "base_commit": _base(parsed, commit),
            "problem_statement": (tagged[1] if tagged else statement).strip(),
            "gold_patch": _gold(parsed),
            "hidden_tests": _tests(executed),
            "created_at": str(parsed.get("commit_date") or ""),
            "image_name": row.text("docker_image"),
            "graded_by": "statuses",
            "expected_statuses": _expected(row),
        }
    )


def parse_summary(log: str) -> dict[str, str]:
    """Status by test from the short test summary of ``pytest -rA`` (r2egym.repo_analysis.execution_log_parser).

    Its keys name class and function, without the file: "TestA.test_b[1]". Unlike the published parser it takes the last
    summary, and a line's first word for the status, so that neither a printed summary nor a failure's message passes.
    Whoever runs code in the test process can still print one last: a grader with a report of its own takes that.
    """
    statuses: dict[str, str] = {}
    _, found, summary = _COLOUR.sub("", log).rpartition("short test summary info")
    for line in summary.splitlines() if found else []:
        status, _, test = line.partition(" ")
        if status in _STATUSES and "::" in test:
            statuses[".".join(test.split("::")[1:])] = status
    return statuses


def statuses_match(expected: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """Whether the reward is 1: the same tests, at least one, each with the same status.

    Names count up to " - ", what pytest appends to a failure, and without colours.
    """
    return bool(expected) and _plain(expected) == _plain(found)


def _plain(statuses: Mapping[str, str]) -> dict[str, str]:
    return {_COLOUR.sub("", name).split(" - ")[0]: statuses[name] for name in sorted(statuses)}


def _object(row: Row, field: str) -> dict[str, Any]:
    value = row.json(field)
    if not isinstance(value, dict):
        raise BadRowError(field, f"expected a JSON object, found {shown(value)}")
    return value


def _expected(row: Row) -> dict[str, str]:
    expected = _object(row, "expected_output_json")
    if not expected:
        raise BadRowError("expected_output_json", "is empty: no test tells whether the task is solved")
    for name, status in expected.items():
        if not isinstance(status, str) or not status:
            raise BadRowError("expected_output_json", f"{shown(name)} has no status but {shown(status)}")
    return _plain(expected)


def _base(parsed: dict[str, Any], commit: str) -> str:
    base = parsed.get("old_commit_hash")
    if not isinstance(base, str) or not re.fullmatch(r"[0-9a-f]{7,64}[\^~]?", base):
        raise BadRowError("parsed_commit_content", f"old_commit_hash: expected a commit id, found {shown(base)}")
    if base[:7] == commit[:7] and base[-1] not in "^~":
        raise BadRowError("parsed_commit_content", "old_commit_hash is the fix itself")
    return base


def _tests(executed: dict[str, Any]) -> dict[str, str]:
    names, codes = executed.get("test_file_names"), executed.get("test_file_codes")
    field = "execution_result_content"
    if not isinstance(names, list) or not isinstance(codes, list) or len(names) != len(codes) or not names:
        raise BadRowError(field, "test_file_names and test_file_codes are not two lists of equal length")
    for name, code in zip(names, codes, strict=True):
        if not isinstance(name, str) or not isinstance(code, str) or PurePosixPath(name).name != name or name == "..":
            raise BadRowError(field, f"test_file_names: not a file name: {shown(name)}")
    return {f"{TESTS}/{name}": code for name, code in zip(names, codes, strict=True)}


def _gold(parsed: dict[str, Any]) -> str:
    """The commit's changes of Python files that are no tests, as a git patch."""
    try:
        return "".join(
            _file_patch(each)
            for each in parsed["file_diffs"]
            if each["header"]["file"]["path"].endswith(".py") and not _is_test(each["header"]["file"]["path"])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRowError("parsed_commit_content", f"file_diffs are not those of a commit ({error!r})") from error


def _is_test(path: str) -> bool:
    parts = path.split("/")
    named = path.endswith("_test.py") or parts[-1].startswith("test_")
    return named or bool({"tests", "Tests", "test", "Test"} & set(parts))


def _file_patch(diff: dict[str, Any]) -> str:
    path, misc = diff["header"]["file"]["path"], diff["header"].get("misc_line")
    lines = [f"diff --git a/{path} b/{path}"]
    lines += [misc] if misc else []
    if index := diff.get("index_line"):
        lines.append(f"index {index['old_commit_hash']}..{index['new_commit_hash']} {index['mode'] or ''}".rstrip())
    if diff.get("is_binary_file"):
        lines.append(diff["binary_line"])
    if diff.get("minus_file") and diff.get("plus_file"):
        lines += [f"--- {diff['minus_file']['path']}", f"+++ {diff['plus_file']['path']}"]
    marks = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
    for hunk in diff.get("hunks") or []:
        where = hunk["descriptor"]
        section = f" {where['section']}" if where.get("section") else ""
        lines.append(f"@@ -{_range(where['old_range'])} +{_range(where['new_range'])} @@{section}")
        # Its parser took the end of the diff for an empty context line: go by the header's counts.
        old, new = (
            1 if where[side].get("length") is None else where[side]["length"] for side in ("old_range", "new_range")
        )
        for line in hunk["line_group"]["all_lines"]:
            kind = line["type"]
            if kind != "note" and not old and not new:
                break
            old, new = old - (kind in {"context", "deleted"}), new - (kind in {"context", "added"})
            lines.append(marks[kind] + line["content"])
    return "\n".join(lines) + "\n"


def _range(value: dict[str, Any]) -> str:
    return str(value["start"]) if value.get("length") is None else f"{value['start']},{value['length']}"

"""Small rows of our own in each public format."""

import json
from typing import Any

FIX = "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a - b\n+a + b\n"
TESTS = "diff --git a/test_calc.py b/test_calc.py\n--- a/test_calc.py\n+++ b/test_calc.py\n@@ -1 +1 @@\n-1\n+2\n"
COMMIT = "0123456789abcdef0123456789abcdef01234567"

SWE_BENCH: dict[str, Any] = {
    "repo": "octo/calc",
    "instance_id": "octo__calc-7",
    "base_commit": COMMIT,
    "patch": FIX,
    "test_patch": TESTS,
    "problem_statement": "Sums are wrong.",
    "hints_text": "Look at calc.py.",
    "created_at": "2022-03-03T15:14:54Z",
    "version": "4.3",
    "FAIL_TO_PASS": '["test_calc.py::test_add[1]", "test_neg (calc.tests.AddTests)"]',
    "PASS_TO_PASS": "[]",
    "environment_setup_commit": COMMIT[::-1],
    "difficulty": "<15 min fix",
}

SWE_GYM: dict[str, Any] = {
    **{name: value for name, value in SWE_BENCH.items() if name not in {"environment_setup_commit", "difficulty"}},
    "FAIL_TO_PASS": ["test_calc.py::test_add"],
    "PASS_TO_PASS": ["test_calc.py::test_other"],
}

SWE_SMITH: dict[str, Any] = {
    "instance_id": "Octo__calc.py.01234567.func_pm_ctrl_shuffle__09vlzwgc",
    "repo": "swesmith/Octo__calc.py.01234567",
    "patch": FIX,
    "FAIL_TO_PASS": ["test_calc.py::test_add"],
    "PASS_TO_PASS": ["test_calc.py::test_other"],
    "image_name": "jyangballin/swesmith.x86_64.octo_1776_calc.py.01234567",
    "problem_statement": "",
}


def _diff(path: str, lines: list[tuple[str, str]], old: int | None, new: int | None) -> dict[str, Any]:
    return {
        "old_file_content": "",
        "new_file_content": "",
        "header": {"file": {"path": path}, "misc_line": None},
        "index_line": {"old_commit_hash": "1111111", "new_commit_hash": "2222222", "mode": "100644"},
        "is_binary_file": False,
        "binary_line": None,
        "minus_file": {"path": f"a/{path}"},
        "plus_file": {"path": f"b/{path}"},
        "hunks": [
            {
                "descriptor": {
                    "old_range": {"start": 1, "length": old},
                    "new_range": {"start": 1, "length": new},
                    "section": "",
                },
                "line_group": {"all_lines": [{"type": kind, "content": content} for kind, content in lines]},
            }
        ],
    }


R2E_GYM: dict[str, Any] = {
    "repo_name": "pillow",
    "docker_image": f"somebody/pillow_final:{COMMIT}",
    "commit_hash": COMMIT,
    "parsed_commit_content": json.dumps(
        {
            "file_diffs": [
                _diff(
                    "calc.py",
                    # its parser leaves an empty line at the end of a diff
                    [("context", "def add(a, b):"), ("deleted", "a - b"), ("added", "a + b"), ("context", "")],
                    2,
                    2,
                ),
                _diff("Tests/test_calc.py", [("deleted", "1"), ("added", "2")], None, None),
                _diff("CHANGES.rst", [("deleted", "1"), ("added", "2")], None, None),
            ],
            "old_commit_hash": f"{COMMIT}^",
            "new_commit_hash": COMMIT,
            "commit_message": "Add, do not subtract",
            "commit_date": "2020-01-01T00:00:00Z",
        }
    ),
    "execution_result_content": json.dumps(
        {"repo_name": "pillow", "test_file_names": ["test_1.py"], "test_file_codes": ["def test_add(): ...\n"]}
    ),
    "modified_files": ["calc.py"],
    "prompt": "…",
    "problem_statement": "Title\n[ISSUE]\nSums are wrong.\n[/ISSUE]\n",
    "expected_output_json": json.dumps({"test_add": "PASSED", "\x1b[1mtest_old - x\x1b[0m": "FAILED"}),
}

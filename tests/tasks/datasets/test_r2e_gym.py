import subprocess
import sys
from pathlib import Path

from minisandbox_ray.tasks.datasets.r2e_gym import parse_summary, statuses_match

SUITE = """
import pytest


class TestA:
    @pytest.mark.parametrize("value", [1, 2])
    def test_b(self, value):
        assert value == 1, "PASSED - no"


def test_c():
    pass


def test_d(missing):
    pass
"""


def test_the_summary_of_a_real_run_matches_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "test_1.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--color=yes", "test_1.py"]
    log = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    found = parse_summary(log)
    expected = {"TestA.test_b[1]": "PASSED", "TestA.test_b[2]": "FAILED", "test_c": "PASSED", "test_d": "ERROR"}
    assert statuses_match(expected, found), found
    assert not statuses_match({**expected, "test_c": "FAILED"}, found)
    assert not statuses_match({**expected, "test_e": "PASSED"}, found)
    assert not statuses_match({name: expected[name] for name in list(expected)[1:]}, found)


def test_nothing_never_matches() -> None:
    assert parse_summary("crashed before the summary") == {}
    assert not statuses_match({}, {})

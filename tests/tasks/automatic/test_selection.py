"""The rule by which the benchmark's packages are drawn."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from minisandbox_ray.tasks.automatic.tree import SourceTree

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def rule() -> ModuleType:
    spec = importlib.util.spec_from_file_location("auto_build_select", BENCHMARKS / "auto_build_select.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_order_is_the_seed_s_and_not_the_file_s(rule: ModuleType, tmp_path: Path) -> None:
    rows = [f"p{number}\t1.0\t2026-01\t{number}\tsummary\n" for number in range(1, 30)]
    rows += [f"{name}\t1.0\t2026-01\t7\tstubs\n" for name in ("types-six", "mypy-boto3-s3", "nvidia-x", "six-stubs")]
    rows += ["unranked\t1.0\t2026-01\t\tsummary\n", "far\t1.0\t2026-01\t5001\tsummary\n"]
    (tmp_path / "one").write_text("name\tversion\n" + "".join(rows))
    (tmp_path / "other").write_text("name\tversion\n" + "".join(reversed(rows)))
    drawn = rule.candidates(tmp_path / "one", 0)
    assert sorted(drawn) == sorted(f"p{number}" for number in range(1, 30))
    assert drawn == rule.candidates(tmp_path / "other", 0) != rule.candidates(tmp_path / "one", 1)


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("demo-1/tests/test_a.py", True),
        ("demo-1/a_test.py", True),
        ("demo-1/tests/__init__.py", False),
        ("demo-1/testing.py", False),
        ("demo-1/test_a.txt", False),
    ],
)
def test_what_ships_tests(rule: ModuleType, path: str, counts: bool) -> None:
    assert rule.has_tests(["demo-1/setup.py", path]) is counts


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("import yaml\nfrom demo.core import run\n\ndef test_a(): ...\n", True),
        ("from .helpers import x\nfrom tests.helpers import y\n\nclass TestA: ...\n", True),
        ("print 'of Python 2'\n", True),
        ("def inner():\n    import nowhere\n\nasync def test_a(): ...\n", True),
        ("print('a script')\n", False),
        ("from .lost import x\n\ndef test_a(): ...\n", False),
        ("from . import lost\n\ndef test_a(): ...\n", False),
        ("from tests.lost import x\n\ndef test_a(): ...\n", False),
        ("import win32gui\n\ndef test_a(): ...\n", False),
        ("import private_tools.x\n\ndef test_a(): ...\n", False),
    ],
)
def test_a_test_file_is_whole_if_all_that_it_imports_is_to_be_had(rule: ModuleType, text: str, whole: bool) -> None:
    texts = {"tests/test_a.py": text, "tests/helpers.py": "", "tests/__init__.py": "", "demo/__init__.py": ""}
    tree = SourceTree(frozenset(texts), texts)
    assert rule.is_whole("tests/test_a.py", tree, {"pyyaml", "demo"}) is whole


def test_the_lists_have_each_package_once_with_its_hash() -> None:
    drawn = ["packages", "packages_2", "packages_3", "packages_4", "packages_5", "packages_6", "packages_7"]
    lists = [
        [line.split() for line in (BENCHMARKS / f"auto_build_{name}.txt").read_text().splitlines()]
        for name in (*drawn, "practice")
    ]
    assert [len(lines) for lines in lists] == [30, 13, 19, 17, 12, 16, 14, 52]
    assert len({words[0] for lines in lists for words in lines}) == 173
    assert all(len(words) == 4 and len(words[2]) == 64 for lines in lists for words in lines)

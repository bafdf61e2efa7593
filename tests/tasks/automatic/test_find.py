"""Searches from end to end, with real builds of small trees."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox_ray.environments import NodeStore, Source, cache_root
from minisandbox_ray.environments.archive import archive_path
from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks.automatic import AutomaticConfig, find_environment
from minisandbox_ray.tasks.automatic.find import Found, plans_left
from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.trial import Trial

from .conftest import Endpoint

SETUP = "from setuptools import setup\nsetup(name='demo', version='1', py_modules=['demo'])\n"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own, with the user's downloaded wheels."""
    wheels = cache_root() / "wheels"
    root = tmp_path_factory.mktemp("cache")
    if wheels.is_dir():
        (root / "wheels").symlink_to(wheels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINISANDBOX_CACHE", str(root))
        yield root


def write(root: Path, files: dict[str, str]) -> Source:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Source(kind="path", path=root)


def skip_without_index(error: BuildError) -> None:
    if "index" in str(error) or "No matching distribution found for" in str(error):
        pytest.skip(f"no package index within reach: {error}")


def search(source: Source, cache: Path, config: AutomaticConfig) -> Found:
    """What is found, in the cache's own archives and store; skips where there is no index."""
    try:
        return find_environment(source, archives=cache / "archives", store=NodeStore(cache / "store"), config=config)
    except BuildError as error:
        skip_without_index(error)
        raise


def test_a_tree_that_needs_a_repair(cache: Path, tmp_path: Path) -> None:
    source = write(
        tmp_path,
        {
            "setup.py": SETUP,
            "demo.py": "import inflection\n\n\ndef many(word):\n    return inflection.pluralize(word)\n",
            "tests/test_demo.py": "import demo\n\n\ndef test_many():\n    assert demo.many('test') == 'tests'\n",
        },
    )
    archives, store, lines = cache / "archives", NodeStore(cache / "store"), list[str]()
    config = AutomaticConfig(attempts=2)
    try:
        found = find_environment(source, archives=archives, store=store, config=config, log=lines.append)
    except BuildError as error:
        skip_without_index(error)
        raise
    assert found.learned == ["inflection"] and found.attempts == 2 and len(lines) == 2
    assert found.passing == ["tests/test_demo.py::test_many"] and not found.failing
    assert found.test_targets == ["tests"] and archive_path(archives, found.digest).exists()
    assert len(list(archives.glob("*.tar.zst"))) == 1, "the failed attempt's archive is gone"
    notes = [json.loads(line) for line in found.attempt_log.read_text().splitlines()]
    assert notes[1]["repairs"] == ["missing_module"] and "No module named 'inflection'" in notes[1]["log"]
    assert find_environment(source, archives=archives, store=store, config=config) == found


def test_of_a_suite_without_time_the_files_that_end_are_kept(cache: Path, tmp_path: Path) -> None:
    source = write(
        tmp_path,
        {
            "setup.py": SETUP,
            "demo.py": "",
            "tests/test_a.py": "def test_quick():\n    pass\n",
            "tests/test_b.py": "import time\n\n\ndef test_slow():\n    time.sleep(600)\n",
            "tests/test_c.py": "from tests.lost import it\n",
        },
    )
    config = AutomaticConfig(attempts=1, suite_timeout=30)
    found = search(source, cache, config)
    assert found.passing == ["tests/test_a.py::test_quick"]
    assert found.test_command[1:] == ["--ignore=tests/test_b.py"]
    assert found.learned == ["1 of 2 test files: all take longer than 30 s"]
    assert found.excused == {"tests/test_c.py": "its source tree lacks the module tests.lost"}


def test_tests_that_are_skipped_for_want_of_a_plugin_get_it(cache: Path, tmp_path: Path) -> None:
    text = "import pytest\n\n\ndef test_one():\n    pass\n\n\nasync def test_two():\n    assert True\n"
    setup = SETUP.replace("version='1'", "version='1', extras_require={'test': ['pytest==8.3.3']}")
    source = write(tmp_path, {"setup.py": setup, "demo.py": "", "tests/test_a.py": text})
    found = search(source, cache, AutomaticConfig(attempts=3))
    assert found.passing == ["tests/test_a.py::test_one", "tests/test_a.py::test_two"]
    assert found.learned == ["pytest-asyncio", "asyncio for all"]


def test_of_a_suite_that_fails_in_part_the_files_that_work_are_kept(cache: Path, tmp_path: Path) -> None:
    source = write(
        tmp_path,
        {
            "setup.py": SETUP,
            "demo.py": "",
            "tests/test_a.py": "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n",
            "tests/test_b.py": "def test_three():\n    assert 1 == 2\n",
        },
    )
    found = search(source, cache, AutomaticConfig(attempts=1))
    assert found.learned == ["1 of 2 test files: in the others most fails"] and found.attempts == 2
    assert found.test_command[1:] == ["--ignore=tests/test_b.py"] and not found.failing
    assert found.passing == ["tests/test_a.py::test_one", "tests/test_a.py::test_two"]


def test_where_a_dependency_fails_it_is_the_interpreter_that_is_changed() -> None:
    trial = Trial(Plan(python="3.13.0"), "build", log="Preparing metadata (setup.py): finished with status 'error'")
    others = [Plan(python="3.13.0", strategy="path"), Plan(python="3.12.1")]
    assert plans_left(others, trial) == others, "the project itself may be installed in another way"
    assert plans_left(others, replace(trial, log=f"Collecting old==1\n{trial.log}")) == others[1:]
    assert plans_left(others, replace(trial, stage="tests")) == others[1:]


def test_what_no_repair_knows_the_advisor_may(cache: Path, tmp_path: Path, endpoint: Endpoint) -> None:
    source = write(
        tmp_path,
        {
            "setup.py": SETUP.replace("version='1'", "version='1', python_requires='==3.12.*'"),
            "demo.py": "",
            "tests/test_demo.py": "import os\n\n\ndef test_mode():\n    assert os.environ.get('MODE') == 'loud'\n",
        },
    )
    endpoint.content = '{"why": "it wants a mode", "variables": {"MODE": "loud"}}'
    config = AutomaticConfig(attempts=3, advisor=endpoint.config)
    found = search(source, cache, config)
    assert (found.learned, found.spec.variables) == (["it wants a mode"], {"MODE": "loud"})
    assert found.passing == ["tests/test_demo.py::test_mode"] and len(endpoint.asked) == 1
    assert "hidden" not in found.attempt_log.read_text(), "the key is nobody's business"


def test_a_tree_without_tests_is_told_at_once(cache: Path, tmp_path: Path) -> None:
    source = write(tmp_path, {"setup.py": SETUP, "demo.py": ""})
    with pytest.raises(BuildError, match=r"has no tests .*jsonl"):
        find_environment(source, archives=cache / "archives", store=NodeStore(cache / "store"))


def test_a_python_that_nobody_has_is_told_at_once(cache: Path, tmp_path: Path) -> None:
    setup = SETUP.replace("version='1'", "version='1', python_requires='<3'")
    source = write(tmp_path, {"setup.py": setup, "tests/test_demo.py": ""})
    with pytest.raises(BuildError, match=r"wants python <3; this machine has 3\."):
        find_environment(source, archives=cache / "archives", store=NodeStore(cache / "store"))

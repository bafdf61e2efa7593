"""A small repository built into a real environment, and tasks on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from minisandbox_ray.environments import Environment, EnvSpec, NodeStore, Source, build_environment
from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks import FactoryConfig, PackageSpec, Task, make_tasks
from minisandbox_ray.tasks.source import unified_patch

CALC = '''\
"""Arithmetic, with an umlaut: ä."""


def clamp(value, low, high):
    """Smallest and größte."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def total(values):
    result = 0
    for value in values:
        result += value
    return result
'''

TEST_CALC = """\
import pytest
from calc import clamp, total


@pytest.mark.parametrize("value", [-1, 5, 11], ids=["a::b", "c/d [e]", "f.py::g"])
def test_clamp(value):
    assert 0 <= clamp(value, 0, 10) <= 10


class Base:
    def test_inherited(self):
        assert clamp(5, 0, 10) == 5


class TestEdges(Base):
    class TestInner:
        def test_low(self):
            assert clamp(-5, 0, 10) == 0


def test_total():
    assert total([1, 2, 3]) == 6


@pytest.mark.xfail
def test_expected_failure():
    assert total([]) == 1


@pytest.mark.skip
def test_skipped():
    pass
"""

IDS = [
    "tests/test_calc.py::test_clamp[a::b]",
    "tests/test_calc.py::test_clamp[c/d [e]]",
    "tests/test_calc.py::test_clamp[f.py::g]",
    "tests/test_calc.py::TestEdges::test_inherited",
    "tests/test_calc.py::TestEdges::TestInner::test_low",
    "tests/test_calc.py::test_total",
    "tests/test_calc.py::test_expected_failure",
]

BROKEN = CALC.replace("value > high", "value < high")


@dataclass
class Bench:
    """What the grader needs, and the place where it came from."""

    env: Environment
    task: Task
    layer: Path
    store: NodeStore
    archives: Path


@pytest.fixture(scope="session", autouse=True)
def _supported(sandboxes: None) -> None:
    pass


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NodeStore]:
    """Archives and node store of this test run."""
    root = tmp_path_factory.mktemp("environments")
    return root / "archives", NodeStore(root / "store")


@pytest.fixture(scope="session")
def bench(places: tuple[Path, NodeStore], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A package whose function clamp() is broken."""
    source = tmp_path_factory.mktemp("source")
    (source / "calc.py").write_text(CALC)
    (source / "tests").mkdir()
    (source / "tests" / "test_calc.py").write_text(TEST_CALC)
    spec = EnvSpec(
        source=Source(kind="path", path=source),
        packages=list(FactoryConfig.model_fields["requirements"].get_default()),
        install=[
            'echo /testbed > "$(python -c "import sysconfig; print(sysconfig.get_path(\'purelib\'))")/testbed.pth"'
        ],
    )
    archives, store = places
    try:
        manifest = build_environment(spec, archives, store)
    except BuildError as error:
        pytest.skip(f"no environment without a package index: {str(error).splitlines()[0]}")
    failing = [IDS[2], IDS[3]]
    task = Task(
        instance_id="calc__1.compare_00000000",
        repo="calc",
        patch=unified_patch("calc.py", CALC, BROKEN),
        FAIL_TO_PASS=failing,
        PASS_TO_PASS=[test for test in IDS if test not in failing],
        environment=manifest.digest,
    )
    with store.use(manifest.digest, archives) as env:
        yield Bench(env, task, store.derive(env, task.patch), store, archives)


FACTORY = FactoryConfig(
    packages=[PackageSpec(name="unidiff", version="0.7.5", modules=["unidiff"], tests=["tests"])],
    per_package=3,
    seed=7,
)


@dataclass
class Made:
    """A first run's result, in a cache of its own."""

    tasks: list[Task]
    cache: Path


@pytest.fixture(scope="session")
def made(places: tuple[Path, NodeStore], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The factory's tasks; its environment is built with the usual caches of downloads."""
    try:
        build_environment(FACTORY.packages[0].env_spec(FACTORY.requirements), *places)
    except BuildError as error:
        pytest.skip(f"no environment without a package index: {str(error).splitlines()[0]}")
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINISANDBOX_CACHE", str(cache))
        return Made(make_tasks(FACTORY, *places), cache)

"""Which interpreters and installations are tried first, and with packages of which date."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from minisandbox_ray.environments import Interpreter, Source
from minisandbox_ray.tasks.automatic.facts import Facts
from minisandbox_ray.tasks.automatic.plans import Plan, first_plans, newest_allowed, order_interpreters
from minisandbox_ray.tasks.automatic.strip_installed import strip

SOURCE = Source(kind="sdist", name="demo", version="1.2")


def interpreters(*versions: str) -> list[Interpreter]:
    return [Interpreter(version, Path("/python"), Path("/"), None) for version in versions]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


ALL = interpreters("3.13.0", "3.12.1", "3.12.0", "3.11.7", "3.10.13", "3.9.18", "3.8.18", "3.7.16", "3.6.15")


@pytest.mark.parametrize(
    ("facts", "date", "expected"),
    [
        (Facts(), None, ["3.13.0", "3.12.1", "3.11.7", "3.10.13"]),
        (Facts(requires_python="<3.9,>=3.7"), None, ["3.8.18", "3.7.16"]),
        (Facts(requires_python="nonsense"), at("2019-01-01"), ["3.7.16", "3.6.15", "3.8.18", "3.9.18"]),
        (Facts(tested=["3.6", "3.8"]), at("2022-01-01"), ["3.8.18", "3.10.13", "3.9.18", "3.7.16"]),
        (Facts(), at("2013-01-01"), ["3.6.15", "3.7.16", "3.8.18", "3.9.18"]),
        (Facts(requires_python=">=3.14"), None, []),
    ],
)
def test_interpreters_by_what_the_project_says_and_the_date(
    facts: Facts, date: datetime | None, expected: list[str]
) -> None:
    assert [each.version for each in order_interpreters(facts, date, ALL)] == expected


def test_package_versions_are_of_the_date_or_of_when_the_interpreter_had_settled() -> None:
    assert newest_allowed(None, (3, 9, 1)) == ""
    assert newest_allowed(at("2022-03-01"), (3, 9, 1)) == "2022-03-04"
    assert newest_allowed(at("2012-03-01"), (3, 6, 15)) == "2018-12-24"
    assert newest_allowed(at("2012-03-01"), (3, 9, 1)) == "2021-04-03"
    assert newest_allowed(datetime.now(UTC), (3, 9, 1)) == ""


def test_markers_decide_and_pytest_is_always_there() -> None:
    facts = Facts(test_requirements=["mock; python_version < '3.7'", "six"])
    plans = {plan.python: plan.requirements for plan in first_plans(facts, at("2018-01-01"), ALL)}
    assert plans["3.6.15"] == ["mock", "six", "pytest"]
    assert plans["3.7.16"] == ["six", "pytest"]


def test_a_plan_as_a_recipe() -> None:
    facts = Facts(
        name="demo", version="1.2", version_variables=["PBR_VERSION"], import_path="src", dependencies=["six"]
    )
    plan = Plan(python="3.9.18", requirements=["pytest<7"], paths=["tests/lib"], exclude_newer="2021-01-01")
    spec = plan.spec(SOURCE, facts)
    assert spec.install[0] == "PBR_VERSION=1.2 timeout 900 pip install -e . 'pytest<7'"
    assert "printf '%s\\n' /testbed /testbed/tests/lib >" in spec.install[-1]
    assert (spec.python, spec.exclude_newer) == ("3.9.18", "2021-01-01")
    by_path = plan.changed("", strategy="path").spec(SOURCE, facts)
    assert by_path.install[0] == "PBR_VERSION=1.2 timeout 900 pip install six 'pytest<7'"
    assert "/testbed/src /testbed /testbed/tests/lib >" in by_path.install[-1]


def test_what_is_stripped_keeps_its_metadata(tmp_path: Path) -> None:
    site, root = tmp_path / "site", tmp_path / "root"
    paths = ["demo/__init__.py", "demo/fast.so", "demo/made.py", "demo/data.txt", "rust/__init__.py", "rust/rust.so"]
    for path in [*paths, "demo-1.dist-info/METADATA", "other.py"]:
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(path)
    (root / "demo").mkdir(parents=True)
    (root / "demo/__init__.py").write_text("")
    (root / "demo/data.txt").write_text("")
    record = [*(f"{path},," for path in paths), "../../../bin/demo,,", "demo-1.dist-info/METADATA,,"]
    (site / "demo-1.dist-info/RECORD").write_text("\n".join(record))
    strip(site, site / "demo-1.dist-info", root)
    left = sorted(str(path.relative_to(site)) for path in site.rglob("*") if path.is_file())
    own = ["rust/__init__.py", "rust/rust.so"]  # all of it is made: the tree has none of it
    assert left == ["demo-1.dist-info/METADATA", "demo-1.dist-info/RECORD", "other.py", *own]
    assert (root / "demo/fast.so").read_text() == "demo/fast.so"
    assert (root / "demo/made.py").read_text() == "demo/made.py"

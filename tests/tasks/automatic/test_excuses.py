"""What failures are told to be no environment's fault, and what are not."""

import pytest

from minisandbox_ray.tasks.automatic.excuses import NOT_SHIPPED, Excuses
from minisandbox_ray.tasks.automatic.tree import SourceTree

TREE = SourceTree(
    frozenset(["demo/__init__.py", "demo/data/a.json", "test_app/urls.py", "tests/test_a.py", "tests/data/b.json"]),
    {"tests/test_a.py": "@pytest.fixture\ndef own():\n    pass\n"},
)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("requests.exceptions.ConnectionError: Max retries exceeded", "wants what a sandbox has not (ConnectionError)"),
        (
            "InterfaceError: Can't create a connection to host localhost and port 5432",
            "wants what a sandbox has not (Can't create a connection to)",
        ),
        ("KeyError: 'DBUS_SESSION_BUS_ADDRESS'", "wants what a sandbox has not (DBUS_SESSION_BUS_ADDRESS)"),
        ("No module named 'tests.integration'", f"{NOT_SHIPPED}the module tests.integration"),
        (
            "cannot import name 'views' from 'test_app' (unknown location)",
            f"{NOT_SHIPPED}the module test_app.views",
        ),
        ("No module named 'win32gui'", "wants another operating system (win32gui)"),
        ("No module named 'private_tools.core'", f"{NOT_SHIPPED}the module private_tools.core"),
        (
            "x\ntests/test_a.py:3: in <module>\n    from .lost.cases import Case\n"
            "E   ImportError: attempted relative import with no known parent package",
            f"{NOT_SHIPPED}the module tests.lost.cases",
        ),
        ("No such file or directory: '/testbed/scripts/make.py'", f"{NOT_SHIPPED}scripts/make.py"),
        ("No such file or directory: 'tests/data/c.json'", f"{NOT_SHIPPED}tests/data/c.json"),
        ("jinja2.exceptions.TemplateNotFound: inner/lost.html", f"{NOT_SHIPPED}the template inner/lost.html"),
        ("fixture 'server' not found", f"{NOT_SHIPPED}the fixture server"),
    ],
)
def test_what_no_environment_has(failure: str, reason: str) -> None:
    assert Excuses(TREE, ["private-tools"]).reason(f"E   {failure}") == reason


@pytest.mark.parametrize(
    "failure",
    [
        "AssertionError: assert 1 == 2",
        "AssertionError: assert 'api_key' in {}\nE     +  where {} = connect('Connection refused')",
        "ValueError: no\n    raise ConnectionError('in the source')",
        "No module named 'demo._speedups'",  # made when it is built
        "No module named 'yaml'",
        "x\ntests/test_a.py:3: in <module>\n    from .test_a import own\n"
        "E   ImportError: attempted relative import with no known parent package",
        "No such file or directory: '/testbed/demo/version.txt'",
        "No such file or directory: 'data/b.json'",  # it is there, below tests
        "No such file or directory: '/tmp/pytest-1/out/c.txt'",
        "No such file or directory: 'uv'",
        "jinja2.exceptions.TemplateNotFound: data/b.json",
        "fixture 'own' not found",
        "fixture 'mocker' not found",
    ],
)
def test_what_may_be_the_environment_s_fault(failure: str) -> None:
    assert Excuses(TREE).reason(f"E   {failure}") == ""


def test_a_package_that_many_projects_share_lacks_no_other_project_s_part() -> None:
    paths = ["google/cloud/demo/__init__.py", "tests/unit/test_a.py", "demo/tests/json/a.json", "json/b.json"]
    excuses = Excuses(SourceTree(frozenset(paths)))
    for module in ("google.auth.transport", "google.cloud.location.x", "google.api_core", "json"):
        assert excuses.reason(f"E   No module named '{module}'") == ""
    assert excuses.reason("E   No module named 'tests.lost'") == f"{NOT_SHIPPED}the module tests.lost"

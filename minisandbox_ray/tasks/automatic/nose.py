"""What nose calls before and after the tests of a plain class, and pytest does not."""

import shlex

OPTION = "testbed_nose"
"""Name of a pytest plugin, in the venv's site-packages, that calls it."""

PLUGIN = """import unittest

import pytest

# pytest called the lower case names itself until 8.
NAMES = [("setUp", "tearDown")] + [("setup", "teardown")] * (int(pytest.__version__.split(".")[0]) >= 8)


@pytest.fixture(autouse=True)
def of_nose(request):
    test = request.instance
    names = [] if test is None or isinstance(test, unittest.TestCase) else NAMES
    for before, _ in names:
        if hasattr(test, before):
            getattr(test, before)()
            break
    yield
    for _, after in names:
        if hasattr(test, after):
            getattr(test, after)()
            break
"""


def install_command() -> str:
    """A shell command of a build that writes the plugin."""
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return f'printf %s {shlex.quote(PLUGIN)} > "$(python -c "{find}")/{OPTION}.py"'

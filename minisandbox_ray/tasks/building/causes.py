"""Why builds fail, in a few classes that a person can act on."""

import re

from minisandbox_ray.environments.room import is_full
from minisandbox_ray.errors import StoreFullError

_BY_TITLE = [
    ("interpreter", r"^no python |no Python on this machine|has no venv or ensurepip|can't be used from a copy"),
    ("repository", r"cannot be had|has no such commit|fetch the whole commit|repo_mirror"),
    ("recipe", r"no recipe|no profile|none of the requirement files|no table has it|environment\.yml"),
    ("history", r"history (cannot be checked|holds more)"),
    ("time limit", r"took longer than \d+ s"),
    ("memory limit", r"hit its memory limit"),
    ("other limit", r"hit its \w+ limit"),
]
"""By an error's first line; the first that fits."""
_BY_OUTPUT = [
    ("network", r"name resolution|Max retries exceeded|Connection (refused|reset|broken)|Read timed out|\b502 Server"),
    ("conflicting requirements", r"ResolutionImpossible|conflicting dependencies"),
    ("version not found", r"No matching distribution found|Could not find a version"),
    ("memory limit", r"^\s*Killed\b|\bMemoryError\b"),
    ("system library", r"fatal error: \S+\.h|cannot find -l|pkg-config|command not found"),
    ("package does not build", r"Failed building wheel|subprocess-exited-with-error|metadata-generation-failed"),
    ("package does not build", r"error: command '\S*(gcc|g\+\+|cc)\S*' failed|setup\.py \S+ did not run"),
]
"""By the last lines that the failed command printed."""

FINAL = {"interpreter", "repository", "recipe", "history"}
"""Those that a second try cannot change."""
KILLED = "killed"
"""The process that built has gone: out of memory, or killed by somebody."""
OTHER = "install command"


def cause_of(error: BaseException) -> str:
    """The class of a failure."""
    if isinstance(error, StoreFullError) or is_full(error):
        return "disk full"
    title, _, output = str(error).partition("\n")
    found = [cause for cause, pattern in _BY_TITLE if re.search(pattern, title)]
    found += [cause for cause, pattern in _BY_OUTPUT if re.search(pattern, output, re.MULTILINE)]
    return found[0] if found else OTHER

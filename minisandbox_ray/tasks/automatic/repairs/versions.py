"""Projects that have moved on since the tests were written, or not yet: another version of what is installed.

pytest and its plugins are most of it; for sources of unknown date there is a table of other much used projects.
"""

import re

from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.repairs.failure import Failure, unpinned
from minisandbox_ray.tasks.automatic.requirements import name_of


def other_asyncio(failure: Failure) -> Plan | None:
    """A pytest-asyncio of another time than the tests'."""
    said = r"fixture 'event_loop' not found|There is no current event loop|asyncio_mode|requested an async fixture"
    said += r"|Event loop is closed|attached to a different loop|must be called from async context"
    if failure.in_build or not re.search(said, failure.log):
        return None
    # The oldest that the project allows is the one that it was written with.
    for text in failure.facts.test_requirements:
        match = re.fullmatch(r"pytest-asyncio\s*>=\s*(\d+\.\d+\.\d+)", text.partition(";")[0].strip())
        if match and (found := failure.plan.with_requirement(f"pytest-asyncio~={match[1]}", "pytest-asyncio of then")):
            return found
    return failure.plan.with_requirement("pytest-asyncio<0.24", "pytest-asyncio before 0.24")


def old_pytest(failure: Failure) -> Plan | None:
    """What pytest used to do, and the version that still did."""
    if failure.in_build:
        return None
    for said, below, newest_minor in (
        (
            r"yield tests were removed in pytest 4|Fixture \"?\w+\"? called directly|\[pytest\] section in setup\.cfg",
            4,
            9,
        ),
        (r"has no attribute 'get_marker'|module 'pytest' has no attribute 'config'|pytest_namespace", 5, 9),
        (r"Node.from_parent|Direct construction of|use from_parent|has no attribute 'yield_fixture'", 6, 10),
        (
            r"PytestRemovedIn7|The \(?fspath|py\.path\.local|argument of type 'PosixPath' is not|compat\.py.*_idval",
            7,
            11,
        ),
        (
            r"PytestRemovedIn8|support for nose|nose-specific method|nose.*setup\(self\)|'CallSpec2' object has no",
            8,
            12,
        ),
        (
            r"PytestRemovedIn9|unexpected keyword argument 'path'|has no attribute 'Package.obj'",
            9,
            14,
        ),
    ):
        if failure.minor <= newest_minor and re.search(said, failure.log):
            found = failure.plan.with_requirement(f"pytest<{below}", f"pytest before {below}")
            if found:
                return found
    return None


def pinned_pytest(failure: Failure) -> Plan | None:
    """A pytest or plugins that the tests' requirements hold back, where they do not run on this interpreter."""
    said = (
        r"INTERNALERROR|argument: 'type_comment|field \"\w+\" is required for|No module named 'imp'|PytestPluginManager"
    )
    said += r"|_pytest/assertion/rewrite\.py|PluginValidationError|importlib_metadata"
    is_dead = re.search(r"pytest does not start|no test is collected", failure.trial.cause)
    if failure.in_build or not is_dead or not re.search(said, failure.log):
        return None
    plan = failure.plan
    bare = [unpinned(text) if name_of(text).startswith("pytest") else text for text in plan.requirements]
    return plan.changed("pytest of any version", requirements=bare) if bare != plan.requirements else None


def rival_plugins(failure: Failure) -> Plan | None:
    """A plugin that bears no other one which is installed: the one that the project does not name goes."""
    match = re.search(r"[`'\"]([\w-]+)[`'\"] is incompatible with [`'\"]([\w-]+)[`'\"]", failure.log)
    if failure.in_build or match is None:
        return None
    named = {name_of(text) for text in failure.facts.test_requirements}
    unwanted = min(match.groups(), key=lambda name: name_of(name) in named)
    return failure.plan.without_requirement(unwanted, f"without {unwanted}")


def newer_pytest(failure: Failure) -> Plan | None:
    """A pytest of the date that is too old for the tests or a plugin, or does not run on this interpreter."""
    said = r"requires pytest-\d|minversion|No module named '?pytest_|unexpected keyword argument '(?:tmp_path|autouse)'"
    said += r"|argument: 'type_comment|field \"\w+\" is required for|Missing required plugins|INTERNALERROR"
    if not failure.in_build and failure.plan.exclude_newer and re.search(said, failure.log):
        return failure.plan.changed("versions of any date", exclude_newer="")
    return None


AGED = (
    (r"numpy.*has no attribute '(float|int|bool|object|str|complex)'|np\.(float|int|bool|object)\b", "numpy<1.24"),
    (r"compiled using NumPy 1\.x|numpy\.core\.multiarray failed|np\.\w+_` was removed in the NumPy 2", "numpy<2"),
    (r"Descriptors cannot (not )?be created directly", "protobuf<3.21"),
    (r"cannot import name 'soft_unicode'", "markupsafe<2.1"),
    (r"cannot import name '(escape|Markup|contextfilter|environmentfilter)' from 'jinja2'", "jinja2<3.1"),
    (r"cannot import name '(url_quote|BaseResponse|secure_filename|safe_str_cmp)' from 'werkzeug", "werkzeug<2.1"),
    (r"`pydantic[.:]|PydanticUserError|PydanticImportError|pydantic.*has been (moved|removed)", "pydantic<2"),
    (r"No module named '?(sqlalchemy\.ext\.declarative\.api|sqlalchemy\.databases)", "sqlalchemy<2"),
    (r"unexpected keyword argument '(app|proxies)'", "httpx<0.28"),
    (r"cannot import name 'DEFAULT_CIPHERS' from 'urllib3|No module named 'urllib3\.packages\.six", "urllib3<2"),
    (r"No module named '?(pkg_resources)'?", "setuptools<81"),
    (r"No time zone found with key|ZoneInfoNotFoundError", "tzdata"),
    (r"cannot import name '(Mapping|MutableMapping|Iterable|Callable)' from 'collections'", ""),
)
"""Incompatible changes of much used projects, for sources whose date is not known."""


def aged_dependency(failure: Failure) -> Plan | None:
    """A dependency that has moved on."""
    if failure.in_build:
        return None
    for said, requirement in AGED:
        if (
            requirement
            and re.search(said, failure.log)
            and (found := failure.plan.with_requirement(requirement, requirement))
        ):
            return found
    return None

"""How the suite is run: pytest's options, the directory, Django's settings, and the tests that are left out.

Of what is installed only a plugin changes, which the other way of running needs or is disturbed by.
"""

import posixpath
import re
from collections import Counter

from minisandbox_ray.tasks.automatic import directory, django, nose
from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.repairs.failure import Failure, matches, with_all, with_options
from minisandbox_ray.tasks.automatic.tree import is_below_tests, is_test_file


def other_directory(failure: Failure) -> Plan | None:
    """Files that tests name from the directory which they are meant to run in."""
    if failure.in_build or directory.OPTION in failure.plan.options:
        return None
    folders = Counter[str]()
    for named in re.findall(r"No such file or directory: '((?:\./)?[\w-][^'\n/]*(?:/[^'\n/]+)*)'", failure.log):
        path = posixpath.normpath(named)
        if path not in failure.tree.paths and "." in posixpath.basename(path):
            places = {each[: -len(path) - 1] for each in failure.tree.paths if each.endswith(f"/{path}")}
            folders.update(sorted(places, key=lambda place: (place.count("/"), place))[:1])
    if not folders:
        return None
    folder = folders.most_common(1)[0][0]
    plan = failure.plan
    return plan.changed(
        f"tests run in {folder}",
        prepare=[*plan.prepare, directory.install_command(folder)],
        options=[*plan.options, "-p", directory.OPTION],
    )


def nose_fixtures(failure: Failure) -> Plan | None:
    """Plain classes of tests whose setUp is nose's affair."""
    if failure.in_build or nose.OPTION in failure.plan.options:
        return None
    if not re.search(r"'\w+' object has no attribute '\w+'", failure.log):
        return None
    plain = r"^class \w+(\((?!.*TestCase)[\w., ]*\))?:\n(.*\n){0,40}?    def set[uU]p\(self\)"
    texts = [text for path, text in failure.tree.texts.items() if is_test_file(path)]
    if not any(re.search(r"^\s*(from|import) nose\b", text, re.MULTILINE) for text in texts):
        return None
    if not any(re.search(plain, text, re.MULTILINE) for text in texts):
        return None
    plan = failure.plan
    return plan.changed(
        "setUp as nose calls it",
        prepare=[*plan.prepare, nose.install_command()],
        options=[*plan.options, "-p", nose.OPTION],
    )


def async_tests(failure: Failure) -> Plan | None:
    """Coroutines that nobody awaits."""
    said = (
        r"async def functions? (?:and async fixtures )?(?:are|is) not natively supported|coroutine .* was never awaited"
        r"|async def function and no async plugin"
    )
    if failure.in_build or not re.search(said, failure.log):
        return None
    if found := with_all(failure, {"": "pytest-asyncio"}, [""]):
        return found
    if failure.minor >= 7:
        return with_options(failure, ["-o", "asyncio_mode=auto"], "asyncio for all")
    return None


def conflicting_names(failure: Failure) -> Plan | None:
    """Test files of one name in different directories."""
    said = r"import file mismatch|ImportPathMismatchError|attempted relative import"
    if not failure.in_build and re.search(said, failure.log):
        return with_options(failure, ["--import-mode=importlib"], "import mode importlib")
    return None


def on_trio(failure: Failure) -> Plan | None:
    """Tests that anyio's plugin runs once more on trio, where they were written for asyncio alone."""
    variant = re.compile(r"[\[-]trio[\]-]")
    failing = [test for test in failure.trial.failing if variant.search(test)]
    passing = [test for test in failure.trial.passing if variant.search(test)]
    if failure.trial.stage != "tests" or not failing or len(passing) > len(failing) / 4:
        return None
    return with_options(failure, ["-k", "not trio"], "without trio")


def warnings_as_errors(failure: Failure) -> Plan | None:
    """Warnings of today that the configuration of then takes for errors."""
    if failure.in_build or not re.search(r"^(E|INTERNALERROR>)\s+[\w.]*Warning: ", failure.log, re.MULTILINE):
        return None
    return with_options(failure, ["-W", "default"], "warnings are no errors")


def doctests(failure: Failure) -> Plan | None:
    """Doctests of all modules, some of which can't be imported: they are left out, the tests remain."""
    option, uncollected = "--doctest-modules", failure.trial.uncollected
    modules = [path for path in uncollected if not is_test_file(path) and not is_below_tests(path)]
    if failure.in_build or option not in failure.facts.pytest_options or len(modules) <= len(uncollected) / 2:
        return None
    rest = failure.facts.pytest_options.replace(option, "")
    return with_options(failure, ["-o", f"addopts={' '.join(rest.split())}"], "without doctests")


def missing_plugin_of_the_tree(failure: Failure) -> Plan | None:
    """A plugin that addopts name, and that neither the tree nor an installed project has."""
    if failure.in_build or not re.search(r"Error importing plugin", failure.log):
        return None
    if not re.search(r"(^|\s)-p", failure.facts.pytest_options):
        return None
    return with_options(failure, ["-o", "addopts="], "without addopts")


def hopeless_conftest(failure: Failure) -> Plan | None:
    """A conftest.py that wants what nobody has: some tests may do without it."""
    said = r"ImportError while loading conftest|Error importing plugin|in (_importconftest|_loadconftestmodules)\n"
    if failure.in_build or not re.search(said, failure.log):
        return None
    return with_options(failure, ["--noconftest"], "without conftest.py")


def bad_configuration(failure: Failure) -> Plan | None:
    """Settings that this pytest does not take."""
    said = r"error:.*(?:config|ini|option)|UsageError|Unknown config option|while parsing.*ini|PytestConfigWarning"
    if failure.in_build or "pytest does not start" not in failure.trial.cause or not re.search(said, failure.log):
        return None
    return with_options(failure, ["-o", "addopts="], "without addopts") or with_options(
        failure, ["-c", "/dev/null"], "without configuration"
    )


def django_settings(failure: Failure) -> Plan | None:
    """Django that was not told its settings."""
    said = r"ImproperlyConfigured|AppRegistryNotReady|DJANGO_SETTINGS_MODULE|django_db|Database access not allowed"
    if failure.in_build or not re.search(said, failure.log):
        return None
    plan = failure.plan.with_requirement("pytest-django", "pytest-django") or failure.plan
    if "DJANGO_SETTINGS_MODULE" not in plan.variables and not django.is_configured(failure.tree):
        module = django.settings_module(failure.tree)
        if not module:
            module = django.MODULE
            plan = plan.model_copy(update={"prepare": [*plan.prepare, django.install_command(failure.tree)]})
        variables = {**plan.variables, "DJANGO_SETTINGS_MODULE": module}
        return plan.changed(f"Django's settings in {module}", variables=variables)
    return plan if plan != failure.plan else None


def settled_twice(failure: Failure) -> Plan | None:
    """Tests that configure Django on their own, where it was told its settings before them, or others' settings."""
    said = "Settings already configured|pytest-django could not find a Django project"
    if failure.in_build or not re.search(said, failure.log):
        return None
    plan = failure.plan.without_requirement("pytest-django", "") or failure.plan
    variables = {name: value for name, value in plan.variables.items() if name != "DJANGO_SETTINGS_MODULE"}
    if plan == failure.plan and variables == plan.variables:
        return None
    return failure.plan.changed("Django is left to the tests", requirements=plan.requirements, variables=variables)


def endless(failure: Failure) -> Plan | None:
    """A test that waits for what never comes: it is ended, the others go on."""
    is_endless = failure.trial.stalled or "takes longer than" in failure.trial.cause
    if failure.in_build or not is_endless or failure.trial.stage == "collect":
        return None
    found = failure.plan.with_requirement("pytest-timeout", "a time limit per test")
    if found is None or not failure.plan.may_limit_tests:
        return None
    return found.model_copy(update={"options": [*found.options, "--timeout=10"]})


def leaving_files(failure: Failure) -> Plan | None:
    """Files that end Python when they are imported, and pytest with it: they are scripts, and left out."""
    plan, said = failure.plan, r"^INTERNALERROR>\s+File \"/testbed/([^\"\n]+\.py)\", line \d+, in <module>"
    if failure.in_build or not re.search(r"^INTERNALERROR> SystemExit\b", failure.log, re.MULTILINE):
        return None
    files = [path for path in matches(said, failure.log)[:1] if f"--ignore={path}" not in plan.options]
    left = plan.without_files(f"without {', '.join(files)}", files)
    return left if files and left.targets else None


def out_of_reach(failure: Failure) -> Plan | None:
    """Test files most of whose tests want a network, a service or an account: left out, if that leaves half.

    Their other tests are not excused, and fail in the wake of those.
    """
    trial, plan = failure.trial, failure.plan
    if trial.stage != "tests" or not trial.outside:
        return None
    files = [path for path in trial.outside if f"--ignore={path}" not in plan.options]
    left = [test for test in trial.passing if test.partition("::")[0] not in trial.outside]
    total = len(trial.passing) + len(trial.failing)
    kept = [test for test in [*trial.passing, *trial.failing] if test.partition("::")[0] not in trial.outside]
    if not files or not left or len(kept) < total / 2:
        return None
    found = plan.without_files(f"without {', '.join(files)}", files)
    return found if found.targets else None


_APART = re.compile(r"^(.*/)?(integration|e2e|end_to_end|system|functional|live|acceptance|perf\w*)(_?tests?)?(?=/)")
"""Directories in which a project keeps apart what its unit tests do without."""


def tests_apart(failure: Failure) -> Plan | None:
    """Tests of whole systems, where it is mostly these that fail: left out, if that leaves half."""
    trial, plan = failure.trial, failure.plan
    failing = [test.partition("::")[0] for test in trial.failing] if trial.stage == "tests" else trial.uncollected
    ran = [test.partition("::")[0] for test in trial.passing] + failing if trial.stage == "tests" else []
    total = len(ran) or trial.files
    apart = {match[0] for file in failing if (match := _APART.match(file))}
    blamed = sum(_APART.match(file) is not None for file in failing)
    left_out = sum(_APART.match(file) is not None for file in ran or sorted(failure.tree.paths) if is_test_file(file))
    ignored = [f"--ignore={folder}" for folder in sorted(apart) if f"--ignore={folder}" not in plan.options]
    if failure.in_build or not ignored or blamed <= len(failing) / 2 or left_out > total / 2:
        return None
    targets = [target for target in plan.targets if target not in apart]
    if not targets:
        return None
    return plan.changed(f"without {', '.join(sorted(apart))}", options=[*plan.options, *ignored], targets=targets)

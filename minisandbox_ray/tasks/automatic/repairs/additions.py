"""What an environment lacks, and gets: projects of the index, packages of Debian's, servers, variables, files.

What pytest, or a program that is not there, tells about it is looked up in the tables.
"""

import re
import sys

from packaging.utils import canonicalize_name

from minisandbox_ray.tasks.automatic.facts import Facts
from minisandbox_ray.tasks.automatic.imports import NAMESPACES, OF_TESTS, PROJECTS, project_of
from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.repairs.failure import Failure, matches, with_all, with_options
from minisandbox_ray.tasks.automatic.requirements import name_of, parse
from minisandbox_ray.tasks.automatic.tables import (
    FIXTURES,
    LIBRARIES,
    LOOK_ALIKES,
    MARKS,
    OPTIONS,
    PROGRAMS,
    SYSTEM_PROGRAMS,
)
from minisandbox_ray.tasks.automatic.tree import SourceTree, is_below_tests


def missing_program(failure: Failure) -> Plan | None:
    """A program that tests or the build call: of a project on the index, or of Debian's."""
    said = (
        r"No such file or directory: '(?:/usr(?:/local)?/s?bin/|/s?bin/)?([\w.+-]+)'"
        r"|(?:sh|bash): (?:line )?\d*:? ?([\w.+-]+): (?:command )?not found"
        r"|(?:[Ee]xecutable|[Pp]rogram|[Cc]ommand|[Bb]inary):? [`'\"]?([\w.+-]+)[`'\"]?"
        r" (?:is |was |could )?not (?:be )?(?:found|installed)"
        r"|\b([\w.+-]+) is not installed or"
    )
    found = re.findall(said, failure.log)
    if re.search(r"JAVA_GATEWAY_EXITED|JAVA_HOME is not set|No JVM shared library", failure.log):
        found.append(("java",))
    plan, why = failure.plan, list[str]()
    names = {name_of(text) for text in (plan.build_requirements if failure.in_build else plan.requirements)}
    for words in dict.fromkeys(found):
        program = next(filter(None, words))
        project, package = PROGRAMS.get(program, ""), SYSTEM_PROGRAMS.get(program, "")
        if project and name_of(project) not in names:
            names.add(name_of(project))
            place = "build_requirements" if failure.in_build else "requirements"
            plan, why = plan.model_copy(update={place: [*getattr(plan, place), project]}), [*why, project]
        elif package and package not in plan.system_packages:
            plan = plan.model_copy(update={"system_packages": [*plan.system_packages, package]})
            why.append(package)
    return plan.changed(", ".join(why)) if why else None


def missing_library(failure: Failure) -> Plan | None:
    """A shared library of Debian's."""
    plan = failure.plan
    said = (
        r"(lib[A-Za-z_]\w*?)(?:-[\d.]+)?\.so[\w.]*: cannot open|[Ff]ailed to find (libmagic)|no library called \"(\w+)"
    )
    for words in dict.fromkeys(re.findall(said, failure.log)):
        name = next(filter(None, words))
        package = LIBRARIES.get(name if name.startswith("lib") else f"lib{name}", "")
        if package and package not in plan.system_packages:
            return plan.changed(package, system_packages=[*plan.system_packages, package])
    return None


def look_alike(failure: Failure) -> Plan | None:
    """A project whose module is called like that of the one which was meant."""
    for said, wrong, right in LOOK_ALIKES:
        if not failure.in_build and re.search(said, failure.log):
            found = failure.plan.without_requirement(wrong, f"{right} instead of {wrong}")
            if found is not None:
                return found.model_copy(update={"requirements": [*found.requirements, right]})
    return None


def missing_module(failure: Failure) -> Plan | None:
    """A module that tests, or the code itself, import and nobody asked for; or one of the tree's that is not found."""
    if failure.in_build:
        return None
    plan, why = failure.plan, list[str]()
    modules = matches(r"(?:ModuleNotFoundError|ImportError).{0,40}?No module named '?([\w.]+)'?", failure.log)
    modules += matches(r"Error importing plugin \"([\w.]+)\"", failure.log)
    projects = [
        name for name in matches(r"pip3? install [`'\"]?([\w-]+(?:\[[\w,-]+\])?)", failure.log)[:3] if parse(name)
    ]
    for shared in {name.partition(".")[0] for name in NAMESPACES} & set(modules):
        # Of a package that many projects share, only the line above the error tells the part.
        modules += matches(rf"^ +(?:from|import) ({shared}\.[\w.]+)", failure.log)
    if failure.trial.cause.startswith("no test "):
        modules += matches(r"^SKIPPED .*could not import '([\w.]+)'", failure.log)
        modules += matches(r"^SKIPPED .*No module named '?([\w.]+)'?", failure.log)
    settings = plan.variables.get("DJANGO_SETTINGS_MODULE", "").partition(".")[0]  # the tree's own, wherever it is
    for module in modules:
        folder, top = _folder_of(failure.tree, module), module.partition(".")[0]
        # A package may have a module yaml.py of its own, and want PyYAML.
        is_inner = f"{folder}/__init__.py" in failure.tree.paths and name_of(project_of(module)) not in plan.unavailable
        is_known = top in OF_TESTS or top in PROJECTS or is_inner
        is_own = folder is not None and (is_below_tests(f"{folder}/") or not is_known)
        if is_own and folder not in {"", *plan.paths}:
            plan, why = plan.model_copy(update={"paths": [*plan.paths, folder]}), [*why, f"{folder} on the path"]
        elif folder != "" and top != settings and (project := project_of(module)):
            projects.append(_as_declared(failure.facts, project))
    names = {name_of(text) for text in plan.requirements} | {canonicalize_name(failure.facts.name or "-"), "pytest"}
    names |= set(plan.unavailable)
    for project in projects:
        if name_of(project) not in names:
            names.add(name_of(project))
            plan, why = plan.model_copy(update={"requirements": [*plan.requirements, project]}), [*why, project]
    return plan.changed(", ".join(why)) if why else None


def missing_init(failure: Failure) -> Plan | None:
    """Modules that tests import from a package of theirs that has no __init__.py: it is given one."""
    plan, why = failure.plan, list[str]()
    for name, package in matches(r"cannot import name '(\w+)' from '([\w.]+)' \(unknown location\)", failure.log):
        path = f"{package.replace('.', '/')}/__init__.py"
        command = f"echo 'import {name}' >> {path}"
        is_lacking = path not in failure.tree.paths and failure.tree.has_folder(path.rpartition("/")[0])
        if is_lacking and name in sys.stdlib_module_names and command not in plan.prepare:
            plan, why = plan.model_copy(update={"prepare": [*plan.prepare, command]}), [*why, f"{name} in {path}"]
    # Another package of that name, Python's own "test" or one that a project brought along, hides a folder.
    hidden = [
        module.partition(".")[0]
        for module in matches(r"No module named '(tests?\.[\w.]+)'", failure.log)
        if _folder_of(failure.tree, module) == "" or failure.tree.has_folder(module.replace(".", "/"))
    ]
    importing = [file.rpartition("/")[0] for file in _of_no_package(failure.log) if file in failure.tree.paths]
    for folder in filter(None, [*hidden, *importing]):
        path, command = f"{folder}/__init__.py", f"touch {folder}/__init__.py"
        if path not in failure.tree.paths and command not in plan.prepare:
            plan, why = plan.model_copy(update={"prepare": [*plan.prepare, command]}), [*why, path]
    return None if failure.in_build or not why else plan.changed(", ".join(why))


def _of_no_package(log: str) -> list[str]:
    """Files that import relatively, as only those of a package may."""
    said = r"^(\S+\.py):\d+: in <module>\n[^\n]*\nE\s+ImportError: attempted relative import with no known parent"
    return matches(said, log)


def _folder_of(tree: SourceTree, module: str) -> str | None:
    """The directory from which a module of the tree can be imported, empty for the root; None if it has none."""
    path = module.replace(".", "/")
    endings = (f"{path}.py", f"{path}/__init__.py")
    places = {
        each[: -len(ending)].rstrip("/")
        for each in tree.paths
        for ending in endings
        if each == ending or each.endswith(f"/{ending}")
    }
    return min(places, key=lambda place: (place.count("/"), place), default=None)


def _as_declared(facts: Facts, project: str) -> str:
    """A project as the source tree's own lists have it, with its pins."""
    lists = [*facts.test_requirements, *facts.dependencies]
    declared = next((text for text in lists if name_of(text) == name_of(project)), project)
    return declared.partition(";")[0].strip()


def missing_fixture(failure: Failure) -> Plan | None:
    """A fixture of a plugin that is not installed."""
    return with_all(failure, FIXTURES, matches(r"fixture '(\w+)' not found", failure.log))


def unknown_option(failure: Failure) -> Plan | None:
    """An option of a plugin that is not installed; one of a linter, or of nobody known, is switched off."""
    match = re.search(r"unrecognized arguments?: (.*)", failure.log)
    if match is None:
        return None
    words = [word.partition("=")[0] for word in match[1].split() if word.startswith("-")]
    plugins = {word: _option_s(word) for word in words}
    if words and all(plugins.values()):
        found = with_all(failure, plugins, words)
        if found:
            return found
    return with_options(failure, ["-o", "addopts="], "without addopts")


def _option_s(word: str) -> str:
    fits = [option for option in OPTIONS if word == option or (word.startswith(option) and option.startswith("--"))]
    if not fits and re.match(r"-n\d*$", word):
        fits = ["-n"]
    return OPTIONS[max(fits, key=len)] if fits else ""


def unknown_mark(failure: Failure) -> Plan | None:
    """Marks of a plugin that is not installed, where tests fail."""
    return None if failure.in_build else with_all(failure, MARKS, matches(r"Unknown pytest\.mark\.(\w+)", failure.log))


def missing_plugins(failure: Failure) -> Plan | None:
    """pytest's own list of plugins that the configuration requires."""
    match = re.search(r"Missing required plugins: (.+)", failure.log)
    wanted = [word for word in re.split(r"[,\s]+", match[1]) if parse(word)] if match else []
    return with_all(failure, {word: word for word in wanted}, wanted)


def unset_variable(failure: Failure) -> Plan | None:
    """Variables that tests read whether they are set or not: they are set to something."""
    if failure.in_build or "environ" not in failure.log:
        return None
    names = matches(r"^E\s+KeyError: '([A-Z][A-Z0-9]*_[A-Z0-9_]+)'", failure.log)
    fresh = {name: "testbed" for name in names if name not in failure.plan.variables and not name.startswith("DBUS_")}
    if not fresh:
        return None
    return failure.plan.changed(f"{', '.join(fresh)} set", variables={**failure.plan.variables, **fresh})


def git_identity(failure: Failure) -> Plan | None:
    """Commits that tests make, and git does not know whose they are."""
    if failure.in_build or not re.search(r"[Pp]lease tell me who you are|empty ident name", failure.log):
        return None
    names = [f"GIT_{role}_{part}" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")]
    fresh = {name: "testbed@localhost" if name.endswith("EMAIL") else "testbed" for name in names}
    if fresh.keys() <= failure.plan.variables.keys():
        return None
    return failure.plan.changed("an identity for git", variables={**failure.plan.variables, **fresh})


def missed_server(failure: Failure) -> Plan | None:
    """A server that tests want on their own machine: it runs beside them."""
    plan = failure.plan
    more = [name for name in failure.trial.missed if name not in plan.servers]
    return plan.changed(f"with {', '.join(more)}", servers=[*plan.servers, *more]) if more else None


def no_display(failure: Failure) -> Plan | None:
    """A screen that tests draw on: Qt can do without one, for others there is one that nobody sees."""
    said = (
        r"could(n't| not) connect to display|no display name|(cannot|can't) open display|DisplayNameError|init server"
    )
    said += r"|Bad display name|qt\.qpa\.(xcb|plugin)|Could not load the Qt platform plugin"
    if failure.in_build or not re.search(said, failure.log):
        return None
    plan, name = failure.plan, "QT_QPA_PLATFORM"
    if re.search(r"\bqt\.qpa|the Qt platform", failure.log) and name not in plan.variables:
        return plan.changed("Qt without a screen", variables={**plan.variables, name: "offscreen"})
    found = plan.with_requirement("pytest-xvfb", "a screen that nobody sees")
    return found and found.model_copy(update={"system_packages": [*plan.system_packages, "xvfb"]})


def qt_binding(failure: Failure) -> Plan | None:
    """One of the projects that bring Qt, which who uses Qt leaves to others to choose."""
    said = r"No Qt bindings could be found|requires either PySide\d|QtBindingsNotFoundError|Unable to find .*Qt binding"
    if failure.in_build or not re.search(said, failure.log):
        return None
    found = failure.plan.with_requirement("PyQt5", "PyQt5")
    return found and found.model_copy(update={"variables": {**found.variables, "QT_QPA_PLATFORM": "offscreen"}})

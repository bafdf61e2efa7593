"""Known ways to fail, and what to change: each looks at what a trial printed, and makes the next plan of it.

A repair proposes; whether it helped, the next trial tells. Repairs that would not change anything propose nothing, so
that a search over them ends.
"""

import posixpath
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from packaging.utils import canonicalize_name

from minisandbox_ray.tasks.automatic import directory, django, nose
from minisandbox_ray.tasks.automatic.facts import Facts, evaluates
from minisandbox_ray.tasks.automatic.imports import NAMESPACES, OF_TESTS, PROJECTS, project_of
from minisandbox_ray.tasks.automatic.plans import Plan, build_tools
from minisandbox_ray.tasks.automatic.requirements import name_of, parse
from minisandbox_ray.tasks.automatic.tables import (
    FIXTURES,
    HEADERS,
    LIBRARIES,
    LOOK_ALIKES,
    MARKS,
    OPTIONS,
    PROGRAMS,
    SYSTEM_PROGRAMS,
)
from minisandbox_ray.tasks.automatic.tree import SourceTree, is_below_tests, is_package, is_test_file
from minisandbox_ray.tasks.automatic.trial import Trial


@dataclass(frozen=True)
class Failure:
    """What a repair looks at."""

    trial: Trial
    facts: Facts
    tree: SourceTree

    @property
    def plan(self) -> Plan:
        return self.trial.plan

    @property
    def log(self) -> str:
        return self.trial.log

    @property
    def in_build(self) -> bool:
        return self.trial.stage == "build"

    @property
    def minor(self) -> int:
        """N of Python 3.N."""
        return int(self.plan.python.split(".")[1])


Repair = Callable[[Failure], Plan | None]


def missing_system_package(log: str) -> tuple[str, list[str]]:
    """The header or program that a build lacks, and Debian's packages that have it; empty if that is not what it is."""
    header = re.search(r"fatal error: ([\w./+-]+\.h(?:pp)?): No such file", log)
    program = re.search(r"(pg_config|mysql_config|krb5-config|xslt-config|curl-config|gdal-config)\b.*not found", log)
    program = program or re.search(r"(Rust compiler|swig|gfortran|dbus-1|xmlsec)\b.{0,80}not (?:be )?found", log)
    program = program or re.search(r"(?:can't|cannot|unable to) find '?(Rust compiler|swig|cmake)", log)
    found = header or program or re.search(r"Specify (MYSQLCLIENT)_CFLAGS", log)
    return (found[1], HEADERS.get(found[1], "").split()) if found else ("", [])


def _matches(pattern: str, log: str) -> list[Any]:
    """What the groups of it are, each once: texts, or tuples where there are several."""
    return list(dict.fromkeys(re.findall(pattern, log, re.MULTILINE)))


# What a build says


def no_matching_version(failure: Failure) -> Plan | None:
    """A requirement that the index does not have (at the date): loosened, then left out; else a later date."""
    plan = failure.plan
    for text in _matches(r"(?:No matching distribution found for|satisfies the requirement) ([^\s(]+)", failure.log):
        name = name_of(text)
        for wanted in plan.requirements:
            requirement = parse(wanted)
            if requirement and canonicalize_name(requirement.name) == name:
                has_none = re.search(rf"{re.escape(text)}[^\n]*\(from versions: none\)", failure.log)
                if requirement.specifier and name != "pytest" and not has_none:
                    return plan.with_requirement(requirement.name, f"{name} of any version")
                if name != "pytest" and (less := plan.without_requirement(name, f"without {name}")):
                    return less.model_copy(update={"unavailable": [*less.unavailable, name]})
        if plan.exclude_newer:
            # A dependency that came out after what depends on it: a date that is wrong, or a yanked version.
            return plan.changed("versions of any date", exclude_newer="")
    return None


def conflicting_requirements(failure: Failure) -> Plan | None:
    """The resolver finds no versions that fit all: pins of the tests' requirements go first, then the unneeded ones."""
    said = r"ResolutionImpossible|conflicting dependencies|resolution-too-deep|ResolutionTooDeep|ended with status 124"
    if not failure.in_build or not re.search(said, failure.log):
        return None
    plan = failure.plan
    bare = [_bare(text) for text in plan.requirements]
    if bare != plan.requirements:
        return plan.changed("no pins", requirements=bare)
    essential = [text for text in failure.facts.essential_requirements if evaluates(text, plan.python)]
    essential = list(dict.fromkeys([*map(_bare, essential), "pytest"]))
    if len(essential) < len(plan.requirements):
        return plan.changed("only what tests import", requirements=essential)
    return None


def _bare(text: str) -> str:
    requirement = parse(text)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement and requirement.extras else ""
    return f"{requirement.name}{extras}" if requirement else text


def missing_build_module(failure: Failure) -> Plan | None:
    """A module that setup.py or the build backend imports without having asked for it."""
    if not failure.in_build:
        return None
    plan, facts = failure.plan, failure.facts
    for module in reversed(_matches(r"No module named '?([\w.]+)'?", failure.log)):
        top = module.split(".")[0]
        if module in {"distutils", "setuptools", "pkg_resources"} and plan.strategy != "no-isolation":
            return _without_isolation(
                failure, "setuptools<81" if failure.minor >= 12 else "setuptools<66", f"{module} for the build"
            )
        own = top in facts.local_modules and canonicalize_name(facts.name) != canonicalize_name(top)
        project = "" if own else project_of(module)
        wanted = [project] if project else []
        if canonicalize_name(top) == canonicalize_name(facts.name):
            continue
        if not wanted or plan.strategy in {"metadata", "wheel", "path"}:
            continue
        base = plan.build_requirements or build_tools(facts, (3, failure.minor))
        # setup.py may import the project itself, and so whatever that needs.
        if name_of(wanted[0]) in {name_of(text) for text in facts.dependencies}:
            wanted += [text for text in facts.dependencies if evaluates(text, plan.python)]
        known = {name_of(text) for text in base}
        more = [text.partition(";")[0].strip() for text in wanted if name_of(text) not in known]
        if more:
            return plan.changed(f"{module} for the build", strategy="no-isolation", build_requirements=[*base, *more])
    return None


def old_setuptools(failure: Failure) -> Plan | None:
    """setup.py asks setuptools for what it no longer does."""
    log = failure.log
    if not failure.in_build:
        return None
    if re.search(
        r"use_2to3 is invalid|attribute 'Feature'|No module named '?setuptools\.\w+|import name '?Feature", log
    ):
        return _without_isolation(
            failure, "setuptools<58" if failure.minor < 12 else "setuptools<69", "setuptools before 58"
        )
    broken = (
        r"error in .* setup command|InvalidVersion|InvalidRequirement|must be lowercase|dash-separated|InvalidConfig"
    )
    if re.search(broken + r"|Invalid dash|invalid command 'bdist_wheel'|install_layout|NoneType.*_distutils", log):
        return _without_isolation(
            failure, "setuptools<66" if failure.minor < 12 else "setuptools<78", "older setuptools"
        )
    return None


def young_setuptools(failure: Failure) -> Plan | None:
    """A setuptools of the date that does not run on this interpreter, or does not know this pyproject.toml."""
    said = (
        r"ImpImporter|configuration error: `project|license.*must be|build_backend.*has no attribute|`project\.license`"
    )
    if failure.in_build and failure.plan.exclude_newer and re.search(said, failure.log):
        return failure.plan.changed("build tools of any date", exclude_newer="")
    return None


def _without_isolation(failure: Failure, setuptools: str, why: str) -> Plan | None:
    plan = failure.plan
    if plan.strategy in {"metadata", "wheel", "path"}:
        return None
    others = [text for text in plan.build_requirements if name_of(text) not in {"setuptools", "wheel"}]
    tools = [*build_tools(failure.facts, (3, failure.minor), setuptools)]
    wanted = list(dict.fromkeys([*tools, *others]))
    if plan.strategy == "no-isolation" and wanted == plan.build_requirements:
        return None
    return plan.changed(why, strategy="no-isolation", build_requirements=wanted)


def no_editable_hook(failure: Failure) -> Plan | None:
    """A build backend of the date that has no editable installs."""
    said = r"(missing|does not have|has no) (the )?.{0,5}build_editable|editable mode (currently )?requires|PEP 660"
    if failure.in_build and failure.plan.strategy == "editable" and re.search(said, failure.log):
        return failure.plan.changed("no editable installs", strategy="metadata")
    return None


def missing_file(failure: Failure) -> Plan | None:
    """A file that setup.py reads and the source distribution forgot: an empty one will do."""
    if not failure.in_build:
        return None
    said = r"(?:No such file or directory|does not exist|FileNotFoundError)[^'\n]*:? ?'([^'\n]+)'"
    for named in reversed(_matches(said, failure.log)):
        path = posixpath.normpath(re.sub(r"^(/build/tmp/[^/]+/[^/]+|/testbed)/", "", named))
        is_text = re.fullmatch(
            r"[\w-][\w.-]*(/[\w-][\w.-]*){0,4}\.(txt|md|rst|in|cfg|toml|ini|json|yml)|[A-Z]{4,}", path
        )
        command = f"mkdir -p ./{posixpath.dirname(path)} && touch {path}"
        if is_text and path not in failure.tree.paths and command not in failure.plan.prepare:
            return failure.plan.changed(f"an empty {path}", prepare=[*failure.plan.prepare, command])
    return None


def no_version(failure: Failure) -> Plan | None:
    """A build tool that asks git for the version, and was not known to."""
    version = failure.facts.version or "0.1.0"
    for said, name in (
        (
            r"setuptools[-_]scm was unable to detect version|LookupError: .*version|vcs-versioning",
            "SETUPTOOLS_SCM_PRETEND_VERSION",
        ),
        (r"Versioning for this project requires either an sdist", "PBR_VERSION"),
    ):
        if failure.in_build and re.search(said, failure.log) and name not in failure.plan.variables:
            variables = {**failure.plan.variables, name: version}
            return failure.plan.changed("the version is told", variables=variables)
    return None


def binary_instead(failure: Failure) -> Plan | None:
    """Database drivers that want headers have a sibling with a wheel."""
    if failure.in_build and re.search(r"pg_config|libpq-fe", failure.log):
        changed = [re.sub(r"^psycopg2(?!-binary)", "psycopg2-binary", text) for text in failure.plan.requirements]
        if changed != failure.plan.requirements:
            return failure.plan.changed("psycopg2-binary", requirements=changed)
    return None


def system_package(failure: Failure) -> Plan | None:
    """A header or a program of Debian's."""
    lacking, packages = missing_system_package(failure.log)
    more = [name for name in packages if name not in failure.plan.system_packages]
    if not failure.in_build or not more:
        return None
    if lacking == "Rust compiler" and _is_release(failure) and not failure.tree.has_folder("vendor"):
        return None  # its crates would have to come from elsewhere: see `own_wheel`
    return failure.plan.changed(", ".join(more), system_packages=[*failure.plan.system_packages, *more])


def _is_release(failure: Failure) -> bool:
    """Whether the source is a source distribution."""
    return bool("PKG-INFO" in failure.tree.paths and failure.facts.name and failure.facts.version)


def own_wheel(failure: Failure) -> Plan | None:
    """Sources in another language that can't be compiled here: a source distribution's release may have a wheel.

    So may one whose build wants to fetch pages and scripts from a registry of JavaScript.
    """
    said = r"cargo|rustc|Rust compiler|maturin|[Cc][Mm]ake|meson|fatal error:|error: linker"
    said += r"|command '[^']*(gcc|g\+\+|cc|swig|go)' failed"
    said += r"|\b(npm|jlpm|yarn|pnpm)\b.{0,60}not (found|installed)|No such file or directory: '(npm|node|yarn|jlpm)'"
    if not failure.in_build or not _is_release(failure) or culprit(failure.log):
        return None
    if not failure.facts.has_compiled and not re.search(said, failure.log):
        return None
    if failure.plan.strategy in {"wheel", "path"}:
        return None
    return failure.plan.changed("compiled parts of its wheel", strategy="wheel", build_requirements=[])


def culprit(log: str) -> str:
    """The requirement that pip was about to build when that failed; empty if it is the source itself."""
    before = re.split(
        r"(?:requirements to build wheel|[Pp]reparing metadata.*|build dependencies): finished with status 'error'", log
    )
    steps = re.findall(r"^(Collecting|Obtaining|Processing) ([\w.-]*)", before[0], re.MULTILINE)
    return steps[-1][1] if len(before) > 1 and steps and steps[-1][0] == "Collecting" else ""


def failing_requirement(failure: Failure) -> Plan | None:
    """A requirement of the tests that can't be built here: they may do without."""
    if not failure.in_build:
        return None
    named = _matches(
        r"(?:Failed building wheel for|Failed to build|Could not build wheels for) '?([\w.-]+)", failure.log
    )
    for name in reversed([*filter(None, [culprit(failure.log)]), *named]):
        if canonicalize_name(name) != "pytest" and (found := failure.plan.without_requirement(name, f"without {name}")):
            return found
    return None


# What pytest says


def missing_program(failure: Failure) -> Plan | None:
    """A program that tests or the build call: of a project on the index, or of Debian's."""
    said = r"No such file or directory: '([\w.+-]+)'|(?:sh|bash): (?:line )?\d*:? ?([\w.+-]+): (?:command )?not found"
    plan, why = failure.plan, list[str]()
    names = {name_of(text) for text in (plan.build_requirements if failure.in_build else plan.requirements)}
    for pair in dict.fromkeys(re.findall(said, failure.log)):
        program = pair[0] or pair[1]
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


def lost_parts(failure: Failure) -> Plan | None:
    """Compiled parts that a build leaves out where it lacks a compiler, and goes on: the release's wheel has them."""
    if failure.in_build or not _is_release(failure) or not failure.facts.has_compiled:
        return None
    if failure.plan.strategy in {"wheel", "path"}:
        return None
    names = _matches(r"^E\s+.*(?:cannot import name '\w+' from|No module named) '(\w+)", failure.log)
    own = {name for name in names if is_package(failure.tree, name) and not is_below_tests(f"{name}/")}
    if not own:
        return None
    return failure.plan.changed("compiled parts of its wheel", strategy="wheel", build_requirements=[])


def editable_loader(failure: Failure) -> Plan | None:
    """An editable install that wants to compile again whenever it is imported."""
    said = r"_editable_loader|_editable_impl|meson-python|editable.*rebuild|scikit_build_core.*editable"
    if failure.in_build or failure.plan.strategy not in {"editable", "no-isolation"}:
        return None
    if not re.search(said, failure.log):
        return None
    return failure.plan.changed("no editable install", strategy="metadata", build_requirements=[])


def missing_module(failure: Failure) -> Plan | None:
    """A module that tests, or the code itself, import and nobody asked for; or one of the tree's that is not found."""
    if failure.in_build:
        return None
    plan, why = failure.plan, list[str]()
    modules = _matches(r"(?:ModuleNotFoundError|ImportError).{0,40}?No module named '?([\w.]+)'?", failure.log)
    modules += _matches(r"Error importing plugin \"([\w.]+)\"", failure.log)
    projects = [
        name for name in _matches(r"pip3? install [`'\"]?([\w-]+(?:\[[\w,-]+\])?)", failure.log)[:3] if parse(name)
    ]
    for shared in {name.partition(".")[0] for name in NAMESPACES} & set(modules):
        # Of a package that many projects share, only the line above the error tells the part.
        modules += _matches(rf"^ +(?:from|import) ({shared}\.[\w.]+)", failure.log)
    if failure.trial.cause.startswith("no test "):
        modules += _matches(r"^SKIPPED .*could not import '([\w.]+)'", failure.log)
        modules += _matches(r"^SKIPPED .*No module named '?([\w.]+)'?", failure.log)
    for module in modules:
        folder, top = _folder_of(failure.tree, module), module.partition(".")[0]
        # A package may have a module yaml.py of its own, and want PyYAML.
        is_own = folder is not None and (is_below_tests(f"{folder}/") or (top not in OF_TESTS and top not in PROJECTS))
        if is_own and folder not in {"", *plan.paths}:
            plan, why = plan.model_copy(update={"paths": [*plan.paths, folder]}), [*why, f"{folder} on the path"]
        elif folder != "" and (project := project_of(module)):
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
    for name, package in _matches(r"cannot import name '(\w+)' from '([\w.]+)' \(unknown location\)", failure.log):
        path = f"{package.replace('.', '/')}/__init__.py"
        command = f"echo 'import {name}' >> {path}"
        is_lacking = path not in failure.tree.paths and failure.tree.has_folder(path.rpartition("/")[0])
        if is_lacking and name in sys.stdlib_module_names and command not in plan.prepare:
            plan, why = plan.model_copy(update={"prepare": [*plan.prepare, command]}), [*why, f"{name} in {path}"]
    for module in _matches(r"No module named '(tests?\.[\w.]+)'", failure.log):
        # Another package of that name, Python's own "test" or one that a project brought along, hides a folder.
        folder = module.partition(".")[0]
        path, command = f"{folder}/__init__.py", f"touch {folder}/__init__.py"
        is_there = _folder_of(failure.tree, module) == "" or failure.tree.has_folder(module.replace(".", "/"))
        if is_there and path not in failure.tree.paths and command not in plan.prepare:
            plan, why = plan.model_copy(update={"prepare": [*plan.prepare, command]}), [*why, path]
    for file in _of_no_package(failure.log):
        folder = file.rpartition("/")[0]
        path, command = f"{folder}/__init__.py", f"touch {folder}/__init__.py"
        if folder and file in failure.tree.paths and path not in failure.tree.paths and command not in plan.prepare:
            plan, why = plan.model_copy(update={"prepare": [*plan.prepare, command]}), [*why, path]
    return None if failure.in_build or not why else plan.changed(", ".join(why))


def _of_no_package(log: str) -> list[str]:
    """Files that import relatively, as only those of a package may."""
    said = r"^(\S+\.py):\d+: in <module>\n[^\n]*\nE\s+ImportError: attempted relative import with no known parent"
    return _matches(said, log)


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
    return _with_all(failure, FIXTURES, _matches(r"fixture '(\w+)' not found", failure.log))


def unknown_option(failure: Failure) -> Plan | None:
    """An option of a plugin that is not installed; one of a linter, or of nobody known, is switched off."""
    match = re.search(r"unrecognized arguments?: (.*)", failure.log)
    if match is None:
        return None
    words = [word.partition("=")[0] for word in match[1].split() if word.startswith("-")]
    plugins = {word: _option_s(word) for word in words}
    if words and all(plugins.values()):
        found = _with_all(failure, plugins, words)
        if found:
            return found
    return _options(failure, ["-o", "addopts="], "without addopts")


def _option_s(word: str) -> str:
    fits = [option for option in OPTIONS if word == option or (word.startswith(option) and option.startswith("--"))]
    if not fits and re.match(r"-n\d*$", word):
        fits = ["-n"]
    return OPTIONS[max(fits, key=len)] if fits else ""


def _with_all(failure: Failure, table: dict[str, str], names: Iterable[str]) -> Plan | None:
    plan, why = failure.plan, list[str]()
    for project in dict.fromkeys(table.get(name, "") for name in names):
        if project and name_of(project) not in {name_of(text) for text in plan.requirements}:
            plan, why = plan.model_copy(update={"requirements": [*plan.requirements, project]}), [*why, project]
    return plan.changed(", ".join(why)) if why else None


def _options(failure: Failure, options: list[str], why: str) -> Plan | None:
    present = " ".join(failure.plan.options)
    return (
        None if " ".join(options) in present else failure.plan.changed(why, options=[*failure.plan.options, *options])
    )


def unknown_mark(failure: Failure) -> Plan | None:
    """Marks of a plugin that is not installed, where tests fail."""
    return (
        None if failure.in_build else _with_all(failure, MARKS, _matches(r"Unknown pytest\.mark\.(\w+)", failure.log))
    )


def async_tests(failure: Failure) -> Plan | None:
    """Coroutines that nobody awaits."""
    said = (
        r"async def functions? (?:and async fixtures )?(?:are|is) not natively supported|coroutine .* was never awaited"
    )
    if failure.in_build or not re.search(said, failure.log):
        return None
    if found := _with_all(failure, {"": "pytest-asyncio"}, [""]):
        return found
    if failure.minor >= 7:
        return _options(failure, ["-o", "asyncio_mode=auto"], "asyncio for all")
    return None


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
    if failure.in_build or "pytest does not start" not in failure.trial.cause or not re.search(said, failure.log):
        return None
    plan = failure.plan
    bare = [_bare(text) if name_of(text).startswith("pytest") else text for text in plan.requirements]
    return plan.changed("pytest of any version", requirements=bare) if bare != plan.requirements else None


def newer_pytest(failure: Failure) -> Plan | None:
    """A pytest of the date that is too old for the tests or a plugin, or does not run on this interpreter."""
    said = r"requires pytest-\d|minversion|No module named '?pytest_|unexpected keyword argument '(?:tmp_path|autouse)'"
    said += r"|argument: 'type_comment|field \"\w+\" is required for|Missing required plugins|INTERNALERROR"
    if not failure.in_build and failure.plan.exclude_newer and re.search(said, failure.log):
        return failure.plan.changed("versions of any date", exclude_newer="")
    return None


def missing_plugins(failure: Failure) -> Plan | None:
    """pytest's own list of plugins that the configuration requires."""
    match = re.search(r"Missing required plugins: (.+)", failure.log)
    wanted = [word for word in re.split(r"[,\s]+", match[1]) if parse(word)] if match else []
    return _with_all(failure, {word: word for word in wanted}, wanted)


def conflicting_names(failure: Failure) -> Plan | None:
    """Test files of one name in different directories."""
    said = r"import file mismatch|ImportPathMismatchError|attempted relative import"
    if not failure.in_build and re.search(said, failure.log):
        return _options(failure, ["--import-mode=importlib"], "import mode importlib")
    return None


def on_trio(failure: Failure) -> Plan | None:
    """Tests that anyio's plugin runs once more on trio, where they were written for asyncio alone."""
    variant = re.compile(r"[\[-]trio[\]-]")
    failing = [test for test in failure.trial.failing if variant.search(test)]
    passing = [test for test in failure.trial.passing if variant.search(test)]
    if failure.trial.stage != "tests" or not failing or len(passing) > len(failing) / 4:
        return None
    return _options(failure, ["-k", "not trio"], "without trio")


def warnings_as_errors(failure: Failure) -> Plan | None:
    """Warnings of today that the configuration of then takes for errors."""
    if failure.in_build or len(re.findall(r"^E\s+[\w.]*Warning: ", failure.log, re.MULTILINE)) == 0:
        return None
    return _options(failure, ["-W", "default"], "warnings are no errors")


def doctests(failure: Failure) -> Plan | None:
    """Doctests of all modules, some of which can't be imported: they are left out, the tests remain."""
    option, uncollected = "--doctest-modules", failure.trial.uncollected
    modules = [path for path in uncollected if not is_test_file(path) and not is_below_tests(path)]
    if failure.in_build or option not in failure.facts.pytest_options or len(modules) <= len(uncollected) / 2:
        return None
    rest = failure.facts.pytest_options.replace(option, "")
    return _options(failure, ["-o", f"addopts={' '.join(rest.split())}"], "without doctests")


def unset_variable(failure: Failure) -> Plan | None:
    """Variables that tests read whether they are set or not: they are set to something."""
    if failure.in_build or "environ" not in failure.log:
        return None
    names = _matches(r"^E\s+KeyError: '([A-Z][A-Z0-9]*_[A-Z0-9_]+)'", failure.log)
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


def missing_plugin_of_the_tree(failure: Failure) -> Plan | None:
    """A plugin that addopts name, and that neither the tree nor an installed project has."""
    if failure.in_build or not re.search(r"Error importing plugin", failure.log):
        return None
    if not re.search(r"(^|\s)-p", failure.facts.pytest_options):
        return None
    return _options(failure, ["-o", "addopts="], "without addopts")


def hopeless_conftest(failure: Failure) -> Plan | None:
    """A conftest.py that wants what nobody has: some tests may do without it."""
    said = r"ImportError while loading conftest|Error importing plugin|in (_importconftest|_loadconftestmodules)\n"
    if failure.in_build or not re.search(said, failure.log):
        return None
    return _options(failure, ["--noconftest"], "without conftest.py")


def bad_configuration(failure: Failure) -> Plan | None:
    """Settings that this pytest does not take."""
    said = r"error:.*(?:config|ini|option)|UsageError|Unknown config option|while parsing.*ini|PytestConfigWarning"
    if failure.in_build or "pytest does not start" not in failure.trial.cause or not re.search(said, failure.log):
        return None
    return _options(failure, ["-o", "addopts="], "without addopts") or _options(
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
    """Tests that configure Django on their own, where it was told its settings before them."""
    if failure.in_build or "Settings already configured" not in failure.log:
        return None
    plan = failure.plan.without_requirement("pytest-django", "") or failure.plan
    variables = {name: value for name, value in plan.variables.items() if name != "DJANGO_SETTINGS_MODULE"}
    if plan == failure.plan and variables == plan.variables:
        return None
    return failure.plan.changed("Django is left to the tests", requirements=plan.requirements, variables=variables)


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


def endless(failure: Failure) -> Plan | None:
    """A test that waits for what never comes: it is ended, the others go on."""
    is_endless = failure.trial.stalled or "takes longer than" in failure.trial.cause
    if failure.in_build or not is_endless or failure.trial.stage == "collect":
        return None
    found = failure.plan.with_requirement("pytest-timeout", "a time limit per test")
    if found is None or not failure.plan.may_limit_tests:
        return None
    return found.model_copy(update={"options": [*found.options, "--timeout=10"]})


def out_of_reach(failure: Failure) -> Plan | None:
    """Test files most of whose tests want a network, a service or an account: left out, if that leaves half.

    Their other tests are not excused, and fail in the wake of those.
    """
    trial, plan = failure.trial, failure.plan
    if trial.stage != "tests" or not trial.outside:
        return None
    files = [path for path in trial.outside if f"--ignore={path}" not in plan.options]
    ignored = [f"--ignore={path}" for path in files]
    left = [test for test in trial.passing if test.partition("::")[0] not in trial.outside]
    total = len(trial.passing) + len(trial.failing)
    kept = [test for test in [*trial.passing, *trial.failing] if test.partition("::")[0] not in trial.outside]
    if not files or not left or len(kept) < total / 2:
        return None
    targets = [target for target in plan.targets if target not in files]
    if not targets:
        return None
    return plan.changed(f"without {', '.join(files)}", options=[*plan.options, *ignored], targets=targets)


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


REPAIRS: tuple[Repair, ...] = (
    no_matching_version,
    conflicting_requirements,
    no_version,
    missing_file,
    no_editable_hook,
    old_setuptools,
    young_setuptools,
    binary_instead,
    missing_program,
    system_package,
    missing_build_module,
    own_wheel,
    failing_requirement,
    missed_server,
    qt_binding,
    no_display,
    unknown_option,
    missing_plugins,
    missing_init,
    lost_parts,
    missing_module,
    missing_fixture,
    missing_library,
    look_alike,
    editable_loader,
    settled_twice,
    django_settings,
    nose_fixtures,
    old_pytest,
    conflicting_names,
    async_tests,
    unknown_mark,
    on_trio,
    other_asyncio,
    warnings_as_errors,
    unset_variable,
    git_identity,
    pinned_pytest,
    doctests,
    aged_dependency,
    newer_pytest,
    other_directory,
    missing_plugin_of_the_tree,
    hopeless_conftest,
    bad_configuration,
    endless,
    tests_apart,
    out_of_reach,
)
"""In the order in which they are asked: the surest first."""


ADDING: tuple[Repair, ...] = (
    missing_program,
    missed_server,
    missing_init,
    missing_module,
    missing_fixture,
    missing_library,
    unknown_mark,
    unset_variable,
    git_identity,
)
"""Those that only add something. An attempt may take minutes: what one log shows to be missing is added at once."""


def repaired(failure: Failure) -> Iterator[tuple[str, Plan]]:
    """The plans that repairs propose, with the repair's name."""
    for repair in REPAIRS:
        plan = repair(failure)
        if plan is not None:
            for other in [each for each in ADDING if repair in ADDING and each is not repair]:
                plan = other(replace(failure, trial=replace(failure.trial, plan=plan))) or plan
            yield repair.__name__, plan

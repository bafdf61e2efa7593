"""What a failed build says, and how the source is then built: with other tools, requirements that can be had, a wheel.

Here too is what tests show to be wrong with the way in which the source itself was installed.
"""

import posixpath
import re

from packaging.utils import canonicalize_name

from minisandbox_ray.tasks.automatic.facts import evaluates
from minisandbox_ray.tasks.automatic.imports import project_of
from minisandbox_ray.tasks.automatic.plans import Plan, build_tools
from minisandbox_ray.tasks.automatic.repairs.failure import Failure, matches, unpinned
from minisandbox_ray.tasks.automatic.requirements import name_of, parse
from minisandbox_ray.tasks.automatic.tables import HEADERS
from minisandbox_ray.tasks.automatic.tree import is_below_tests, is_package


def missing_system_package(log: str) -> tuple[str, list[str]]:
    """The header or program that a build lacks, and Debian's packages that have it; empty if that is not what it is."""
    header = re.search(r"fatal error: ([\w./+-]+\.h(?:pp)?): No such file", log)
    program = re.search(r"(pg_config|mysql_config|krb5-config|xslt-config|curl-config|gdal-config)\b.*not found", log)
    program = program or re.search(r"(Rust compiler|swig|gfortran|dbus-1|xmlsec)\b.{0,80}not (?:be )?found", log)
    program = program or re.search(r"(?:can't|cannot|unable to) find '?(Rust compiler|swig|cmake)", log)
    found = header or program or re.search(r"Specify (MYSQLCLIENT)_CFLAGS", log)
    return (found[1], HEADERS.get(found[1], "").split()) if found else ("", [])


def no_matching_version(failure: Failure) -> Plan | None:
    """A requirement that the index does not have (at the date): loosened, then left out; else a later date."""
    plan = failure.plan
    for text in matches(r"(?:No matching distribution found for|satisfies the requirement) ([^\s(]+)", failure.log):
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
    bare = [unpinned(text) for text in plan.requirements]
    if bare != plan.requirements:
        return plan.changed("no pins", requirements=bare)
    essential = [text for text in failure.facts.essential_requirements if evaluates(text, plan.python)]
    essential = list(dict.fromkeys([*map(unpinned, essential), "pytest"]))
    if len(essential) < len(plan.requirements):
        return plan.changed("only what tests import", requirements=essential)
    return None


def missing_build_module(failure: Failure) -> Plan | None:
    """A module that setup.py or the build backend imports without having asked for it."""
    if not failure.in_build:
        return None
    plan, facts = failure.plan, failure.facts
    for module in reversed(matches(r"No module named '?([\w.]+)'?", failure.log)):
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
    for named in reversed(matches(said, failure.log)):
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
    if not failure.in_build or culprit(failure.log):
        return None
    if not failure.facts.has_compiled and not re.search(said, failure.log):
        return None
    return _by_its_wheel(failure)


def _by_its_wheel(failure: Failure) -> Plan | None:
    if not _is_release(failure) or failure.plan.strategy in {"wheel", "path"}:
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
    named = matches(
        r"(?:Failed building wheel for|Failed to build|Could not build wheels for) '?([\w.-]+)", failure.log
    )
    for name in reversed([*filter(None, [culprit(failure.log)]), *named]):
        if canonicalize_name(name) != "pytest" and (found := failure.plan.without_requirement(name, f"without {name}")):
            return found
    return None


def lost_parts(failure: Failure) -> Plan | None:
    """Compiled parts that a build leaves out where it lacks a compiler, and goes on: the release's wheel has them."""
    if failure.in_build or not failure.facts.has_compiled:
        return None
    names = matches(r"^E\s+.*(?:cannot import name '\w+' from|No module named) '(\w+)", failure.log)
    own = {name for name in names if is_package(failure.tree, name) and not is_below_tests(f"{name}/")}
    return _by_its_wheel(failure) if own else None


def editable_loader(failure: Failure) -> Plan | None:
    """An editable install that wants to compile again whenever it is imported."""
    said = r"_editable_loader|_editable_impl|meson-python|editable.*rebuild|scikit_build_core.*editable"
    if failure.in_build or failure.plan.strategy not in {"editable", "no-isolation"}:
        return None
    if not re.search(said, failure.log):
        return None
    return failure.plan.changed("no editable install", strategy="metadata", build_requirements=[])

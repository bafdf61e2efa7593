"""All that the files of a source tree say about its environment, found by reading alone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.utils import canonicalize_name

from minisandbox_ray.tasks.automatic import django, pyproject, runners, setup_files
from minisandbox_ray.tasks.automatic.imports import OF_TESTS, imported_by_tests, local_modules, project_of
from minisandbox_ray.tasks.automatic.pyproject import Declared
from minisandbox_ray.tasks.automatic.requirements import merged, name_of, parse, read_file
from minisandbox_ray.tasks.automatic.tree import SourceTree, is_test_file

_TESTS = re.compile(
    r"(unit|all|integration|run|hatch)?[-_.]?"
    r"(tests?|testing|tests_require|test[-_](requires?|deps|all|base|suite)|pytest|unittests?)"
)
_LIKE_TESTS = re.compile(r"(\w+[-_.])*(tests?|testing|pytest|check)([-_.]\w+)*")
"""Names that are looked at where no other group or extra is for tests."""
_DEVELOPMENT = re.compile(r"dev|develop|development|dev[-_]dependencies|ci|all|full|complete")
_TEST_REQUIREMENTS = re.compile(r"(^|[/_.-])(tests?|testing|unittests?|pytest)([/_.-]|\d*\.)", re.IGNORECASE)
_OTHER_REQUIREMENTS = re.compile(
    r"(^|[/_.-])(docs?|lint|style|release|publish|typing|types|mypy|bench\w*|examples?|build|min\w*|lowest|oldest)[/_.-]"
)
_AS_DEVELOPMENT = re.compile(r"(^|[/_.-])(dev\w*|ci|all)[/_.-]", re.IGNORECASE)
_VERSION_VARIABLES = {
    "setuptools-scm": "SETUPTOOLS_SCM_PRETEND_VERSION",
    "setuptools-scm-git-archive": "SETUPTOOLS_SCM_PRETEND_VERSION",
    "hatch-vcs": "SETUPTOOLS_SCM_PRETEND_VERSION",
    "flit-scm": "SETUPTOOLS_SCM_PRETEND_VERSION",
    "vcs-versioning": "SETUPTOOLS_SCM_PRETEND_VERSION",
    "pbr": "PBR_VERSION",
    "pdm-backend": "PDM_BUILD_SCM_VERSION",
    "uv-dynamic-versioning": "UV_DYNAMIC_VERSIONING_BYPASS",
    "poetry-dynamic-versioning": "POETRY_DYNAMIC_VERSIONING_BYPASS",
}
"""Build tools that ask git for the version, and the variable that tells them instead: a build's git has one commit."""
_COMPILED = (".pyx", ".pxd", ".c", ".cc", ".cpp", ".cxx", ".f90", ".rs", ".f")
_SKIPPED = re.compile(r"(^|/)(docs?|examples?|benchmarks?|build|dist|node_modules|vendor|_vendor|third_party|\.[^/]+)/")
_GENERATED = re.compile(r"(^|/)(build/lib|node_modules|site-packages|\.[^/]+)/")
_MOST_TARGETS = 40
_MOST_TEXT = 4 << 20


@dataclass(frozen=True)
class Facts:
    """What was found."""

    name: str = ""
    version: str = ""
    requires_python: str = ""
    tested: list[str] = field(default_factory=list)
    """Python versions that the project says it is tested on or made for, "3.8", ascending."""
    backend: str = ""
    """PEP 517 build backend, empty for plain setup.py."""
    build_requires: list[str] = field(default_factory=list)
    dependencies: list[str] = field(default_factory=list)
    test_requirements: list[str] = field(default_factory=list)
    """What the project says its tests need, from all of its files, each project once; and what test files import."""
    essential_requirements: list[str] = field(default_factory=list)
    """The part of it that test files are seen to import, without anybody's pins."""
    has_compiled: bool = False
    """Whether sources of a compiled language belong to it."""
    has_setup_py: bool = False
    version_variables: list[str] = field(default_factory=list)
    """Variables that tell the build tools the version, which they would ask git for."""
    import_path: str = ""
    """Directory of the importable packages below the root: empty, "src" or another one of that kind."""
    targets: list[str] = field(default_factory=list)
    """Directories and files with tests."""
    runner: str = "pytest"
    """pytest, unittest, nose or django: what the tests were written for."""
    pytest_options: str = ""
    """addopts of the project's own configuration."""
    variables: dict[str, str] = field(default_factory=dict)
    """What tox sets for the tests."""
    settings_module: str = ""
    """Django's settings for the tests."""
    local_modules: frozenset[str] = frozenset()
    """Names of all modules in the tree."""

    def summary(self) -> dict[str, object]:
        """For logs and advisors: all but the long lists."""
        left_out = {"local_modules"}
        return {name: value for name, value in vars(self).items() if name not in left_out and value}


def detect(tree: SourceTree) -> Facts:
    """Read all of it. Never raises for what a file says: nonsense is left out."""
    project = pyproject.read(tree)
    cfg, py, metadata = (
        setup_files.read_setup_cfg(tree),
        setup_files.read_setup_py(tree),
        setup_files.read_metadata(tree),
    )
    sources = [project, cfg, py, metadata]
    name = _first(each.name for each in sources)
    all_test_files = sorted(path for path in tree.paths if is_test_file(path) and not _GENERATED.search(path))
    test_files = [path for path in all_test_files if not _SKIPPED.search(path)] or all_test_files
    settings = runners.read_pytest(tree, project)
    tox = runners.read_tox(tree, project)
    targets = _chosen(_targets(tree, settings.test_paths or tox.words, test_files), settings.options)
    build_requires = merged([each.build_requires for each in sources], keep_all=True)
    tools = {name_of(text) for text in build_requires} | (
        {"pbr"} if re.search(r"\bpbr\b", tree.text("setup.py")) else set()
    )
    if "use_scm_version" in tree.text("setup.py") or "setuptools_scm" in project.tools:
        tools.add("setuptools-scm")
    variables = tox.variables
    declared = _test_requirements(tree, sources, name, tox.lines.requirements, tox.lines.extras)
    imported = [
        project_of(module) for module in imported_by_tests(tree, _readable_tests(tree, targets)) if module in OF_TESTS
    ]
    dependencies = next((each.dependencies for each in sources if each.dependencies), [])
    needed = {name_of(text) for text in dependencies}
    if not dependencies and "requirements.txt" in tree.texts:  # which an install may not look at
        dependencies = read_file(tree, "requirements.txt").requirements
    essential = [each for each in imported if each and name_of(each) not in needed]
    runner, settings_module = _runner(tree, settings, declared, variables)
    plugins = _plugins(tree, settings, targets, runner)
    if any(name_of(text) == "pytest-vcr" for group in declared for text in group):
        plugins = [name for name in plugins if name != "pytest-recording"]  # they do not bear each other
    return Facts(
        name=name,
        version=_first(each.version for each in [metadata, project, cfg, py]),
        requires_python=_first(each.requires_python for each in sources),
        tested=runners.tested_pythons(tree, [line for each in sources for line in each.classifiers]),
        backend=project.backend,
        build_requires=build_requires,
        dependencies=merged([dependencies], keep_all=True),
        test_requirements=_without(_beside(merged([*declared, essential, plugins]), needed), name),
        essential_requirements=_without(merged([essential, plugins]), name),
        has_compiled=any(path.endswith(_COMPILED) and not _SKIPPED.search(path) for path in tree.paths),
        has_setup_py="setup.py" in tree.paths,
        version_variables=sorted({_VERSION_VARIABLES[tool] for tool in tools & _VERSION_VARIABLES.keys()}),
        import_path=_import_path(tree),
        targets=targets,
        runner=runner,
        pytest_options=settings.options,
        variables={
            key: value for key, value in variables.items() if not key.startswith(("PIP_", "COVERAGE", "PYTHONWARN"))
        },
        settings_module=settings_module,
        local_modules=frozenset(local_modules(tree)),
    )


def _import_path(tree: SourceTree) -> str:
    """Where sources in another language lie beside Python's, the latter are in a directory of their own."""
    for folder in ("src", "python", "lib", "py"):
        if any(re.match(rf"{folder}/[^/]+/__init__\.pyi?$", path) for path in tree.paths):
            return "" if folder != "src" and f"{folder}/__init__.py" in tree.paths else folder
    return ""


def _first(values: Iterable[str]) -> str:
    return next((value for value in values if value), "")


def _beside(requirements: list[str], needed: set[str]) -> list[str]:
    """Without what the project depends on anyway, in the versions that it says; an extra of it is more."""
    return [text for text in requirements if name_of(text) not in needed or "[" in text.partition(";")[0]]


def _without(requirements: list[str], name: str) -> list[str]:
    return [text for text in requirements if name_of(text) != canonicalize_name(name or "-")]


def _test_requirements(
    tree: SourceTree, sources: list[Declared], name: str, tox: list[str], tox_extras: list[str]
) -> list[list[str]]:
    """In order of trust: extras and groups for tests, tox, requirement files, nox; else what is for developing."""
    nox = runners.read_nox(tree)
    extras: dict[str, list[str]] = {}
    groups: dict[str, list[str]] = {}
    for each in sources:
        for extra, listed in each.extras.items():
            extras.setdefault(extra.lower(), listed)
        for group, listed in each.groups.items():
            groups.setdefault(group.lower(), listed)
    files = _requirement_files(tree)
    wanted = {extra.lower() for extra in [*tox_extras, *nox.extras]}

    def spread(texts: list[str], depth: int = 0) -> list[str]:
        """Requirements, with what the project's own extras among them stand for."""
        listed: list[str] = []
        for text in texts:
            requirement = parse(text)
            if requirement and canonicalize_name(requirement.name) == canonicalize_name(name or "-"):
                if depth < 5:
                    listed += [each for inner in requirement.extras for each in expand(inner.lower(), depth + 1)]
            else:
                listed.append(text)
        return listed

    def expand(extra: str, depth: int = 0) -> list[str]:
        return spread(extras.get(extra, []), depth)

    def gather(kind: re.Pattern[str], paths: re.Pattern[str]) -> list[list[str]]:
        found = [expand(extra) for extra in extras if kind.fullmatch(extra) or extra in wanted]
        found += [spread(listed) for group, listed in groups.items() if kind.fullmatch(group)]
        if kind is _TESTS:
            found.append(tox)
        for path in files:
            if paths.search(f"/{path}"):
                lines = read_file(tree, path)
                found += [lines.requirements, *(expand(extra.lower()) for extra in lines.extras)]
        return found

    found = [*gather(_TESTS, _TEST_REQUIREMENTS), nox.requirements]
    for kind in (_DEVELOPMENT, _LIKE_TESTS):
        if not any(found):
            found = gather(kind, _AS_DEVELOPMENT)
    return found


def _requirement_files(tree: SourceTree) -> list[str]:
    """What may list requirements for tests. Below a directory of tests, most such files are what the tests read."""
    of_tests = r"^tests?/(([\w-]+[-_])?requirements|requirements[-_](tests?|dev|ci))\.\w+$"
    return [
        path
        for path in sorted(tree.texts)
        if re.search(r"(req\w*|deps|pip)([-_./][\w./-]*)?\.(txt|in|pip)$", path)
        and "egg-info" not in path
        and not _OTHER_REQUIREMENTS.search(f"/{path}")
        and (not re.search(r"(^|/)tests?/", path) or re.search(of_tests, path))
    ]


def _targets(tree: SourceTree, configured: list[str], test_files: list[str]) -> list[str]:
    """The directories that pytest is configured to look into, else the outermost that hold test files."""
    chosen = [path.strip("/").removeprefix("./") for path in configured]
    present = [path for path in chosen if path in tree.paths or tree.has_folder(path)]
    if present and any(_below(path, present) for path in test_files):
        return present[:_MOST_TARGETS]
    if not test_files:
        named = [path for path in sorted(tree.texts) if re.search(r"(^|/)tests?(/[^/]+)?\.py$", path)]
        return [
            path
            for path in named
            if not path.endswith(("__init__.py", "conftest.py", "settings.py"))
            and re.search(r"^\s*(async )?def test|TestCase\b|^>>> ", tree.text(path), re.MULTILINE)
        ][:_MOST_TARGETS]
    roots: set[str] = set()
    for path in test_files:
        parts = path.split("/")
        index = next((i for i, part in enumerate(parts[:-1]) if re.fullmatch(r"tests?|.*_tests?|testing", part)), None)
        roots.add("/".join(parts[: index + 1]) if index is not None else path)
    outermost = {root for root in roots if not any(parent in roots for parent in _parents(root))}
    # Single files beside each other are their directory's, unless that is the root.
    single = [root for root in outermost if root.endswith(".py") and "/" in root]
    for root in single:
        folder = root.rpartition("/")[0]
        if sum(each.rpartition("/")[0] == folder for each in single) > 3:
            outermost = {each for each in outermost if each.rpartition("/")[0] != folder} | {folder}
    return sorted(outermost, key=lambda each: (each.count("/"), each))[:_MOST_TARGETS]


def _chosen(targets: list[str], options: str) -> list[str]:
    """Without those that the configuration ignores, and without Python 2's where Python 3 has its own beside."""
    ignored = set(re.findall(r"--ignore[= ]['\"]?(?:\./)?([\w./-]+?)/?['\"]?(?=\s|$)", options))
    newer = {each: re.sub(r"(?<![a-z])(py(thon)?)2(?=/|$)", r"\g<1>3", each) for each in targets}
    older = {each for each in targets if newer[each] != each and newer[each] in targets}
    return [each for each in targets if each not in ignored | older] or targets


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _readable_tests(tree: SourceTree, targets: list[str]) -> list[str]:
    return sorted(path for path in tree.texts if path.endswith(".py") and _below(path, targets)) + [
        path for path in ("conftest.py",) if path in tree.texts
    ]


def _runner(
    tree: SourceTree, settings: runners.PytestSettings, declared: list[list[str]], variables: dict[str, str]
) -> tuple[str, str]:
    """Who runs the tests, and Django's settings for them."""
    names = {name_of(text) for group in declared for text in group}
    tests = {path: text for path, text in tree.texts.items() if path.endswith(".py") and not _SKIPPED.search(path)}
    if any(re.search(r"^\s*(from|import) django\b", text, re.MULTILINE) for text in tests.values()):
        module = settings.settings_module or variables.get("DJANGO_SETTINGS_MODULE", "")
        if not django.is_configured(tree):
            module = module or django.settings_module(tree)
        return ("django" if module or "pytest-django" in names else "pytest"), module
    if "pytest" in names or settings.text or any("import pytest" in text for text in tests.values()):
        return "pytest", ""
    return ("nose" if "nose" in names else "unittest"), ""


def _plugins(tree: SourceTree, settings: runners.PytestSettings, targets: list[str], runner: str) -> list[str]:
    """pytest plugins that the configuration or the tests use without importing them."""
    text = "\n".join(tree.text(path) for path in _readable_tests(tree, targets))[:_MOST_TEXT]
    words = settings.text
    arguments = {name for given in re.findall(r"def \w+\(([^)]{0,500})\)", text) for name in re.findall(r"\w+", given)}
    used = {
        "pytest-cov": "--cov" in words,
        "pytest-asyncio": "asyncio_mode" in words or "mark.asyncio" in text,
        "pytest-django": runner == "django" or "mark.django_db" in text,
        "pytest-mock": "mocker" in arguments,
        "pytest-timeout": "--timeout" in words or re.search(r"^timeout\s*=", words, re.MULTILINE) is not None,
        "pytest-env": re.search(r"^env\s*=", words, re.MULTILINE) is not None,
        "pytest-trio": re.search(r"^trio_mode\s*=", words, re.MULTILINE) is not None,
        "pytest-aiohttp": "aiohttp_client" in arguments,
        "pytest-benchmark": "--benchmark" in words or "benchmark" in arguments,
        "pytest-socket": "--disable-socket" in words or "--allow-hosts" in words,
        "pytest-xdist": re.search(r"(^|\s)(-n|--dist|--numprocesses)[\s=]", words) is not None,
        "requests-mock": "requests_mock" in arguments,
        "pytest-httpx": "httpx_mock" in arguments,
        "pyfakefs": "fs" in arguments and "pyfakefs" in text,
        "anyio": "mark.anyio" in text,
        "trio": "mark.anyio" in text and ("trio" in text or "anyio_backend" not in text),
        "vcrpy": "mark.vcr" in text,
        "pytest-recording": "mark.vcr" in text,
    }
    return [project for project, is_used in used.items() if is_used]


def evaluates(text: str, python: str) -> bool:
    """Whether a requirement's marker holds for an interpreter version, "3.8.18", on this system."""
    requirement = parse(text)
    if requirement is None or requirement.marker is None:
        return True
    short = ".".join(python.split(".")[:2])
    marker: Marker = requirement.marker
    try:
        return marker.evaluate({"python_version": short, "python_full_version": python, "extra": ""})
    except (UndefinedComparison, UndefinedEnvironmentName, ValueError):
        return True

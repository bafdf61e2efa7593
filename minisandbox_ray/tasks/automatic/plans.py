"""Ways to install a source tree with its tests, as data that repairs change; and the first ones to try."""

import shlex
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import BaseModel, ConfigDict

from minisandbox_ray.environments import EnvSpec, Interpreter, Source
from minisandbox_ray.tasks.automatic import servers
from minisandbox_ray.tasks.automatic.facts import Facts, evaluates
from minisandbox_ray.tasks.automatic.requirements import name_of

Strategy = Literal["editable", "no-isolation", "metadata", "wheel", "path"]

RELEASED = {
    6: "2016-12-23",
    7: "2018-06-27",
    8: "2019-10-14",
    9: "2020-10-05",
    10: "2021-10-04",
    11: "2022-10-24",
    12: "2023-10-02",
    13: "2024-10-07",
    14: "2025-10-07",
}
"""When Python 3.N came out (PEPs 494 to 745, "Release Schedule")."""
SETTLED = timedelta(days=180)
"""After its release, packages have come to terms with an interpreter: older versions are not taken for it."""
SIBLINGS = timedelta(days=3)
"""What a project's maintainers upload together arrives within days."""
OLDEST_PYTEST = datetime(2018, 12, 24, tzinfo=UTC)
"""Versions of an earlier date are not taken: pytest has the options that runs of tests are given since 2018."""
MOST_INTERPRETERS = 4
PIP_SECONDS = 900
"""A resolver that is not done by then goes through old versions one by one, for hours if it may."""

_STRIP = Path(__file__).with_name("strip_installed.py")


class Plan(BaseModel):
    """One way to install, and to run the tests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: str
    """Interpreter version."""
    strategy: Strategy = "editable"
    """`editable`: pip install -e. `no-isolation`: the same, with `build_requirements` instead of a build environment of
    the project's wishes. `metadata`: installed, then all but the metadata removed in favour of /testbed. `wheel`: the
    same with the release that the index has, for its compiled parts. `path`: only the requirements are installed,
    /testbed is put on the import path."""
    requirements: list[str] = []
    """What is installed together with the project."""
    build_requirements: list[str] = []
    """What is installed before it, for `no-isolation`."""
    system_packages: list[str] = []
    """Debian's packages in the environment's own layer."""
    servers: list[str] = []
    """Servers that run beside the tests, by name; their Debian packages come on their own."""
    prepare: list[str] = []
    """Shell commands before that, at /testbed."""
    paths: list[str] = []
    """Directories below /testbed that go on the import path besides the root, after the venv's packages."""
    variables: dict[str, str] = {}
    """Environment variables of every sandbox."""
    exclude_newer: str = ""
    """Date of the package versions; empty: the newest."""
    options: list[str] = []
    """pytest's, before ours."""
    targets: list[str] = []
    """Files and directories with tests."""
    unavailable: list[str] = []
    """Projects that the index does not have: not asked for again."""
    learned: list[str] = []
    """Which repairs made it what it is."""

    @property
    def test_command(self) -> list[str]:
        """How its tests are started."""
        return ["/venv/bin/pytest", *self.options]

    @property
    def may_limit_tests(self) -> bool:
        """Whether a time limit per test is still to be tried."""
        return "pytest-timeout" not in map(name_of, self.requirements)

    def of_files(self, why: str, kept: list[str], files: list[str]) -> "Plan":
        """A copy that runs some of the test files: told by what is shorter, these or the others."""
        dropped = [file for file in files if file not in kept]
        return self.changed(why, targets=kept) if len(dropped) > len(kept) else self.without_files(why, dropped)

    def without_files(self, why: str, dropped: Iterable[str]) -> "Plan":
        """A copy that leaves out test files; it may have no targets left."""
        left_out = list(dropped)
        targets = [target for target in self.targets if target not in left_out]
        return self.changed(why, targets=targets, options=[*self.options, *(f"--ignore={file}" for file in left_out)])

    def changed(self, why: str, **changes: Any) -> "Plan":
        """A copy that remembers why."""
        return self.model_copy(update={**changes, "learned": [*self.learned, why]})

    def with_requirement(self, text: str, why: str) -> "Plan | None":
        """A copy that installs this too, or instead of what it says about the same project; None if it does already."""
        if text in self.requirements:
            return None
        kept = [each for each in self.requirements if name_of(each) != name_of(text)]
        return self.changed(why, requirements=[*kept, text])

    def without_requirement(self, name: str, why: str) -> "Plan | None":
        """A copy that does not ask for this project; None if it does not now."""
        kept = [each for each in self.requirements if name_of(each) != canonicalize_name(name)]
        return self.changed(why, requirements=kept) if kept != self.requirements else None

    def spec(self, source: Source, facts: Facts) -> EnvSpec:
        """As an environment's recipe."""
        version = facts.version or "0.1.0"
        scm = "".join(f"{name}={version} " for name in facts.version_variables)
        pip = f"{scm}timeout {PIP_SECONDS} pip install"
        wanted = shlex.join(self.requirements)
        root = f"/testbed/{facts.import_path}".rstrip("/")
        install = list(self.prepare)
        if self.strategy == "editable":
            install.append(f"{pip} -e . {wanted}")
        elif self.strategy == "no-isolation":
            install.append(f"{pip} --no-build-isolation -e . {wanted}")
        elif self.strategy in {"metadata", "wheel"}:
            released = f"--only-binary {facts.name} {facts.name}=={facts.version}"
            install.append(f"{pip} {'.' if self.strategy == 'metadata' else released} {wanted}")
            install.append(
                f"python - {shlex.quote(facts.name)} {root} <<'END'\n{_STRIP.read_text(encoding='utf-8')}END"
            )
        else:
            own = [text for text in facts.dependencies if evaluates(text, self.python)]
            known = {name_of(text) for text in self.requirements}
            install.append(
                f"{pip} {shlex.join([*(text for text in own if name_of(text) not in known), *self.requirements])}"
            )
        places = ["/testbed", *(f"/testbed/{path}" for path in self.paths)]
        if root not in places and self.strategy in {"metadata", "wheel", "path"}:
            places.insert(0, root)
        find = "import sysconfig; print(sysconfig.get_path('purelib'))"
        lines = " ".join(map(shlex.quote, places))
        install.append(f'printf \'%s\\n\' {lines} > "$(python -c "{find}")/testbed.pth"')
        return EnvSpec(
            python=self.python,
            source=source,
            packages=self.build_requirements,
            install=install,
            variables=self.variables,
            exclude_newer=self.exclude_newer,
            system_packages=list(dict.fromkeys([*self.system_packages, *servers.packages(self.servers)])),
            services=servers.services(self.servers),
        )


def first_plans(facts: Facts, date: datetime | None, interpreters: Iterable[Interpreter]) -> list[Plan]:
    """Plans in the order to try them: interpreters, and for each the strategies. Empty if no interpreter will do."""
    plans = []
    for interpreter in order_interpreters(facts, date, interpreters):
        for strategy in ("editable", "no-isolation", "metadata", "path"):
            plan = Plan(
                python=interpreter.version,
                strategy=strategy,
                requirements=requirements_for(facts.test_requirements, interpreter.version),
                exclude_newer=newest_allowed(date, interpreter.key),
                variables=_variables(facts),
                targets=facts.targets,
            )
            if strategy == "no-isolation":
                plan = plan.model_copy(update={"build_requirements": build_tools(facts, interpreter.key)})
            plans.append(plan)
    return plans


def requirements_for(requirements: list[str], python: str) -> list[str]:
    """Those whose marker holds, without it; and pytest in any case."""
    wanted = [text.partition(";")[0].strip() for text in requirements if evaluates(text, python)]
    names = {name_of(text) for text in wanted}
    return wanted if "pytest" in names else [*wanted, "pytest"]


def build_tools(facts: Facts, python: tuple[int, ...], setuptools: str = "") -> list[str]:
    """What builds the project outside of a build environment: a setuptools that still knows its old ways."""
    setuptools = setuptools or ("setuptools<66" if python < (3, 12) else "setuptools<81")
    others = [text for text in facts.build_requires if name_of(text) not in {"setuptools", "wheel", ""}]
    return [setuptools, "wheel", *(text for text in others if evaluates(text, ".".join(map(str, python))))]


def order_interpreters(facts: Facts, date: datetime | None, interpreters: Iterable[Interpreter]) -> list[Interpreter]:
    """At most four, the likeliest first: one of each minor version that the project's requires-python allows.

    First the newest that the project names and that was there at the date; then the newest that was there at all, which
    a project that goes on for years may not have come to name; then those nearest to the first; then younger ones.
    """
    try:
        allowed = SpecifierSet(facts.requires_python)
        allowed.contains(Version("3.9"))
    except (InvalidSpecifier, ValueError):
        allowed = SpecifierSet()
    usable: dict[tuple[int, ...], Interpreter] = {}
    for each in sorted(interpreters, key=lambda each: each.key, reverse=True):
        if each.complete and allowed.contains(Version(each.version)):
            usable.setdefault(each.key[:2], each)
    there = [key for key in usable if date is None or _released(key[1]) <= date]
    named = [key for key in there if f"3.{key[1]}" in facts.tested]
    best = max(named or there or list(usable)[-1:], default=None)
    if best is None:
        return []
    newest = max(there, default=best)
    distance = {key: (key != best, key != newest, key not in there, abs(key[1] - best[1]), -key[1]) for key in usable}
    order = sorted(usable, key=lambda key: distance[key])
    return [usable[key] for key in order[:MOST_INTERPRETERS]]


def newest_allowed(date: datetime | None, python: tuple[int, ...]) -> str:
    """The date of the package versions: that of the source, or later where the interpreter was not settled by then."""
    if date is None:
        return ""
    chosen = max(date + SIBLINGS, _released(python[1]) + SETTLED, OLDEST_PYTEST)
    return "" if chosen >= datetime.now(UTC) else chosen.date().isoformat()


def _released(minor: int) -> datetime:
    known = RELEASED.get(minor)
    return datetime.fromisoformat(f"{known}T00:00:00+00:00") if known else datetime.now(UTC)


def _variables(facts: Facts) -> dict[str, str]:
    variables = {name: value for name, value in facts.variables.items() if name not in {"PYTHONPATH", "PATH", "HOME"}}
    if facts.settings_module:
        variables["DJANGO_SETTINGS_MODULE"] = facts.settings_module
    return variables

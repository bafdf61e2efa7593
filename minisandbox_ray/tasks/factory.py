"""Makes real tasks from packages: a source distribution with its tests, one function broken, a suite that notices.

Everything about a task follows from the configuration and its seed: packages are worked on side by side, but each one
tries its mutations in one fixed order and takes the first that qualify.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.environments import (
    Environment,
    EnvSpec,
    NodeStore,
    Source,
    build_environment,
    cache_root,
)
from minisandbox_ray.errors import BuildError, TaskError
from minisandbox_ray.sandbox import Limits, Sandbox
from minisandbox_ray.tasks.grading import GradingConfig, validate
from minisandbox_ray.tasks.mutate import Mutation, mutations
from minisandbox_ray.tasks.source import SourceText, compiles, unified_patch
from minisandbox_ray.tasks.statement import write_statement
from minisandbox_ray.tasks.task import Task, load_tasks, save_tasks
from minisandbox_ray.tasks.testrun import TestRun, run_tests
from minisandbox_ray.tasks.validation import stamped

FORMAT = 1
"""Changes when the same configuration would give other tasks: part of every cached result's name."""

_BASELINE_RUNS = 3
_LIMITS = Limits(memory_mib=1024)

Progress = Callable[[str, int, int], None]
"""Called with (what was just done, tasks found so far, tasks wanted), from several threads."""
OnFailure = Callable[["PackageSpec", BuildError | TaskError], None]
"""Called with a package that gives no tasks, and why, from several threads."""


class PackageSpec(BaseModel):
    """A package to make tasks from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Project name on the package index."""
    version: str
    """Exact version; its source distribution must ship the tests."""
    sha256: str = ""
    """Expected hash of the source distribution."""
    python: str = "3.12"
    """Interpreter version."""
    modules: list[str] = Field(min_length=1)
    """Files or directories of the code that may be broken, relative to the repository."""
    tests: list[str] = Field(min_length=1)
    """Files or directories handed to pytest, relative to the repository."""
    import_path: str = ""
    """Directory of the repository that goes on the import path: empty, or "src"."""
    test_packages: list[str] = []
    """Requirements of the tests besides the factory's own, pinned."""

    def env_spec(self, packages: list[str]) -> EnvSpec:
        """The environment: `packages` and ours in the venv, the source tree on its import path, after its packages."""
        root = f"/testbed/{self.import_path}".rstrip("/")
        find = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return EnvSpec(
            python=self.python,
            source=Source(kind="sdist", name=self.name, version=self.version, sha256=self.sha256),
            packages=[*packages, *self.test_packages],
            install=[f'echo {root} > "$(python -c "{find}")/testbed.pth"'],
        )


class FactoryConfig(BaseModel):
    """What tasks are made from, and how many."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    packages: list[PackageSpec] = Field(min_length=1)
    """The packages."""
    per_package: int = Field(4, ge=1)
    """Tasks wanted from each package."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Decides which mutations are tried in which order."""
    requirements: list[str] = ["pytest==8.3.4", "pluggy==1.5.0", "iniconfig==2.0.0", "packaging==24.2"]
    """What is installed to run every package's tests, pinned."""
    max_fail_to_pass: int = Field(20, ge=1)
    """A mutation that breaks more tests than this is not used."""
    max_attempts: int = Field(150, ge=1)
    """Mutations tried per package before it is left with the tasks found so far."""
    suite_timeout: float = Field(20, gt=0)
    """Seconds that a package's tests may take; a mutation that makes them slower is not used."""
    workers: int = Field(2, ge=1)
    """Packages worked on at a time; does not change the result."""


def make_tasks(
    config: FactoryConfig,
    archives: Path,
    store: NodeStore,
    progress: Progress | None = None,
    on_failure: OnFailure | None = None,
) -> list[Task]:
    """The tasks of all packages, each validated (and marked so): gold fix resolved, untouched not.

    What was made before is read from the cache (`cache_root()/tasks`), package by package. Raises BuildError for an
    environment, TaskError for a package whose suite is not stable or that yields no task; with `on_failure` that is
    called instead, and the other packages' tasks are returned.
    """
    wanted = config.per_package * len(config.packages)
    found: list[str] = []

    def report(what: str, tasks: int = 0) -> None:
        found.extend([what] * tasks)
        if progress:
            progress(what, len(found), wanted)

    def make(package: PackageSpec) -> list[Task]:
        report(f"{package.name}: environment")
        manifest = build_environment(package.env_spec(config.requirements), archives, store)
        cached = cache_root() / "tasks" / f"{_cache_key(package, config, manifest.digest)}.jsonl"
        if cached.exists():
            tasks = load_tasks(cached)
            report(f"{package.name}: {len(tasks)} tasks, made before", len(tasks))
            return tasks
        with store.use(manifest.digest, archives) as env:
            tasks = []
            for task in _PackageFactory(package, config, env, store).tasks():
                tasks.append(task)
                report(f"{package.name}: task {len(tasks)} of {config.per_package}", 1)
        if not tasks:
            raise TaskError(f"{package.name} {package.version}: no mutation of {config.max_attempts} made a task")
        save_tasks(tasks, cached)
        return tasks

    def try_to_make(package: PackageSpec) -> list[Task]:
        try:
            return make(package)
        except (BuildError, TaskError) as error:
            if on_failure is None:
                raise
            on_failure(package, error)
            return []

    with ThreadPoolExecutor(config.workers) as pool:
        return [stamped(task) for tasks in pool.map(try_to_make, config.packages) for task in tasks]


def _cache_key(package: PackageSpec, config: FactoryConfig, digest: str) -> str:
    parts = [FORMAT, digest, package.model_dump(), config.model_dump(exclude={"packages", "workers"})]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class _PackageFactory:
    """The tasks of one package."""

    def __init__(self, package: PackageSpec, config: FactoryConfig, env: Environment, store: NodeStore):
        self.package = package
        self.config = config
        self.env = env
        self.store = store
        self.files = [str(path.relative_to(env.testbed)) for path in sorted(env.testbed.rglob("*.py"))]
        self.command: list[str] = Task.model_fields["test_command"].get_default()
        self.grading = GradingConfig(timeout=config.suite_timeout, limits=_LIMITS)

    def tasks(self) -> Iterator[Task]:
        """Up to `per_package` tasks; functions that have none yet come first."""
        passing = self._baseline()
        later: list[Mutation] = []
        broken: set[tuple[str, str]] = set()
        made = attempts = 0
        queue = self._mutations()
        while made < self.config.per_package and attempts < self.config.max_attempts and (queue or later):
            if not queue:
                queue, later, broken = later, [], set()
            mutation = queue.pop(0)
            function = (mutation.path, mutation.function)
            if function in broken:
                later.append(mutation)
                continue
            attempts += 1
            task = self._try(mutation, passing)
            if task is not None:
                broken.add(function)
                made += 1
                yield task

    def _baseline(self) -> list[str]:
        """The tests that pass every time, in the suite's order."""
        runs = [self._run({}) for _ in range(_BASELINE_RUNS)]
        name = f"{self.package.name} {self.package.version}"
        for run in runs:
            if run.collection_errors or run.timed_out or run.limit:
                what = f"{run.collection_errors[0]} is not collected" if run.collection_errors else "it is cut short"
                raise TaskError(f"{name}: its suite does not run: {what}: {run.log[-500:].strip()}")
        passing = [test for test in runs[0].cases if all(test in run.passed for run in runs)]
        if not passing:
            raise TaskError(f"{name}: no test of its suite passes: {runs[0].log[-500:].strip()}")
        return passing

    def _run(self, changes: dict[str, str], max_failures: int = 0) -> TestRun:
        """The suite in a fresh sandbox, with the texts of some files replaced."""
        with Sandbox(self.env.sandbox_spec(limits=_LIMITS)) as sandbox:
            for path, text in changes.items():
                sandbox.write_file(f"/testbed/{path}", text.encode())
            return run_tests(
                sandbox,
                self.command,
                self.package.tests,
                timeout=self.config.suite_timeout,
                max_failures=max_failures,
            )

    def _text(self, path: str) -> str:
        return (self.env.testbed / path).read_bytes().decode()

    def _mutations(self) -> list[Mutation]:
        """All mutations, shuffled so that functions take turns, and within a function operators do."""
        by_function: dict[tuple[str, str], dict[str, list[Mutation]]] = {}
        for path in self.files:
            if not any(path == module or path.startswith(f"{module}/") for module in self.package.modules):
                continue
            if any(path == tests or path.startswith(f"{tests}/") for tests in self.package.tests):
                continue
            try:
                text = self._text(path)
            except UnicodeDecodeError:
                continue  # declares another encoding: left alone
            for mutation in mutations(path, text):
                operators = by_function.setdefault((path, mutation.function), {})
                operators.setdefault(mutation.operator, []).append(mutation)
        choice = random.Random(f"{self.config.seed} {self.package.name} {self.package.version}")
        ranked = []
        for operators in by_function.values():
            for group in operators.values():
                choice.shuffle(group)
            ranked += [(rank, choice.random(), m) for rank, m in enumerate(_take_turns(operators, choice))]
        return [mutation for _, _, mutation in sorted(ranked, key=lambda item: item[:2])]

    def _try(self, mutation: Mutation, passing: list[str]) -> Task | None:
        text = self._text(mutation.path)
        mutated = mutation.apply(text)
        if not compiles(mutated):
            return None
        changes = {mutation.path: mutated}
        run = self._run(changes, max_failures=self.config.max_fail_to_pass + 1)
        failing = [test for test in passing if test not in run.passed]
        if not 1 <= len(failing) <= self.config.max_fail_to_pass or _cut_short(run):
            return None
        # Only what fails in the same way again is a test of this bug.
        again = self._run(changes)
        if _cut_short(again) or any(run.status(test) != again.status(test) for test in passing):
            return None
        task = self._task(mutation, (text, mutated), passing, failing, run)
        return task if self._is_valid(task) else None

    def _task(
        self, mutation: Mutation, texts: tuple[str, str], passing: list[str], failing: list[str], run: TestRun
    ) -> Task:
        text, mutated = texts
        name, version = self.package.name, self.package.version
        patch = unified_patch(mutation.path, text, mutated)
        digest = hashlib.sha256(patch.encode()).hexdigest()[:8]
        secret = SourceText(mutated).line(mutation.line).strip()
        return Task(
            instance_id=f"{name}__{version}.{mutation.operator}_{digest}",
            repo=name,
            problem_statement=write_statement(name, version, run, failing, secret),
            patch=patch,
            FAIL_TO_PASS=failing,
            PASS_TO_PASS=[test for test in passing if test not in set(failing)],
            environment=self.env.digest,
            test_command=self.command,
        )

    def _is_valid(self, task: Task) -> bool:
        gold, empty = validate(task, self.env, self.store.derive(self.env, task.patch), self.grading)
        return gold.resolved and not empty.resolved


def _cut_short(run: TestRun) -> bool:
    return bool(run.collection_errors or run.timed_out or run.limit)


def _take_turns(operators: dict[str, list[Mutation]], choice: random.Random) -> list[Mutation]:
    """One mutation of each operator, then the next of each, and so on."""
    names = sorted(operators)
    choice.shuffle(names)
    longest = max(len(group) for group in operators.values())
    return [operators[name][i] for i in range(longest) for name in names if i < len(operators[name])]

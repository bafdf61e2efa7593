"""The search: read the source tree, try plans, repair what fails, keep what works."""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from minisandbox_ray.environments import EnvSpec, NodeStore, Source, cache_root, find_interpreters
from minisandbox_ray.environments.archive import archive_path, is_complete, manifest_path
from minisandbox_ray.environments.cache import write_atomically
from minisandbox_ray.environments.pip_settings import PipSettings
from minisandbox_ray.environments.repository import find_commit
from minisandbox_ray.environments.spec import content_hash, tree_hash
from minisandbox_ray.errors import BuildError, ConfigError, ModelServiceError
from minisandbox_ray.tasks.automatic.advisor import AdvisorConfig, advise
from minisandbox_ray.tasks.automatic.facts import Facts, detect
from minisandbox_ray.tasks.automatic.index import find_sdist, keep
from minisandbox_ray.tasks.automatic.parts import working_part
from minisandbox_ray.tasks.automatic.plans import Plan, first_plans
from minisandbox_ray.tasks.automatic.repairs.builds import culprit, missing_system_package
from minisandbox_ray.tasks.automatic.repairs.failure import Failure
from minisandbox_ray.tasks.automatic.repairs.known import repaired
from minisandbox_ray.tasks.automatic.tree import SourceTree, read_export, read_folder, read_sdist
from minisandbox_ray.tasks.automatic.trial import Trial, attempt

FORMAT = 4
"""Changes when the same source would be given another environment: part of every cached result's name."""
WELL = 0.05
"""A share of failing tests that is not worth another attempt."""
_LOG_CHARS = 8000

Log = Callable[[str], None]


class AutomaticConfig(BaseModel):
    """How long and how far the search goes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempts: int = Field(12, ge=1)
    """Builds of one source, at most."""
    seconds: float = Field(1500, gt=0)
    """No further attempt is begun after this; seconds."""
    suite_timeout: float = Field(240, gt=0)
    """Seconds that one run of the tests may take, and to collect them."""
    advisor: AdvisorConfig | None = None
    """A language model that is asked when no known repair is left."""


class Found(BaseModel):
    """An environment in which the source's own tests run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spec: EnvSpec
    """Its recipe."""
    digest: str
    """Its archive's."""
    test_command: list[str]
    """How the tests are started at /testbed."""
    test_targets: list[str]
    """Files and directories with tests."""
    passing: list[str]
    """Tests that passed twice without a network, in the suite's order."""
    failing: list[str]
    """Tests that failed at least once: flaky ones too."""
    uncollected: list[str]
    """Test files that could not be collected."""
    excused: dict[str, str]
    """Of both, those that fail for what no environment has, and why."""
    learned: list[str]
    """Which repairs it took; test files that were left out are named here."""
    attempts: int
    """Builds that it took."""
    seconds: float
    """How long the search took."""
    attempt_log: Path
    """JSON lines, one for each attempt."""


@dataclass(frozen=True)
class _Read:
    """A source, looked at."""

    source: Source
    tree: SourceTree
    date: datetime | None
    key: str
    """What the tree is: part of the cached result's name."""


def find_environment(
    source: Source,
    *,
    archives: Path,
    store: NodeStore,
    date: datetime | None = None,
    config: AutomaticConfig | None = None,
    repo_mirror: Path | None = None,
    log: Log | None = None,
) -> Found:
    """Find how to install a source so that its tests run, by trying; the environment is then in `archives` and `store`.

    Package versions are those of `date`, by default the upload's or the commit's; for a directory the newest. `log` is
    called with a line per attempt. What was found before is read from the cache. Raises BuildError with the cause of
    the best attempt and the place of the whole log, ConfigError for a source that isn't there, StoreFullError.
    """
    config = config or AutomaticConfig()
    read = _read(source, repo_mirror, log)
    search = _Search(read, date or read.date, config, archives, store, repo_mirror, log or _silent)
    if (known := search.known()) is not None:
        return known
    return search.run()


def _read(source: Source, repo_mirror: Path | None, log: Log | None) -> _Read:
    if source.kind == "path":
        assert source.path is not None
        if not source.path.is_dir():
            raise ConfigError(f"source directory {source.path} does not exist")
        return _Read(source, read_folder(source.path), None, tree_hash(source.path))
    if source.kind == "git":
        commit = find_commit(source, repo_mirror, log)
        export = cache_root() / "automatic" / f".{commit.id}-{time.monotonic_ns()}.tar"
        export.parent.mkdir(parents=True, exist_ok=True)
        try:
            commit.export(export)
            return _Read(source, read_export(export, commit.name), datetime.fromisoformat(commit.date), commit.tree)
        finally:
            export.unlink(missing_ok=True)
    sdist = find_sdist(source.name, source.version)
    if sdist is None:
        raise BuildError(f"{source.describe()}: the package index has no source distribution of it")
    path = keep(sdist, source.name, source.version)
    tree = read_sdist(path)
    return _Read(source, tree, sdist.uploaded or tree.newest, f"{source.name} {source.version} {sdist.sha256}")


class _Search:
    """One source's search."""

    def __init__(
        self,
        read: _Read,
        date: datetime | None,
        config: AutomaticConfig,
        archives: Path,
        store: NodeStore,
        repo_mirror: Path | None,
        log: Log,
    ) -> None:
        self.source, self.tree, self.date, self.config = read.source, read.tree, date, config
        self.archives, self.store, self.repo_mirror, self.log = archives, store, repo_mirror, log
        self.facts: Facts = detect(read.tree)
        interpreters = find_interpreters()
        self.pythons = sorted({each.version for each in interpreters if each.complete})
        self.queue = deque(first_plans(self.facts, date, interpreters))
        self.others = frozenset(path.name for path in archives.iterdir()) if archives.is_dir() else frozenset[str]()
        """What was in the archives before: not ours to remove."""
        self.tried: list[Trial] = []
        self.best: Trial | None = None
        self.asked = 0
        self.started = time.monotonic()
        parts = [FORMAT, read.source.recipe(), read.key, str(date), config.model_dump(mode="json"), self.pythons]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", read.source.describe())[-60:].strip("-.")
        self.place = cache_root() / "automatic" / f"{name}-{content_hash(parts)[:12]}.json"
        self.attempt_log = self.place.with_suffix(".jsonl")

    def known(self) -> Found | None:
        """What an earlier search found, if its archive is still there."""
        try:
            found = Found.model_validate_json(self.place.read_bytes())
        except (OSError, ValueError):
            return None
        return found if is_complete(self.archives, found.digest) else None

    def run(self) -> Found:
        self.attempt_log.parent.mkdir(parents=True, exist_ok=True)
        self.attempt_log.unlink(missing_ok=True)
        self._note(source=self.source.describe(), date=str(self.date or ""), facts=self.facts.summary())
        if not self.queue:
            have = ", ".join(self.pythons)
            wanted = self.facts.requires_python
            raise BuildError(
                f"{self.source.describe()} wants python {wanted}; this machine has {have}: {self._where()}"
            )
        if not self.facts.targets:
            raise BuildError(f"{self.source.describe()} has no tests that pytest would find: {self._where()}")
        while self.queue and self._may_go_on():
            plan = self.queue.popleft()
            if self._was_tried(plan):
                continue
            trial = self._attempt(plan)
            is_well = max(trial.failing_share, trial.uncollected_share) <= WELL
            is_well = is_well and not trial.missed and not trial.skips_coroutines
            is_done = trial.is_good and is_well
            proposals = [] if is_done else self._proposals(trial)
            self._note_attempt(trial, [name for name, _ in proposals])
            if is_done:
                break
            self._go_on_from(trial, proposals[0][1] if proposals else None)
        if self.best is not None and not self.best.is_good and (part := working_part(self.best)) is not None:
            self._note_attempt(self._attempt(part), [])
        if self.best is None or not self.best.is_good:
            raise BuildError(self._why_not())
        return self._keep(self.best)

    def _may_go_on(self) -> bool:
        is_time = time.monotonic() - self.started < self.config.seconds
        # What is good already is worth one or two attempts more, not all of them.
        good_since = next((number for number, trial in enumerate(self.tried) if trial.is_good), None)
        is_worth = good_since is None or len(self.tried) - good_since <= 2
        return is_time and is_worth and len(self.tried) < self.config.attempts

    def _attempt(self, plan: Plan) -> Trial:
        trial = attempt(
            plan,
            self.source,
            self.facts,
            self.tree,
            self.archives,
            self.store,
            self.config.suite_timeout,
            self.repo_mirror,
        )
        self.tried.append(trial)
        self.log(
            f"{self.source.describe()}: attempt {len(self.tried)}, python {plan.python} {plan.strategy}"
            f"{' + ' + '; '.join(plan.learned) if plan.learned else ''}: "
            f"{trial.cause or f'{len(trial.passing)} tests pass, {len(trial.failing)} fail'} ({trial.seconds:.0f} s)"
        )
        worse = trial if self.best and self.best.quality >= trial.quality else self.best
        if worse is not trial:
            self.best = trial
        if worse and worse.digest and worse.digest != (self.best and self.best.digest):
            self._discard(worse.digest)
        return trial

    def _proposals(self, trial: Trial) -> list[tuple[str, Plan]]:
        """What known repairs make of it, or the advisor, under their names."""
        known = list(repaired(Failure(trial, self.facts, self.tree)))
        fresh = [(name, plan) for name, plan in known if not self._was_tried(plan)]
        if not fresh and not trial.is_good and (advised := self._advised(trial)) is not None:
            fresh = [("advisor", advised)]
        return fresh

    def _note_attempt(self, trial: Trial, repairs: list[str]) -> None:
        self._note(
            attempt=len(self.tried),
            plan=trial.plan.model_dump(),
            stage=trial.stage,
            cause=trial.cause,
            digest=trial.digest,
            passing=len(trial.passing),
            failing=len(trial.failing),
            uncollected=trial.uncollected,
            excused=sorted(set(trial.excuses.values())),
            seconds=round(trial.seconds, 1),
            repairs=repairs,
            log=trial.log[-_LOG_CHARS:],
        )

    def _go_on_from(self, trial: Trial, proposed: Plan | None) -> None:
        """Put what to try next at the head of the queue, and take out what would fail the same way."""
        plan = trial.plan
        if proposed is not None:
            self.queue.appendleft(proposed)
        elif trial.is_good:
            self.queue.clear()
        else:
            self.queue = deque(plans_left(self.queue, trial))
            self._carry(plan)
            is_large = not trial.stalled and re.search(r"takes longer than|hit the sandbox's", trial.cause)
            is_final = is_large or trial.is_explained or self._fails_everywhere(trial)
            if trial.stage != "build" and is_final:
                self.queue.clear()

    def _fails_everywhere(self, trial: Trial) -> bool:
        """Whether another interpreter gave the same: then it is none of theirs."""
        return any(
            each.plan.python != trial.plan.python
            and (each.stage, len(each.passing), len(each.uncollected))
            == (trial.stage, len(trial.passing), len(trial.uncollected))
            and abs(len(each.failing) - len(trial.failing)) <= len(trial.failing) // 10
            for each in self.tried
        )

    def _was_tried(self, plan: Plan) -> bool:
        bare = plan.model_copy(update={"learned": []})
        return any(trial.plan.model_copy(update={"learned": []}) == bare for trial in self.tried)

    def _carry(self, plan: Plan) -> None:
        """What was learned on one interpreter helps on the next."""
        same = {"prepare": plan.prepare, "variables": plan.variables, "paths": plan.paths}
        same |= {"system_packages": plan.system_packages, "servers": plan.servers, "unavailable": plan.unavailable}
        names = {text for each in self.queue for text in each.requirements}
        tests = {"options": plan.options, "targets": plan.targets} if plan.learned else {}
        more = [text for text in plan.requirements if text not in names] if plan.learned else []
        self.queue = deque(
            each.model_copy(
                update={
                    **same,
                    **tests,
                    "requirements": list(dict.fromkeys([*each.requirements, *map(_unpinned, more)])),
                }
            )
            for each in self.queue
        )

    def _advised(self, trial: Trial) -> Plan | None:
        config = self.config.advisor
        # Only when nothing else is left: an answer costs more than an attempt.
        others = [plan for plan in self.queue if plan.python != trial.plan.python or trial.stage == "build"]
        if config is None or self.asked >= config.requests or others:
            return None
        self.asked += 1
        try:
            plan = advise(config, trial.plan, trial.cause, trial.log, self.facts.summary(), self.pythons)
        except ModelServiceError as error:
            self._note(advisor=str(error))
            self.log(str(error))
            return None
        return None if self._was_tried(plan) else plan

    def _keep(self, trial: Trial) -> Found:
        found = Found(
            spec=trial.plan.spec(self.source, self.facts),
            digest=trial.digest,
            test_command=trial.plan.test_command,
            test_targets=trial.plan.targets,
            passing=trial.passing,
            failing=trial.failing,
            uncollected=trial.uncollected,
            excused=trial.excuses,
            learned=trial.plan.learned,
            attempts=len(self.tried),
            seconds=round(time.monotonic() - self.started, 1),
            attempt_log=self.attempt_log,
        )
        self._note(found=found.model_dump(mode="json", exclude={"passing"}), passing=len(found.passing))
        write_atomically(self.place, found.model_dump_json().encode())
        return found

    def _discard(self, digest: str) -> None:
        """An attempt's environment that is not kept."""
        if manifest_path(self.archives, digest).name in self.others:
            return
        manifest_path(self.archives, digest).unlink(missing_ok=True)
        archive_path(self.archives, digest).unlink(missing_ok=True)
        self.store.evict(digest)

    def _why_not(self) -> str:
        best = self.best or self.tried[-1]
        if best.digest:
            self._discard(best.digest)
        lacking = next(filter(None, (missing_system_package(trial.log)[0] for trial in self.tried)), "")
        cause = f"the system lacks {lacking}" if lacking and best.stage == "build" else best.cause
        return (
            f"{self.source.describe()}: no environment found in {len(self.tried)} attempts; the best, with python "
            f"{best.plan.python}: {cause}; {self._where()}"
        )

    def _where(self) -> str:
        return f"all attempts: {self.attempt_log}"

    def _note(self, **what: Any) -> None:
        """A line of the attempt log. A build's output may hold what pip's settings say: never its credentials."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"), **what}, default=str)
        with self.attempt_log.open("a", encoding="utf-8") as file:
            file.write(PipSettings({}, []).redact(line) + "\n")


def plans_left(plans: Iterable[Plan], trial: Trial) -> list[Plan]:
    """Those of the plans that may fare better than a trial that failed.

    Where a dependency can't be built, or the tests fail, another way to install the project would not change that.
    Another interpreter may.
    """
    if trial.stage == "build" and not culprit(trial.log):
        return list(plans)
    return [each for each in plans if each.python != trial.plan.python]


def _unpinned(text: str) -> str:
    """For another interpreter, a project's name alone: its versions may be others there."""
    return re.split(r"[<>=!~;\s]", text, maxsplit=1)[0]


def _silent(line: str) -> None:
    """No log wanted."""

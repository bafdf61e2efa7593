"""One problem to solve, in SWE-smith's schema, and files of them (JSON lines)."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from minisandbox_ray.environments.cache import write_atomically
from minisandbox_ray.errors import ConfigError, TaskError
from minisandbox_ray.tasks.scripted import ScriptedTask, solution_command


class Task(BaseModel):
    """A repository state, a problem statement, and how to tell that it is solved.

    Field names are SWE-smith's (https://huggingface.co/datasets/SWE-bench/SWE-smith); columns that are not named here
    are kept as they are.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    instance_id: str = Field(min_length=1)
    """Unique name of the task."""
    repo: str
    """What the repository is: owner/name, or the package for a task made from a source distribution."""
    base_commit: str = ""
    """Commit of the repository before the bug; empty where the environment's tree is the base."""
    problem_statement: str = ""
    """What the agent is told."""
    patch: str = ""
    """Git patch that INTRODUCES the bug into the environment's tree, and whose reverse is the gold fix. Empty where the
    tree has the bug already (SWE-bench), or if hidden."""
    gold_patch: str = ""
    """Git patch that solves the task, where that is not the reverse of `patch`: what SWE-bench calls ``patch``."""
    test_patch: str = ""
    """Git patch with the tests that judge a solution, for the grader to apply; the agent's tree lacks it."""
    hidden_tests: dict[str, str] = {}
    """Files, by path below /testbed, that only the grader puts there."""
    hints_text: str = ""
    """Comments on the issue from before the fix (SWE-bench)."""
    created_at: str = ""
    """When the fix was proposed (ISO 8601): which package versions existed."""
    version: str = ""
    """Version of the repository, the key of SWE-bench's table of installations."""
    environment_setup_commit: str = ""
    """Commit whose requirement files SWE-bench installs."""
    graded_by: Literal["tests", "statuses", "script"] = "tests"
    """What decides: FAIL_TO_PASS and PASS_TO_PASS; `expected_statuses`; or the `script` task's own test script."""
    expected_statuses: dict[str, str] = {}
    """Status (PASSED, FAILED, …) that each test must have, none missing and none besides (R2E-Gym)."""
    script: ScriptedTask | None = None
    """A task folder of Harbor's form: how its machine is made, and the script that writes the reward."""
    FAIL_TO_PASS: list[str] = Field([], validate_default=True)
    """Ids of the tests that a solution makes pass: file::class::name[parameters], or as the repository's own runner
    prints them (Django, SymPy in SWE-bench). At least one where tests decide."""
    PASS_TO_PASS: list[str] = []
    """Ids of the tests that pass with the bug and must go on passing."""
    image_name: str = ""
    """The container image of SWE-smith's own tasks; unused here but kept."""
    environment: str = Field("", pattern="^([0-9a-f]{64})?$")
    """Digest of the environment's archive; empty where none was built yet."""
    test_command: list[str] = Field(["/venv/bin/pytest"], min_length=1)
    """How the tests are started at /testbed; the grader adds its own options for pytest, and the targets."""
    test_targets: list[str] = []
    """What the test command is given to run: files, directories, or labels as the repository's runner takes them.
    Empty: the files of the listed tests."""
    log_parser: str = Field("", pattern=r"^(|(swebench|swesmith):[\w.-]+/[\w.-]+)$")
    """Who tells what became of the tests. Empty: the command is pytest, and our own report. "swebench:OWNER/NAME" or
    "swesmith:OWNER/NAME": that package's parser of the repository's test logs gives the ids (`tasks/parsers.py`)."""
    test_files: list[str] = []
    """Files that the grader restores besides those of the listed tests, relative to /testbed (helpers, data)."""
    validated: str = ""
    """The mark of a task that was found valid: the digest of what judges it (`tasks/validation.py`)."""

    @field_validator("FAIL_TO_PASS", "PASS_TO_PASS", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        # Some of the public datasets hold the lists as JSON text.
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("FAIL_TO_PASS")
    @classmethod
    def _something_decides(cls, value: list[str], info: ValidationInfo) -> list[str]:
        kind = info.data.get("graded_by", "tests")
        if kind == "tests" and not value:
            raise ValueError("a task that is graded by tests needs at least one")
        if kind == "statuses" and not info.data.get("expected_statuses"):
            raise ValueError("a task that is graded by statuses needs expected_statuses")
        if kind == "script" and info.data.get("script") is None:
            raise ValueError("a task that is graded by a script needs script")
        return value

    @property
    def tests(self) -> list[str]:
        """All listed tests, each once, in order. Raises TaskError where something else decides: none to run would mean
        that nothing failed."""
        if self.graded_by != "tests":
            raise TaskError(f"task {self.instance_id} is graded by its {self.graded_by}, not by listed tests")
        return list(dict.fromkeys([*self.FAIL_TO_PASS, *self.PASS_TO_PASS]))

    @property
    def judged(self) -> list[str]:
        """Whose status a grade tells: all listed tests, or those with an expected status."""
        return list(self.expected_statuses) if self.graded_by == "statuses" else self.tests

    @property
    def listed_files(self) -> list[str]:
        """The files of the listed tests, relative to /testbed, as far as their ids name one; each once, in order."""
        listed = [*self.FAIL_TO_PASS, *self.PASS_TO_PASS]
        # Without "::" an id is pytest's own of a file that is one test, but may be anything where a log is parsed.
        return list(dict.fromkeys(test.split("::")[0] for test in listed if "::" in test or not self.log_parser))

    def hide_gold(self) -> "Task":
        """A copy from which the fix cannot be derived."""
        script = self.script and self.script.model_copy(update={"solution": ""})
        return self.model_copy(update={"patch": "", "gold_patch": "", "script": script})

    def gold_command(self) -> str:
        """A shell command that solves the task where its agent starts. Raises ConfigError if the gold is hidden."""
        if self.script:
            return solution_command(self.script)
        patch, options = (self.gold_patch, "") if self.gold_patch else (self.patch, "-R ")
        if not patch:
            raise ConfigError(f"task {self.instance_id} has no patch: its gold fix is hidden")
        end = "END_OF_PATCH"
        while f"\n{end}\n" in patch:
            end += "_"
        patch = patch if patch.endswith("\n") else patch + "\n"
        return f"git apply {options}--whitespace=nowarn <<'{end}'\n{patch}{end}"

    def gold_action(self) -> str:
        """What a model that knows the answer would write: the gold command as one fenced bash block."""
        what = (
            "Run the solution."
            if self.script
            else "Apply the fix."
            if self.gold_patch
            else "Undo the change that broke it."
        )
        return f"{what}\n\n```bash\n{self.gold_command()}\n```\n"


def require_environments(tasks: list[Task]) -> None:
    """Raises ConfigError for a task that names no environment: it cannot be run."""
    for task in tasks:
        if not task.environment:
            raise ConfigError(
                f"task {task.instance_id} names no environment: build one and set its digest as `environment`"
            )


def load_tasks(path: str | Path) -> list[Task]:
    """Reads tasks from a JSON lines file. Raises ConfigError that names the line and the field of a bad row."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read the task file {path}: {error.strerror}")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the task file {path} is not UTF-8 text: {error.reason} at byte {error.start}")
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        task = _parse(line, f"{path}, line {number}")
        if task.instance_id in tasks:
            raise ConfigError(f"{path}, line {number}: instance_id {task.instance_id} occurs twice")
        tasks[task.instance_id] = task
    return list(tasks.values())


def _parse(line: str, where: str) -> Task:
    try:
        return Task.model_validate(json.loads(line))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not a JSON object: {error.msg} at column {error.colno}")
    except RecursionError:
        raise ConfigError(f"{where}: not a JSON object: nested too deeply")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "row"
        raise ConfigError(f"{where}: field {field}: {first['msg']}")


def dump_tasks(tasks: list[Task]) -> str:
    """Tasks as JSON lines: the same tasks give the same bytes."""
    rows = (task.model_dump() for task in tasks)
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)


def save_tasks(tasks: list[Task], path: str | Path) -> None:
    """Writes tasks as JSON lines, all or nothing. Raises ConfigError, StoreFullError as `write_atomically`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, dump_tasks(tasks).encode())

"""Task folders in Harbor's form, which Terminal-Bench 2 and SkillsBench use.

    task.toml  instruction.md  environment/Dockerfile  tests/test.sh  [solution/solve.sh]

Read as harbor.models.task.config, harbor.models.task.paths and harbor.verifier.verifier of the package harbor do.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minisandbox_ray.environments.spec import tree_hash
from minisandbox_ray.errors import TaskError
from minisandbox_ray.tasks.datasets.dockerfile import Recipe, parse_image, read_dockerfile
from minisandbox_ray.tasks.datasets.row import BadRowError, shown
from minisandbox_ray.tasks.scripted import LOGS, ScriptedTask
from minisandbox_ray.tasks.task import Task

_DEPTH = 4  # levels of folders between a data set and its tasks
_BEYOND = {
    "environment": ("gpus", "tpu", "mcp_servers", "healthcheck"),
    "verifier": ("environment", "collect"),
    "": ("steps", "multi_step_reward_strategy"),
}
"""Keys by table whose presence asks for more than one machine that runs one script."""
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)


def find_folders(root: Path) -> list[Path]:
    """The task folders at or below a directory, by name: those with a task.toml, or Terminal-Bench 1's task.yaml."""
    if any((root / name).is_file() for name in ("task.toml", "task.yaml")):
        return [root]
    found: list[Path] = []
    level = [root]
    for _ in range(_DEPTH):
        below = [each for folder in level for each in sorted(folder.iterdir()) if each.is_dir() and each.name[0] != "."]
        tasks = [each for each in below if (each / "task.toml").is_file() or (each / "task.yaml").is_file()]
        found += tasks
        level = [each for each in below if each not in tasks and not each.is_symlink()]
    return sorted(found)


def harbor_task(folder: Path) -> Task:
    """A task folder. Raises BadRowError with the file, and key in it, that cannot be served.

    The instance id is the folder's name. What agent and test script may take (time, memory, network) is the task's.
    """
    folder = folder.resolve()
    config = _config(folder)
    instruction = _file(folder, "instruction.md")
    if not instruction.strip():
        raise BadRowError("instruction.md", "is empty")
    _file(folder, "tests/test.sh")
    for name in (".harborignore", "tests/.harborignore", "solution/.harborignore"):
        if (folder / name).exists():
            raise BadRowError(name, "rules for files to leave out are beyond us")
    recipe = _recipe(folder, config)
    environment, verifier, agent = (_table(config, name) for name in ("environment", "verifier", "agent"))
    variables = _variables(environment, "environment.env")
    script = ScriptedTask(
        folder=str(folder),
        base=recipe.base,
        python=recipe.python,
        instructions=recipe.instructions,
        workdir=str(environment.get("workdir") or recipe.workdir),
        variables={**recipe.variables, **variables},
        content=tree_hash(folder / "environment") if (folder / "environment").is_dir() else "",
        solution="solution/solve.sh" if (folder / "solution/solve.sh").is_file() else "",
        verifier_variables=_variables(verifier, "verifier.env"),
        solution_variables=_variables(_table(config, "solution"), "solution.env"),
        network=_network(config),
        agent_seconds=_number(agent, "agent.timeout_sec"),
        verifier_seconds=_number(verifier, "verifier.timeout_sec") or 600.0,
        build_seconds=_number(environment, "environment.build_timeout_sec") or 600.0,
        cpus=_number(environment, "environment.cpus"),
        memory_mib=_mib(environment, "memory"),
        disk_mib=_mib(environment, "storage"),
    )
    title = _table(config, "task").get("name")
    return Task.model_validate(
        {
            "instance_id": folder.name,
            "repo": title if isinstance(title, str) and title else folder.name,
            "problem_statement": instruction,
            "graded_by": "script",
            "script": script,
            "metadata": json.loads(json.dumps(_table(config, "metadata"), default=str)),
        }
    )


def read_reward(files: Mapping[str, bytes]) -> float:
    """The reward from what the test script left in /logs/verifier, by name; reward.json goes before reward.txt.

    Of several rewards in the JSON the one called "reward" counts, else their mean. Raises TaskError if there is none,
    or one that is no finite number.
    """
    if "reward.json" in files:
        return _json_reward(files["reward.json"])
    if "reward.txt" not in files:
        raise TaskError(f"the test script left neither {LOGS}/reward.txt nor {LOGS}/reward.json")
    text = files["reward.txt"].decode(errors="replace")
    try:
        value = float(text)
    except ValueError:
        raise TaskError(f"{LOGS}/reward.txt is no number: {shown(text)}")
    return _finite(value, "reward.txt")


def _json_reward(data: bytes) -> float:
    try:
        rewards = json.loads(data)
    except (ValueError, RecursionError):
        raise TaskError(f"{LOGS}/reward.json is not JSON: {shown(data[:100])}")
    values = rewards if isinstance(rewards, dict) else {"reward": rewards}
    if not values:
        raise TaskError(f"{LOGS}/reward.json has no reward")
    numbers = {name: _finite(value, "reward.json") for name, value in values.items()}
    return numbers["reward"] if "reward" in numbers else sum(numbers.values()) / len(numbers)


def _finite(value: Any, name: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise TaskError(f"{LOGS}/{name} has a reward that is no finite number: {shown(value)}")
    return number


def _config(folder: Path) -> dict[str, Any]:
    if not (folder / "task.toml").is_file() and (folder / "task.yaml").is_file():
        raise BadRowError("task.yaml", "is Terminal-Bench 1's form: `harbor task migrate` makes Harbor's of it")
    try:
        config = tomllib.loads(_file(folder, "task.toml"))
    except tomllib.TOMLDecodeError as error:
        raise BadRowError("task.toml", f"is not TOML: {error}") from error
    for table, keys in _BEYOND.items():
        for key in keys:
            if _table(config, table).get(key):
                raise BadRowError(
                    f"task.toml: {table + '.' if table else ''}{key}", "is beyond one machine and one script"
                )
    if str(_table(config, "environment").get("os") or "linux").lower() != "linux":
        raise BadRowError("task.toml: environment.os", "only linux runs here")
    if _table(config, "verifier").get("environment_mode") not in {None, "shared"}:
        raise BadRowError("task.toml: verifier.environment_mode", "a machine of its own for the verifier is beyond us")
    for role in ("agent", "verifier"):
        if _table(config, role).get("user") not in {None, "root", 0}:
            raise BadRowError(f"task.toml: {role}.user", "only root is there")
    return config


def _recipe(folder: Path, config: dict[str, Any]) -> Recipe:
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / "environment" / name).exists():
            raise BadRowError(f"environment/{name}", "several containers are beyond us")
    dockerfile = folder / "environment/Dockerfile"
    if dockerfile.exists():
        return read_dockerfile(dockerfile)
    image = _table(config, "environment").get("docker_image")
    if not isinstance(image, str):
        raise BadRowError("environment/Dockerfile", "does not exist")
    try:
        return Recipe(*parse_image(image), [], "/", {})
    except ValueError as error:
        raise BadRowError("task.toml: environment.docker_image", str(error)) from error


def _file(folder: Path, name: str) -> str:
    path = folder / name
    try:
        if not path.resolve().is_relative_to(folder):
            raise BadRowError(name, "leads outside of the task folder")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadRowError(name, "does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadRowError(name, f"cannot be read: {error}") from error


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name, {}) if name else config
    if not isinstance(value, dict):
        raise BadRowError(f"task.toml: {name}", f"expected a table, found {shown(value)}")
    return value


def _variables(table: dict[str, Any], field: str) -> dict[str, str]:
    """``env`` of a table. ``${NAME}`` means a variable of the host, and none comes in; its default does."""
    value = table.get("env", {})
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise BadRowError(f"task.toml: {field}", f"expected a table of text, found {shown(value)}")
    variables = {}
    for name, text in value.items():
        match = _TEMPLATE.fullmatch(text)
        if match and match[2] is None:
            raise BadRowError(f"task.toml: {field}", f"wants {match[1]} of the host, whose variables stay outside")
        variables[name] = match[2] if match else text
    return variables


def _network(config: dict[str, Any]) -> bool:
    environment = _table(config, "environment")
    mode = environment.get("network_mode")
    if mode is None:
        mode = "no-network" if environment.get("allow_internet") is False else "public"
    for table in (environment, _table(config, "agent"), _table(config, "verifier")):
        if table.get("network_mode") not in {None, mode} or table.get("allowed_hosts"):
            raise BadRowError("task.toml: network_mode", "one for the whole task is needed, without allowed hosts")
    if mode not in {"public", "no-network"}:
        raise BadRowError("task.toml: environment.network_mode", f"expected public or no-network, found {shown(mode)}")
    return bool(mode == "public")


def _number(table: dict[str, Any], field: str) -> float | None:
    value = table.get(field.rpartition(".")[2])
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise BadRowError(f"task.toml: {field}", f"expected a number above 0, found {shown(value)}")
    return float(value)


def _mib(table: dict[str, Any], name: str) -> int | None:
    """``memory_mb``, or the older ``memory`` = "2G"."""
    number = _number(table, f"environment.{name}_mb")
    old = table.get(name)
    if number is not None or old is None:
        return None if number is None else math.ceil(number)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([GMK])B?\s*", str(old).upper())
    if match is None:
        raise BadRowError(f"task.toml: environment.{name}", f'expected a size like "2G", found {shown(old)}')
    return math.ceil(float(match[1]) * {"G": 1024, "M": 1, "K": 1 / 1024}[match[2]])

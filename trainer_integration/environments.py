"""What the bridges to agents that bring their own loop share: an environment, held for as long as its sandbox."""

from contextlib import ExitStack
from pathlib import Path

from minisandbox_ray.environments import Environment, build_environment
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.sandbox import SandboxSpec
from minisandbox_ray.tasks import Task, load_tasks, require_environments


def held(
    spec: SandboxSpec, environment: str | Path | None = None, tasks: Path | None = None, task: str = ""
) -> tuple[SandboxSpec, ExitStack]:
    """The sandbox that an agent gets, with `spec` on top, and what keeps its environment.

    It is that of the task whose instance_id is `task` in the file `tasks`, else that of `environment`, else `spec`
    alone. Raises ConfigError and other MiniSandboxErrors.
    """
    if tasks is not None:
        base, lease = held_task(named_task(tasks, task))
    elif environment is not None:
        built, lease = held_environment(environment)
        base = built.sandbox_spec()
    else:
        return spec, ExitStack()
    return over(base, spec), lease


def named_task(tasks: Path, task: str) -> Task:
    """That of a file with this instance_id. Raises ConfigError if there is none, or it names no environment."""
    known = {each.instance_id: each for each in load_tasks(tasks)}
    if task not in known:
        raise ConfigError(f"no task {task or '(none named)'} in {tasks}")
    require_environments([known[task]])
    return known[task]


def held_environment(name: str | Path) -> tuple[Environment, ExitStack]:
    """The materialised environment, and what keeps it.

    `name` is a digest, or a YAML file with the fields of EnvSpec (.yaml, .yml) that is built on first use. Raises
    MiniSandboxError.
    """
    from minisandbox_ray.cli.inputs import archives_and_store, read_spec

    archives, store = archives_and_store()
    digest = str(name)
    if Path(name).suffix in {".yaml", ".yml"}:
        digest = build_environment(read_spec(Path(name)), archives, store).digest
    lease = ExitStack()
    return lease.enter_context(store.use(digest, archives)), lease


def held_task(task: Task) -> tuple[SandboxSpec, ExitStack]:
    """The sandbox that an agent gets to solve a task, and what keeps its environment. Raises MiniSandboxError."""
    from minisandbox_ray.cli.inputs import archives_and_store

    archives, store = archives_and_store()
    lease = ExitStack()
    environment = lease.enter_context(store.use(task.environment, archives))
    try:
        layer = None if task.script else store.derive(environment, task.patch)
        return environment.sandbox_spec(layer=layer), lease
    except BaseException:
        lease.close()
        raise


def over(base: SandboxSpec, spec: SandboxSpec) -> SandboxSpec:
    """`spec` on top of what an environment brings: overlays and binds come after, variables and what is set win."""
    return spec.model_copy(
        update={
            "overlays": [*base.overlays, *spec.overlays],
            "binds": [*base.binds, *spec.binds],
            "env": {**base.env, **spec.env},
            **{name: getattr(base, name) for name in ("network", "hosts") if name not in spec.model_fields_set},
        }
    )

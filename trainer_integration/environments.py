"""What the bridges to agents that bring their own loop share: an environment, held for as long as its sandbox."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from minisandbox_ray.environments import Environment, build_environment
from minisandbox_ray.environments.services import start_services
from minisandbox_ray.environments.spec import Service
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.sandbox import Sandbox, SandboxSpec
from minisandbox_ray.tasks import Task, load_tasks, require_environments


def open_held(
    spec: SandboxSpec, environment: str | Path | None = None, tasks: Path | None = None, task: str = ""
) -> tuple[Sandbox, ExitStack]:
    """The sandbox that an agent gets, with `spec` on top and its environment's services serving, and what to close.

    It is that of the task whose instance_id is `task` in the file `tasks`, else that of `environment`, else `spec`
    alone. Raises ConfigError and other MiniSandboxErrors.
    """
    with ExitStack() as lease:
        services: list[Service] = []
        if tasks is not None or environment is not None:
            chosen = None if tasks is None else named_task(tasks, task)
            built, base = lease.enter_context(_held(chosen, environment))
            spec, services = over(base, spec), built.manifest.spec.services
        sandbox = start_services(Sandbox(spec), services)
        lease.callback(sandbox.close)
        return sandbox, lease.pop_all()


def named_task(tasks: Path, task: str) -> Task:
    """That of a file with this instance_id. Raises ConfigError if there is none, or it names no environment."""
    known = {each.instance_id: each for each in load_tasks(tasks)}
    if task not in known:
        raise ConfigError(f"no task {task or '(none named)'} in {tasks}")
    require_environments([known[task]])
    return known[task]


@contextmanager
def _held(task: Task | None, environment: str | Path | None) -> Iterator[tuple[Environment, SandboxSpec]]:
    """The materialised environment of a task, or one by its digest or by a YAML file with the fields of EnvSpec (.yaml,
    .yml) that is built on first use; with what a sandbox of it has."""
    from minisandbox_ray.cli.inputs import archives_and_store, read_spec

    archives, store = archives_and_store()
    digest = task.environment if task else str(environment)
    if not task and Path(digest).suffix in {".yaml", ".yml"}:
        digest = build_environment(read_spec(Path(digest)), archives, store).digest
    with store.use(digest, archives) as built:
        layer = store.derive(built, task.patch) if task and not task.script else None
        yield built, built.sandbox_spec(layer=layer)


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

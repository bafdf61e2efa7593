"""What the bridges to agents that bring their own loop share: an environment, held for as long as its sandbox."""

from contextlib import ExitStack
from pathlib import Path

from minisandbox_ray.environments import Environment, build_environment
from minisandbox_ray.sandbox import SandboxSpec
from minisandbox_ray.tasks import Task


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
        return environment.sandbox_spec(layer=store.derive(environment, task.patch)), lease
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

"""Services of an environment (a web server that its tests want, say): they run inside each sandbox made from it."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from minisandbox_ray.environments.spec import Service
from minisandbox_ray.errors import SandboxError, TaskError
from minisandbox_ray.sandbox import Limits, Sandbox

if TYPE_CHECKING:
    from minisandbox_ray.environments.store import Environment

PLACE = "/opt/services"
"""Where their venvs and files are, inside; nobody can write there."""
READY_SECONDS = 60.0
"""For one service to serve."""
_LOG_CHARS = 500

_START = 'exec setsid -f /bin/sh -c "$1" > "$2" 2>&1 < /dev/null'
_ACCEPTS = "until (exec 3<>/dev/tcp/127.0.0.1/$1) 2> /dev/null; do sleep 0.02; done"
_SUCCEEDS = 'until /bin/sh -c "$1" > /dev/null 2>&1; do sleep 0.05; done'


def open_sandbox(
    env: "Environment", *, limits: Limits | None = None, layer: Path | None = None, shell: bool = True
) -> Sandbox:
    """A sandbox over the environment, with a task's `layer` over its repository and its services serving; `shell` as
    for Sandbox.

    Raises SandboxError; TaskError for a service that does not come up.
    """
    sandbox = Sandbox(env.sandbox_spec(limits=limits, layer=layer), shell=shell)
    return start_services(sandbox, env.manifest.spec.services)


def start_services(sandbox: Sandbox, services: Iterable[Service]) -> Sandbox:
    """The sandbox, once they serve in it; closed if one does not. Raises SandboxError; TaskError for such a service."""
    try:
        for service in services:
            _start(sandbox, service)
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def _start(sandbox: Sandbox, service: Service) -> None:
    if sandbox.is_confined:
        raise SandboxError(
            f"the service {service.name} needs a network of its own, which a sandbox without namespaces does not have"
        )
    home, log = f"{PLACE}/{service.name}", f"/tmp/{service.name}.log"
    variables = {
        "VIRTUAL_ENV": home,
        "PATH": f"{home}/bin:{sandbox.spec.env.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
    }
    sandbox.execute(["/bin/sh", "-c", _START, "sh", service.command, log], cwd="/", env=variables)
    if not service.ready:
        return
    check = _ACCEPTS if isinstance(service.ready, int) else _SUCCEEDS
    argv = ["/bin/bash", "-c", check, "bash", str(service.ready)]
    if sandbox.execute(argv, cwd="/", env=variables, timeout=READY_SECONDS).exit_code:
        log_text = sandbox.execute(["/usr/bin/tail", "-c", str(_LOG_CHARS), log], cwd="/").stdout
        printed = " ".join(log_text.decode(errors="replace").split())
        raise TaskError(f"the service {service.name} does not serve after {READY_SECONDS:.0f} s; it printed: {printed}")

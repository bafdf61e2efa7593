"""The pools that run on the connected Ray cluster: for those who look at them, or end them."""

import contextlib
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from minisandbox_ray.cluster.scheduler import NAMESPACE, STOP_SECONDS
from minisandbox_ray.errors import ClusterError, ConfigError, first_line

ASK_SECONDS = 15.0


def pool_names() -> list[str]:
    """Of all pools; a driver's own is called ``private-…``."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted(each["name"] for each in actors if each["namespace"] == NAMESPACE and "/" not in each["name"])


def pool_stats(name: str) -> dict[str, Any]:
    """See `Pool.stats`. Raises ConfigError if there is no such pool, ClusterError if it does not answer."""
    try:
        return ray.get(_scheduler(name).stats.remote(), timeout=ASK_SECONDS)
    except (RayError, GetTimeoutError) as error:
        raise ClusterError(f"pool {name} does not answer: {first_line(error)}") from error


def stop_pool(name: str) -> None:
    """End a pool with all that its clients hold. Raises ConfigError if there is no such pool."""
    scheduler = _scheduler(name)
    with contextlib.suppress(RayError, GetTimeoutError):  # it is killed in any case
        ray.get(scheduler.close.remote(), timeout=2 * STOP_SECONDS)
    ray.kill(scheduler)
    for each in ray.util.list_named_actors(all_namespaces=True):
        if each["namespace"] == NAMESPACE and each["name"].startswith(f"{name}/"):
            ray.kill(ray.get_actor(each["name"], NAMESPACE))


def _scheduler(name: str) -> Any:
    try:
        return ray.get_actor(name, NAMESPACE)
    except ValueError as error:
        known = ", ".join(pool_names()) or "none"
        raise ConfigError(f"no pool {name} on this Ray cluster (there: {known})") from error

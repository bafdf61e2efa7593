"""Servers that tests want on their own machine: Debian's, run beside the tests in every sandbox of the environment."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from minisandbox_ray.environments import Service


@dataclass(frozen=True)
class Server:
    """One of them."""

    said: re.Pattern[str]
    """What failures say that miss it, and no other one."""
    packages: list[str]
    """Debian's, that have it."""
    service: Service


SERVERS = (
    Server(
        re.compile(
            r"redis\.exceptions\.ConnectionError|connect[^\n]{0,80}\b6379\b|\b6379\b[^\n]{0,80}(connect|refused)"
        ),
        ["redis-server"],
        Service(
            name="redis",
            command="cd /tmp && exec redis-server --bind 127.0.0.1 --port 6379 --save '' --appendonly no",
            ready=6379,
            hosts=["redis"],
        ),
    ),
)


def servers_missed(text: str) -> list[str]:
    """The names of the servers that failing tests could not reach."""
    return [each.service.name for each in SERVERS if each.said.search(text)]


def services(names: Iterable[str]) -> list[Service]:
    """As an environment's recipe has them."""
    return [each.service for each in SERVERS if each.service.name in names]


def packages(names: Iterable[str]) -> list[str]:
    """Debian's packages of them."""
    return [package for each in SERVERS if each.service.name in names for package in each.packages]

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


_POSTGRES = """
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH; data=$(mktemp -d) && chown 65534:65534 "$data" && cd "$data" || exit
as="setpriv --reuid 65534 --regid 65534 --clear-groups"
$as initdb -D "$data" -U postgres -A trust -E UTF8 --locale C --no-sync &&
echo 'create database test' | $as postgres --single -D "$data" postgres &&
exec $as postgres -D "$data" -h 127.0.0.1 -c unix_socket_directories=/tmp -c fsync=off
"""
"""It refuses to run as root. Whoever asks is its superuser, by any password."""


def _refused(port: int) -> re.Pattern[str]:
    """That nothing listens at a port, in the words of several clients."""
    return re.compile(rf"[Cc]onnect[^\n]{{0,120}}\b{port}\b|\b{port}\b[^\n]{{0,80}}(connect|refused)")


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
    Server(
        _refused(5432),
        ["postgresql"],
        Service(
            name="postgres",
            command=_POSTGRES,
            ready=5432,
            hosts=["postgres"],
            variables={"PGHOST": "127.0.0.1", "PGUSER": "postgres"},
        ),
    ),
    Server(
        _refused(11211),
        ["memcached"],
        Service(
            name="memcached",
            command="exec memcached -u root -l 127.0.0.1 -p 11211",
            ready=11211,
            hosts=["memcached"],
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

"""What clients, the scheduler of a pool, and its workers say to each other."""

from dataclasses import dataclass, field
from typing import Any

from minisandbox_ray.cluster.nodes import Node
from minisandbox_ray.errors import MiniSandboxError, Owner

# -- client to scheduler


@dataclass(frozen=True)
class Request:
    """Asks for a lease, whose name the client chooses: so it can take it back whatever has become of it."""

    lease_id: str
    environment: str | None
    slots: int
    avoid: frozenset[str]


@dataclass(frozen=True)
class Release:
    """Takes a request or a lease back."""

    lease_id: str
    reason: str = "it was released"
    is_closed: bool = False
    """The worker has closed what it hosted already, or never opened it."""


@dataclass(frozen=True)
class Suspect:
    """A call to a worker failed or was not answered."""

    worker_id: str


@dataclass(frozen=True)
class Failed:
    """An episode failed, for the counts."""

    owner: Owner


Message = Request | Release | Suspect | Failed


@dataclass(frozen=True)
class Client:
    """Who attaches."""

    client_id: str
    """A new one each time."""
    job_id: str
    """Of Ray's: when that job has ended, so has the client; empty for one that is no driver."""
    settings: dict[str, str]
    """See `scheduler.pool_settings`."""
    replaces: str = ""
    """The client's id before it lost the connection: whatever that still holds is given up."""


# -- scheduler to client


@dataclass(frozen=True)
class Attached:
    """What a client learns when it attaches."""

    nodes: list[Node]
    lease_seconds: float


@dataclass(frozen=True)
class Grant:
    """A lease."""

    lease_id: str
    worker_id: str
    actor: Any
    node: Node
    wait_seconds: float
    is_cold: bool
    """The node does not hold the environment yet; it is being unpacked."""


@dataclass(frozen=True)
class Ended:
    """A lease is no more, or (before it was granted) will not be."""

    lease_id: str
    reason: str


Event = Grant | Ended


@dataclass(frozen=True)
class Unpacked:
    """How an environment came to a node."""

    origin: str
    """See environments.provide.Provided."""
    seconds: dict[str, float] = field(default_factory=dict)
    """``slots`` (waiting for unpack slots), ``fetch``, ``unpack``, ``rebuild``."""
    unpacked_bytes: int = 0
    """0 if it was there already."""


# -- client to worker and back


@dataclass(frozen=True)
class Opening:
    """What a lease's first call brings along: how to make its object, and the environment that it needs."""

    environment: str | None
    """Digest of the environment; None needs none."""
    options: dict[str, Any]
    """Keyword arguments of the hosted class."""


@dataclass(frozen=True)
class Reply:
    """What a call came back with."""

    value: Any = None
    error: MiniSandboxError | None = None
    ended: bool = False
    """The hosted object has finished and is closed: the slot is free."""


@dataclass(frozen=True)
class Missing:
    """The call was not made: this node does not hold the lease's environment."""

    environment: str


# -- worker to scheduler


@dataclass(frozen=True)
class Report:
    """What a worker tells about itself and its node."""

    version: str
    """Of the package on that node."""
    pid: int
    held: frozenset[str]
    """Digests of the environments in the node's store."""
    store: dict[str, int]
    """``bytes``, ``budget_bytes``, ``free_bytes`` of the node's store."""
    hits: int
    """First calls of leases that found their environment."""
    misses: int

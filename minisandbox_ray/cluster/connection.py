"""Connecting to a Ray cluster, or starting one on this machine that leaves nothing behind."""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import ray

from minisandbox_ray.cluster import watcher
from minisandbox_ray.cluster.config import ClusterConfig
from minisandbox_ray.cluster.nodes import UNPACK_SLOTS, check_nodes, default_unpack_slots, sandbox_nodes
from minisandbox_ray.errors import ClusterError, ConfigError, first_line

# sockaddr_un holds 107 bytes; Ray appends "/session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store".
LONGEST_TEMPORARY_PATH = 107 - 67
REACH_SECONDS = 10.0


class Connection:
    """This process's connection to Ray; ``close`` ends it, and the cluster if it is this process's own."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._on_close: Callable[[], None] | None = on_close

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; a second call does nothing."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


def connect(config: ClusterConfig, run_dir: Path | None = None) -> Connection:
    """Connect this process to Ray as ``config.address`` says, or keep the connection that it already has.

    A local cluster keeps its temporary files in ``<run_dir>/ray`` (a temporary directory without ``run_dir``) and
    removes them when it ends, also after a SIGKILL of this process.

    Raises ConfigError when a node advertises no unpack slots or nothing answers at the address, ClusterError when Ray
    cannot be started.
    """
    address = config.address or os.environ.get("RAY_ADDRESS") or "local"
    if ray.is_initialized():
        connection = Connection(lambda: None)
    else:
        connection = _start_local(run_dir) if address == "local" else join(address)
    try:
        check_nodes(sandbox_nodes(config.exclude_labels))
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's handler of SIGTERM: Ray's aborts the process before Python can clean up."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread() and callable(handler):
        signal.signal(signal.SIGTERM, handler)


def join(address: str | None = None) -> Connection:
    """Connect this process to a Ray cluster that runs: at ``address``, else at ``RAY_ADDRESS``, else this machine's.

    Raises ConfigError when it cannot be reached.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit() and "://" not in address:  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
        with _own_sigterm():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(f"no Ray cluster at {address}: {first_line(error)}") from error
    return Connection(ray.shutdown)


def _start_local(run_dir: Path | None) -> Connection:
    directory, link = _temporary_directory(run_dir)
    watcher_fd = _start_watcher(directory, link)
    started = threading.Event()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

    def close() -> None:
        ray.shutdown()
        started.set()
        watcher.clean(directory, link)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watcher_fd, signal.SIGKILL)
        os.close(watcher_fd)

    def init() -> None:
        ray.init(
            address="local",
            resources={UNPACK_SLOTS: default_unpack_slots(os.cpu_count() or 1)},
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(link),
        )

    try:
        with _own_sigterm():
            _in_lasting_thread(init, until=started)
    except BaseException as error:
        close()
        if isinstance(error, Exception):
            raise ClusterError(f"Ray could not be started on this machine: {first_line(error)}") from error
        raise
    return Connection(close)


def _temporary_directory(run_dir: Path | None) -> tuple[Path, Path]:
    """The directory of Ray's temporary files, and a short link to it: Ray's socket paths must fit sockaddr_un."""
    if run_dir is None:
        directory = Path(tempfile.mkdtemp(prefix="minisandbox-ray-"))
    else:
        directory = run_dir.resolve() / "ray"
        if directory.exists() and watcher.cluster_processes(directory):
            raise ConfigError(f"{directory} is in use by another run: choose another run_dir")
        directory.mkdir(parents=True, exist_ok=True)
    name = f"msr-{secrets.token_hex(4)}"
    link = Path(tempfile.gettempdir()) / name
    if len(os.fsencode(link)) > LONGEST_TEMPORARY_PATH:
        link = Path("/tmp") / name
    link.symlink_to(directory)
    return directory, link


def _start_watcher(directory: Path, link: Path) -> int:
    """Start the detached process that cleans up after this one; returns its pidfd."""
    command = [sys.executable, "-I", "-S", watcher.__file__, str(os.getpid()), str(directory), str(link)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        return os.pidfd_open(int(process.stdout.readline()))


def _in_lasting_thread(function: Callable[[], None], until: threading.Event) -> None:
    """Call ``function`` in a thread that lives until the event: Ray's servers are killed when the thread that started
    them ends (PR_SET_PDEATHSIG counts threads, prctl(2)). The main thread is one already."""
    if threading.current_thread() is threading.main_thread():
        function()
        return
    outcome: Future[None] = Future()

    def hold() -> None:
        try:
            function()
            outcome.set_result(None)
        except BaseException as error:
            outcome.set_exception(error)
        until.wait()

    threading.Thread(target=hold, name="ray-parent", daemon=True).start()
    outcome.result()

"""Open a terminal in a sandbox, or run one command in it."""

import argparse
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

from minisandbox_ray.cli.inputs import add_isolation, archives_and_store, build_spec, find_task, read_spec
from minisandbox_ray.environments.services import open_sandbox
from minisandbox_ray.sandbox import Sandbox, SandboxSpec, Terminal, check_supported

_CHUNK = 65536
_LONGEST_COMMAND = 24 * 3600  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A task's sandbox, an environment's, or (neither) one with the host's programs alone."""
    add_isolation(parser)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--task", metavar="TASK", help="instance id of a task made before, or TASKS.jsonl:ID")
    place.add_argument("--env", metavar="SPEC", type=Path, help="YAML file with the fields of EnvSpec")
    parser.add_argument("-c", dest="command", metavar="COMMAND", help="run this in bash and exit with its status")


def run(arguments: argparse.Namespace) -> int:
    """The exit status of the command, or of the terminal's bash."""
    check_supported(arguments.isolation)
    with _sandbox(arguments) as sandbox:
        is_interactive = arguments.command is None
        argv = ["bash"] if is_interactive else ["bash", "-c", arguments.command]
        if sys.stdin is None or not sys.stdin.isatty():
            return _execute(sandbox, argv)
        if is_interactive:
            argv += ["--norc", "-i"]
            print(f"in the sandbox at {sandbox.spec.cwd}; exit or Ctrl-D leaves and removes it", file=sys.stderr)
        size = shutil.get_terminal_size()
        return attach(sandbox.open_terminal(argv, rows=size.lines, columns=size.columns, env={"PS1": r"sandbox:\w\$ "}))


@contextlib.contextmanager
def _sandbox(arguments: argparse.Namespace) -> Iterator[Sandbox]:
    archives, store = archives_and_store(arguments.isolation)
    if arguments.task is not None:
        task = find_task(arguments.task)
        with store.use(task.environment, archives) as environment:
            layer = None if task.script else store.derive(environment, task.patch)
            with open_sandbox(environment, layer=layer) as sandbox:
                yield sandbox
    elif arguments.env:
        manifest = build_spec(read_spec(arguments.env), arguments.isolation)
        with store.use(manifest.digest, archives) as environment, open_sandbox(environment) as sandbox:
            yield sandbox
    else:
        with Sandbox(SandboxSpec(isolation=arguments.isolation)) as sandbox:
            yield sandbox


def _execute(sandbox: Sandbox, argv: list[str]) -> int:
    """Like ``ssh host command``: this process's streams are the command's, through pipes."""
    streams = {number: file.fileno() for number, file in ((1, sys.stdout), (2, sys.stderr)) if file}

    def relay(number: int, data: bytes) -> None:
        while data and number in streams:
            data = data[os.write(streams[number], data) :]

    source = sys.stdin.fileno() if sys.stdin else b""
    return sandbox.execute(argv, stdin=source, timeout=_LONGEST_COMMAND, max_output=0, on_output=relay).exit_code


def attach(terminal: Terminal) -> int:
    """Relay between this process's terminal and the sandbox's until its program ends; -> its exit status."""
    source = sys.stdin.fileno()
    before = termios.tcgetattr(source)

    def resize(*_: object) -> None:
        size = shutil.get_terminal_size()
        terminal.resize(size.lines, size.columns)

    def terminate(*_: object) -> None:
        raise SystemExit(143)

    old = {number: signal.signal(number, terminate) for number in (signal.SIGTERM, signal.SIGHUP)}
    old[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, resize)
    try:
        tty.setraw(source)
        poller = select.poll()
        for descriptor in (terminal.descriptor, terminal.ended, source):
            poller.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            # What it printed comes before its end; jobs that it left behind may hold the terminal for ever.
            if terminal.descriptor in ready:
                try:
                    data = os.read(terminal.descriptor, _CHUNK)
                except OSError:  # EIO: the last program on the terminal has ended
                    return terminal.wait()
                os.write(sys.stdout.fileno(), data)
            elif terminal.ended in ready:
                return terminal.wait()
            if source in ready:
                data = os.read(source, _CHUNK)
                if not data:  # this process's terminal was hung up
                    return 129
                os.write(terminal.descriptor, data)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        termios.tcsetattr(source, termios.TCSADRAIN, before)
        terminal.close()

"""Parses the command line and runs one verb.

Exit status: the verb's own; 2 for bad input, 1 for a failure of ours (both one line, no traceback); 130 on Ctrl-C.
"""

import argparse
import os
import sys

from minisandbox_ray import __version__
from minisandbox_ray.cli import (
    build,
    cache,
    doctor,
    evaluate,
    factory,
    pool,
    report,
    rollout,
    shell,
    status,
    task,
    trajectories,
    validate,
)
from minisandbox_ray.cli.terminal import plain
from minisandbox_ray.errors import ConfigError, MiniSandboxError, named_wrong

VERBS = {
    "shell": shell,
    "build": build,
    "factory": factory,
    "task": task,
    "validate": validate,
    "rollout": rollout,
    "evaluate": evaluate,
    "trajectories": trajectories,
    "report": report,
    "status": status,
    "pool": pool,
    "cache": cache,
    "doctor": doctor,
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m minisandbox_ray")
    parser.description = (
        "Container-free sandboxes and rollouts for SWE agents. Training: python -m minisandbox_ray.train"
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, module in VERBS.items():
        text = (module.__doc__ or "").strip().splitlines()[0]
        sub = verbs.add_parser(name, help=text, description=text)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except MiniSandboxError as error:
        print(plain(f"minisandbox_ray {arguments.verb}: {error}"), file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:  # who read our output has gone, as in `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if not (complaint := named_wrong(error)):
            raise
        print(plain(f"minisandbox_ray {arguments.verb}: {complaint}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"minisandbox_ray {arguments.verb}: interrupted", file=sys.stderr)
        return 130

"""``python -m minisandbox_ray.train config=FILE [key=value …]``: train a policy on tasks in sandboxes.

Exit status: 0; 2 for a mistake in the configuration; 1 for other failures; 130 after Ctrl-C, 143 after SIGTERM.
"""

import os
import signal
import sys
from typing import NoReturn

from minisandbox_ray.errors import ConfigError, MiniSandboxError


def main(arguments: list[str]) -> int:
    """Load the configuration and hand it to the bridge to SkyRL, the only trainer there is."""
    signal.signal(signal.SIGTERM, _terminate)
    # Read when tqdm and loguru are imported: the terminal is for one line per training step.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("LOG_LEVEL", "ERROR")
    try:
        from minisandbox_ray.config import load_config

        config = load_config(arguments)
        from trainer_integration.skyrl.bridge import run

        run(config)
    except ConfigError as error:
        return _complain(error, status=2)
    except MiniSandboxError as error:
        return _complain(error, status=1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _complain(error: MiniSandboxError, status: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return status


def _terminate(*_: object) -> NoReturn:
    # `ray job stop` and `kill` ask for the same clean end as Ctrl-C.
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

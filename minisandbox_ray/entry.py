"""What the programs that train have in common: exit statuses, signals, errors in a line."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from minisandbox_ray.errors import ConfigError, MiniSandboxError, named_wrong


def run_program(work: Callable[[], None]) -> int:
    """Do it -> exit status: 0; 2 for a mistake in the configuration, or SkyRL missing; 1 for other failures; 130 after
    Ctrl-C. SIGTERM ends it in an orderly way with 143."""
    signal.signal(signal.SIGTERM, _terminate)
    # Read when tqdm and loguru are imported: the terminal is for one line per training step.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("LOG_LEVEL", "ERROR")
    try:
        work()
    except MiniSandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "skyrl":
            raise
        print("error: SkyRL is not installed: pip install 'minisandbox-ray[skyrl]'", file=sys.stderr)
        return 2
    except OSError as error:
        if not (complaint := named_wrong(error)):
            raise
        print(f"error: {complaint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _terminate(*_: object) -> NoReturn:
    # `ray job stop` and `kill` ask for the same clean end as Ctrl-C.
    raise SystemExit(143)

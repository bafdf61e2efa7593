"""``python -m minisandbox_ray.sft config=FILE [key=value …]``: fine-tune a model on solved trajectories.

Exit status: 0; 2 for a mistake in the configuration; 1 for other failures; 130 after Ctrl-C, 143 after SIGTERM.
"""

import os
import signal
import sys
from typing import NoReturn

from minisandbox_ray.errors import ConfigError, MiniSandboxError


def main(arguments: list[str]) -> int:
    """Load the configuration and hand it to SkyRL's trainer."""
    signal.signal(signal.SIGTERM, _terminate)
    # Read when tqdm and loguru are imported: the terminal is for one line per training step.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("LOG_LEVEL", "ERROR")
    try:
        from trainer_integration.skyrl.sft import load, run

        run(load(arguments))
    except (ConfigError, MiniSandboxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except ImportError as error:
        if "skyrl" not in str(error):
            raise
        print("error: SkyRL is not installed: pip install 'minisandbox-ray[skyrl]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

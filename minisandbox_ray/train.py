"""``python -m minisandbox_ray.train config=FILE [key=value …]``: train a policy on tasks in sandboxes.

Exit status: 0; 2 for a mistake in the configuration; 1 for other failures; 130 after Ctrl-C, 143 after SIGTERM.
"""

import sys

from minisandbox_ray.entry import run_program


def main(arguments: list[str]) -> int:
    """Load the configuration and hand it to the bridge to SkyRL, the only trainer there is."""

    def work() -> None:
        from minisandbox_ray.config import load_config

        config = load_config(arguments)
        from trainer_integration.skyrl.bridge import run

        run(config)

    return run_program(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

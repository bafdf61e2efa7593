"""``python -m minisandbox_ray.sft config=FILE [key=value …]``: fine-tune a model on solved trajectories.

Exit status: 0; 2 for a mistake in the configuration; 1 for other failures; 130 after Ctrl-C, 143 after SIGTERM.
"""

import sys

from minisandbox_ray.entry import run_program


def main(arguments: list[str]) -> int:
    """Load the configuration and hand it to SkyRL's trainer."""

    def work() -> None:
        from trainer_integration.skyrl.process import quieten

        quieten()  # before SkyRL's modules are imported: each tells of what it lacks
        from trainer_integration.skyrl.sft import load, run

        run(load(arguments))

    return run_program(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

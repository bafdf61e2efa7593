"""SWE-agent's command line on sandboxes: ``python -m trainer_integration.swe_agent run|run-batch|run-replay …``; and
``import-traj``, which takes over its trajectories.

Arguments, configuration files and outputs are SWE-agent's own; its package is used as it is, through public classes:
RunSingle, RunBatch and RunReplay get configurations whose deployment is ours (`instances.py`).
"""

import sys
import warnings

from minisandbox_ray.errors import ConfigError, MiniSandboxError
from trainer_integration.swe_agent import trajectories

USAGE = """\
usage: python -m trainer_integration.swe_agent run|run-batch|run-replay [SWE-agent's arguments]
       python -m trainer_integration.swe_agent import-traj OUTPUT_DIR GRADED --out DIR
Everything else is `sweagent`'s."""
VERBS = {"r": "run", "b": "run-batch"}


def main(arguments: list[str]) -> int:
    """SWE-agent's verbs that start an environment, and ours; 2 for bad input of ours, 1 for a failure of ours."""
    verb = VERBS.get(arguments[0], arguments[0]) if arguments else ""
    if verb not in {"run", "run-batch", "run-replay", "import-traj"}:
        print(USAGE, file=sys.stderr)
        return 0 if verb in {"-h", "--help"} else 2
    try:
        if verb == "import-traj":
            trajectories.main(arguments[1:])
        else:
            _run(verb, arguments[1:])
    except MiniSandboxError as error:
        print(f"swe_agent {verb}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _run(verb: str, arguments: list[str]) -> None:
    try:
        from . import runs
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sweagent":
            raise
        raise ConfigError("SWE-agent is not installed here; docs/agents.md says how") from error
    # It writes configurations by the models of its own fields, where a deployment is one of SWE-ReX's.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    {"run": runs.single, "run-batch": runs.batch, "run-replay": runs.replay}[verb](arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

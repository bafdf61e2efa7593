"""SWE-agent's command line on sandboxes: ``python -m trainer_integration.swe_agent run|run-batch|run-replay …``.

Arguments, configuration files and outputs are SWE-agent's own; its package is used as it is, through public classes:
RunSingle, RunBatch and RunReplay get configurations whose deployment is ours (`instances.py`).
"""

import sys
import warnings

from minisandbox_ray.errors import ConfigError, MiniSandboxError

USAGE = "usage: python -m trainer_integration.swe_agent run|run-batch|run-replay [SWE-agent's arguments]"
VERBS = {"r": "run", "b": "run-batch"}


def main(arguments: list[str]) -> int:
    """SWE-agent's verbs that start an environment; 2 for bad input of ours, 1 for a failure of ours."""
    verb = VERBS.get(arguments[0], arguments[0]) if arguments else ""
    if verb not in {"run", "run-batch", "run-replay"}:
        print(f"{USAGE}\nEverything else is `sweagent`'s.", file=sys.stderr)
        return 0 if verb in {"-h", "--help"} else 2
    try:
        from . import runs
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sweagent":
            raise
        print("swe_agent: SWE-agent is not installed here; docs/agents.md says how", file=sys.stderr)
        return 2
    # It writes configurations by the models of its own fields, where a deployment is one of SWE-ReX's.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    try:
        {"run": runs.single, "run-batch": runs.batch, "run-replay": runs.replay}[verb](arguments[1:])
    except MiniSandboxError as error:
        print(f"swe_agent {verb}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

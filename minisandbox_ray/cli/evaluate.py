"""Grade patches that some agent made elsewhere: preds.json or all_preds.jsonl."""

import argparse
from pathlib import Path

from minisandbox_ray.cli.inputs import read_tasks
from minisandbox_ray.cli.rollout import add_batch_arguments, check_positive, play_batch, write_report
from minisandbox_ray.errors import ConfigError
from minisandbox_ray.tasks import require_environments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``PREDICTIONS`` in SWE-bench's form; ``TASKS`` as for rollout."""
    parser.add_argument(
        "predictions", metavar="PREDICTIONS", type=Path, help="JSON or JSON lines with instance_id and model_patch"
    )
    parser.add_argument("tasks", metavar="TASKS", help="tasks.jsonl, or a training configuration (YAML)")
    add_batch_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write a report in SWE-bench's form, and print a summary; 0 whatever the patches are worth."""
    from minisandbox_ray.rollout.predictions import predictions_policy, read_predictions
    from minisandbox_ray.rollout.results import make_report

    check_positive(arguments, "concurrency")
    predictions, name = read_predictions(arguments.predictions)
    tasks = {task.instance_id: task for task in read_tasks(arguments.tasks, arguments.isolation)}
    unknown = [instance_id for instance_id in predictions if instance_id not in tasks]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise ConfigError(f"{arguments.tasks} has no task {', '.join(unknown[:3])}{more} of {arguments.predictions}")
    empty = [key for key, prediction in predictions.items() if not (prediction.model_patch or "").strip()]
    wanted = [(tasks[key], 0) for key in predictions if key not in empty]
    require_environments([task for task, _ in wanted])
    rows, path = play_batch(arguments, wanted, (name, predictions_policy(predictions), 2), 0)
    failed = {row.instance_id: "the patch does not apply" for row in rows if row.turns and row.turns[0].exit_code}
    report = make_report(tasks, rows, empty, failed)
    written = write_report(path.parent, report)
    counts = ", ".join(
        f"{report[f'{kind}_instances']} {kind}" for kind in ("resolved", "unresolved", "empty_patch", "error")
    )
    print(f"{len(predictions)} of {len(tasks)} tasks have a prediction: {counts} | {written}")
    return 0

#!/usr/bin/env bash
# A hundred tasks by the gold fix, by nothing, and by the gold fix with a SIGKILL in the middle and a rerun:
#   docs/runs/rollout.sh TASKS.jsonl DIRECTORY
# TASKS are those of `python -m minisandbox_ray factory configs/factory.yaml --out TASKS.jsonl`. What it printed: rollout.txt.
set -euo pipefail
mkdir -p "$2"
tasks=$1 out=$2
play() { python -m minisandbox_ray rollout "$tasks" --limit 100 "$@" 2>/dev/null | sed 's/ |.*//'; }
say() { printf '\n== %s\n' "$1"; }

say "--policy gold"
play --policy gold --output "$out/gold"
say "--policy empty"
play --policy empty --output "$out/empty"

say "--policy gold, killed after forty or more"
python -m minisandbox_ray rollout "$tasks" --limit 100 --policy gold --output "$out/killed" >/dev/null 2>&1 &
pid=$!
finished() { cat "$out/killed/trajectories.jsonl" 2>/dev/null | wc -l; }
until [ "$(finished)" -ge 40 ]; do sleep 0.2; done
kill -KILL $pid
{ wait $pid; } 2>/dev/null || true
cp "$out/killed/trajectories.jsonl" "$out/before.jsonl"
echo "killed after $(finished) trajectories"
say "run again"
play --policy gold --output "$out/killed"
python - "$out/before.jsonl" "$out/killed/trajectories.jsonl" <<'END'
import sys
from pathlib import Path
before, after = (Path(path).read_bytes() for path in sys.argv[1:])
whole = before[: before.rfind(b"\n") + 1]
print("what was finished is there as it was:", after.startswith(whole), "| trajectories:", after.count(b"\n"))
END

#!/usr/bin/env bash
# mini-swe-agent's batch runner on twenty tasks, eight at a time, with a model that knows the answers:
#   PATH=VENV/bin:$PATH docs/runs/mini_swe_agent.sh TASKS.jsonl DIRECTORY [CHECKOUT]
# VENV has minisandbox-ray[mini-swe-agent] and pytest; CHECKOUT is mini-swe-agent's repository, for its tests. What it
# printed, with tasks of configs/factory.yaml: mini_swe_agent.txt.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$2/tasks" && cd "$2" && pwd)
export LITELLM_LOCAL_MODEL_COST_MAP=True MSWEA_COST_TRACKING=ignore_errors MSWEA_SILENT_STARTUP=1 HF_HOME=$out/hf
say() { printf '\n== %s\n' "$1"; }

# Of each package some.
awk 'NR % 6 == 1' "$1" | head -n 20 >"$out/tasks/tasks.jsonl"
python "$here/answers.py" "$out/tasks/tasks.jsonl" 8766 &
trap 'kill $!' EXIT
until (exec 3<>/dev/tcp/127.0.0.1/8766) 2>/dev/null; do sleep 0.2; done

say "mini-extra swebench: $(wc -l <"$out/tasks/tasks.jsonl") tasks, 8 at a time"
started=$SECONDS
mini-extra swebench -c swebench_backticks.yaml -c "$here/../../configs/agents/mini_swe_agent.yaml" \
    -c environment.tasks="$out/tasks/tasks.jsonl" -c model.model_kwargs.api_base=http://127.0.0.1:8766/v1 \
    -c model.model_kwargs.api_key=none --subset "$out/tasks" --split train --workers 8 --model openai/answers \
    --model-class litellm_textbased -o "$out/run" >"$out/run.log" 2>&1
echo "$((SECONDS - started)) s"
cat "$out"/run/exit_statuses_*.yaml
say "its predictions, graded"
python -m minisandbox_ray evaluate "$out/run/preds.json" "$out/tasks/tasks.jsonl" --output "$out/graded" 2>/dev/null |
    tail -n 1 | sed 's/ |.*//'

if [ -n "${3:-}" ]; then
    say "mini-swe-agent's own tests of an environment"
    MINI_SWE_AGENT=$3 python -m pytest -q -p no:cacheprovider "$here/mini_swe_agent_tests.py" 2>&1 | tail -n 1
fi

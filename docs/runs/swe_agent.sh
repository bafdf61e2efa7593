#!/usr/bin/env bash
# SWE-agent's command line on three tasks of SWE-bench Verified, with a model that knows the answers:
#   SWE_AGENT=CHECKOUT PATH=VENV/bin:$PATH docs/runs/swe_agent.sh SWE-bench_Verified.parquet CLONES DIRECTORY
# VENV has SWE-agent 1.1 (of that checkout), minisandbox-ray[swe-agent,datasets,swebench] and pytest; CLONES the
# repositories. What it printed: swe_agent.txt.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
data=$1 clones=$2 out=$(mkdir -p "$3" && cd "$3" && pwd)
export LITELLM_LOCAL_MODEL_COST_MAP=True
model=(--agent.model.name=openai/answers --agent.model.api_base=http://127.0.0.1:8765/v1 --agent.model.api_key=none
    --agent.model.per_instance_cost_limit=0 --agent.model.max_input_tokens=0)
say() { printf '\n== %s\n' "$1"; }

say "tasks, and wheels of what its tools install"
python -m minisandbox_ray build "$data" --repo-mirror "$clones" --out "$out/tasks.jsonl" \
    --only pallets__flask-5014,psf__requests-1142,pytest-dev__pytest-7432
for version in 3.9 3.11; do
    python -m pip download -qq --disable-pip-version-check --only-binary :all: --python-version $version \
        -d "$out/wheels" tree-sitter==0.21.3 tree-sitter-languages 2>/dev/null
done
python "$here/answers.py" "$out/tasks.jsonl" 8765 &
trap 'kill $!' EXIT
until (exec 3<>/dev/tcp/127.0.0.1/8765) 2>/dev/null; do sleep 0.2; done

say "run-batch: three tasks at once, by the tools registry, search, edit_anthropic and submit"
cat >"$out/tools.yaml" <<'END'
agent:
  tools:
    bundles: [{path: tools/registry}, {path: tools/search}, {path: tools/edit_anthropic}, {path: tools/submit}]
END
cd "$SWE_AGENT"
python -m trainer_integration.swe_agent run-batch --config config/default.yaml --config "$out/tools.yaml" \
    --instances.path "$out/tasks.jsonl" --instances.deployment.wheels="$out/wheels" --num_workers=3 \
    "${model[@]}" --output_dir="$out/batch" >"$out/batch.log" 2>&1
cat "$out/batch/run_batch_exit_statuses.yaml"
say "its predictions, graded"
python -m minisandbox_ray evaluate "$out/batch/preds.json" "$out/tasks.jsonl" --output "$out/graded" 2>/dev/null | tail -n 1 |
    sed 's/ |.*//'

say "run: one task, by its default configuration (filemap, and a review before it submits)"
python -m trainer_integration.swe_agent run --env.deployment.tasks="$out/tasks.jsonl" \
    --env.deployment.task=psf__requests-1142 --env.deployment.wheels="$out/wheels" "${model[@]}" \
    --output_dir="$out/single" >"$out/single.log" 2>&1
trajectory=$out/single/psf__requests-1142/psf__requests-1142.traj
python -c "import json, sys; t = json.load(open(sys.argv[1])); print(t['info']['exit_status'], len(t['trajectory']), 'steps')" \
    "$trajectory"

say "run-replay: that trajectory as a demonstration, again in a sandbox"
sweagent traj-to-demo "$trajectory" --output_dir "$out/demos" >/dev/null 2>&1
python -m trainer_integration.swe_agent run-replay --deployment.tasks="$out/tasks.jsonl" \
    --deployment.wheels="$out/wheels" --output_dir="$out/replayed" \
    --traj_path="$out/demos/psf__requests-1142/psf__requests-1142.demo.yaml" >"$out/replay.log" 2>&1
python - "$trajectory" "$out/replayed" <<'END'
import json, pathlib, sys
first = json.loads(pathlib.Path(sys.argv[1]).read_text())
again = json.loads(next(pathlib.Path(sys.argv[2]).rglob("*.traj")).read_text())
print("the same patch:", first["info"]["submission"] == again["info"]["submission"])
END

say "SWE-agent's own tests of its environment"
python -m pytest -q -p no:cacheprovider "$here/swe_agent_tests.py" 2>&1 | tail -n 1

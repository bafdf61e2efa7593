#!/usr/bin/env bash
# SmolLM2-135M-Instruct behind `transformers serve`, on a CPU, drives both action formats: bash as it comes, and calls
# in XML, which it does not write as it comes, after fine-tuning on the two tasks' own solutions. It then knows these by
# heart: what is shown is that both formats work from end to end, not skill.
#   PATH=VENV/bin:$PATH docs/runs/local_model.sh TASKS.jsonl DIRECTORY
# VENV has minisandbox-ray[smollm,openai] and transformers[serving]; TASKS are those of `factory configs/factory.yaml`.
# What it printed: local_model.txt.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$2" && cd "$2" && pwd)
export HF_HUB_OFFLINE=1
say() { printf '\n== %s\n' "$1"; }

# Two with short fixes.
sed -n '1p;5p' "$1" >"$out/tasks.jsonl"
printf '{tasks: %s, policy: null, episode: {max_turns: 4, observation_chars: 500}}\n' "$out/tasks.jsonl" >"$out/episodes.yaml"
bash_system='You repair Python packages. Answer with one shell command in a fenced bash block.'
xml_system='You repair Python packages by the functions bash(command), str_replace_editor(command, path, old_str, new_str) and
submit(). Answer with one call:

<function=bash>
<parameter=command>
ls
</parameter>
</function>'

play() { # DIRECTORY FORMAT POLICY
    python -m minisandbox_ray rollout "$out/episodes.yaml" --action-format "$2" --policy "$3" --output "$out/$1" 2>/dev/null |
        sed 's/ |.*//'
}

say "the solutions by calls, played"
python "$here/recordings.py" "$out/tasks.jsonl" >"$out/calls.jsonl"
play solved tools "$out/calls.jsonl"

say "fine-tuning on them"
[ -e "$out/sft/model" ] || python -m minisandbox_ray.sft config="$here/../../configs/sft_smollm_cpu.yaml" data="[$out/solved]" \
    system="$(python -c 'import json, sys; print(json.dumps(sys.argv[1]))' "$xml_system")" \
    run_dir="$out/sft" skyrl.batch_size=2 skyrl.num_steps=24 skyrl.optimizer_config.lr=2.0e-4 >"$out/sft.log" 2>&1
grep -E '^(step (1|8|16|24) |model:)' "$out/sft.log" | sed "s#$out/##g"

serve() { # CHECKPOINT
    transformers serve --host 127.0.0.1 --port 8767 --device cpu "$1" >"$out/serve.log" 2>&1 &
    server=$!
    trap 'kill $server 2>/dev/null' EXIT
    until (exec 3<>/dev/tcp/127.0.0.1/8767) 2>/dev/null; do sleep 0.5; done
}

drive() { # NAME CHECKPOINT FORMAT...
    serve "$2"
    for acts in "${@:3}"; do
        system=${acts}_system
        python - "$2" $acts "${!system}" >"$out/$acts.yaml" <<'END'
import json, sys
model, acts, system = sys.argv[1:]
asked = {"model": model, "base_url": "http://127.0.0.1:8767/v1", "sampling": {"temperature": 0, "max_tokens": 300}}
print(json.dumps({**asked, "acts": acts, "system": system}))
END
        say "$1, $acts"
        play "$1-$acts" "$([ $acts = bash ] && echo bash || echo tools)" "$out/$acts.yaml"
        python - "$out/$1-$acts/trajectories.jsonl" <<'END'
import json, sys
for line in open(sys.argv[1]):
    each = json.loads(line)
    acted = [" ".join(turn["action"].split())[:60] for turn in each["turns"]]
    print(each["instance_id"], "resolved" if each["resolved"] else "not resolved", acted)
END
    done
    kill $server
    wait $server 2>/dev/null || true
}
drive untuned "$(python -c 'from trainer_integration.skyrl.smollm import checkpoint; print(checkpoint())')" bash
drive tuned "$out/sft/model" xml

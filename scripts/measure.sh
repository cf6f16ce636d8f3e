#!/usr/bin/env bash
# Prints and keeps the reports of docs/results. Run it alone on the machine; about 45 minutes on
# two cores. Arguments: which of  bench sampled exact verify overhead server  (default: these), and
#   report: a page of cold, warm and other engines' ways to draft, llama-server too where it is on
#     PATH; 20 minutes more, and
#   replay TRACES: recorded sessions with sample.json and curves.json beside them; 45 minutes more.
# LLAMA_SERVER=PATH adds llama.cpp's server, and a draft model on both sides, to server.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
out=docs/results
want=" ${*:-bench sampled exact verify overhead server} "
traces=
if [[ ${1:-} == replay ]]; then
    traces=${2:?which folder holds the recorded sessions?}
    want=" replay "
fi
target=qwen2.5-coder-1.5b
tiny=smollm2-135m

report() { # report NAME COMMAND…: the text with the command that made it
    local name=$1
    shift
    { echo "\$ $*" && "$@"; } > "$out/$name.txt.part" || { cat "$out/$name.txt.part"; exit 1; }
    mv "$out/$name.txt.part" "$out/$name.txt"
    cat "$out/$name.txt"
}

if [[ $want == *" bench "* ]]; then
    report bench agentspec bench --model $target --draft none --repeat 2 --max-tokens 160 --out $out/bench.json
fi
if [[ $want == *" sampled "* ]]; then
    report bench-sampled agentspec bench --model $target --draft none --repeat 2 --max-tokens 160 --temperature 0.7 --out $out/bench-sampled.json
fi
if [[ $want == *" report "* ]]; then
    report bench-report agentspec bench --model $target --draft none --repeat 2 --max-tokens 160 --peers --report $out/bench-report.html --report $out/bench-report.png
fi
if [[ $want == *" verify "* ]]; then
    report verify-exact agentspec verify --exact --model $target --draft none --max-tokens 300 --out $out/verify-exact.json
    report verify agentspec verify --model $target --draft none --max-tokens 300 --out $out/verify.json
    report verify-smollm2 agentspec verify --model $tiny --max-tokens 320 --out $out/verify-smollm2.json
    report verify-exact-smollm2 agentspec verify --exact --model $tiny --max-tokens 320 --out $out/verify-exact-smollm2.json
fi
if [[ $want == *" exact "* ]]; then
    report bench-exact agentspec bench --exact --model $target --draft none --repeat 1 --max-tokens 160 --out $out/bench-exact.json
fi
if [[ $want == *" overhead "* ]]; then
    report overhead python -m agentspec.bench.overhead
fi
if [[ $want == *" server "* ]]; then
    theirs=()
    if [[ -n ${LLAMA_SERVER:-} ]]; then
        theirs=(--llama-server "$LLAMA_SERVER" --draft qwen2.5-coder-0.5b)
    fi
    python scripts/server_loop.py --model $target --repeat 2 "${theirs[@]}" --out $out/server-loop.json
    report server-loop python scripts/server_loop.py --again $out/server-loop.json
fi
if [[ $want == *" replay "* ]]; then
    sample=(--sample "$traces/sample.json" --curves "$traces/curves.json")
    priors=agentspec/control/priors.json
    held=$(mktemp -d)
    trap 'rm -rf "$held"' EXIT
    # every session is replayed with priors fitted on other sources only
    python -m agentspec.replay.fit "$traces" --start $priors --rounds 1 --jobs 2 --full-only --held-out "$held"
    run() { # run NAME OPTIONS…
        local name=$1
        shift
        agentspec replay "${sample[@]}" "$@" --jobs 2 --out "$out/replay-$name.json"
    }
    run held-out --curve all --cold --priors "$held" --plots $out/replay-plots
    run trees --curve flat --curve gpu-cliff --curve apple-7b-f16 --cold --leaves 8 --priors "$held"
    run warm --curve gpu-cliff --curve cpu2-1.5b-q4km --warm --priors "$held"
    sample=(--sample "$out/draft-model-sample.json" --curves "$traces/curves.json" "$traces")
    run draft-model --curve gpu-cliff --cold --draft qwen2.5-coder-0.5b --priors "$held"
    sample=(--sample "$traces/sample.json" --curves "$traces/curves.json")
    run ablation --curve flat --curve gpu-cliff --curve cpu2-1.5b-q4km --curve apple-7b-f16 --cold \
        --ablate edit --ablate syntax --ablate habits --ablate skeleton --ablate survival
    run fixed --curve all --cold --ablate k4 --ablate k8 --ablate k16
    run peers --curve all --cold --peers
fi

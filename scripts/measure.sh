#!/usr/bin/env bash
# Prints and keeps the reports of docs/results. Run it alone on the machine; about 30 minutes on
# two cores. Arguments: which of  bench exact verify overhead  (default: all).
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
out=docs/results
want=" ${*:-bench exact verify overhead} "
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

#!/usr/bin/env bash
# Trains Medusa heads, an EAGLE-1 layer and an exit adapter for SmolLM2-135M-Instruct.
# usage: scripts/train_smollm2_heads.sh AGENTSPEC [FOLDER] [OPTION…]
#
# AGENTSPEC is the command of an environment with the torch extra. Writes medusa/, eagle/ and exit/
# below FOLDER (default: smollm2-heads here), 23 MB together in float32; what is there already is
# kept, what was broken off goes on. The target's own head serves all of them: a vocabulary head of
# its own would be 113 MB for each Medusa head. Learns from the code and texts of this repository,
# and from what SMOLLM2_SESSIONS names: recorded sessions, or a folder of them. An OPTION is one of
# `agentspec train-heads`, as --seconds 600. On two cores each of the three may take 20 minutes;
# the first also generates the continuations that all three learn from.
set -euo pipefail
agentspec=$(command -v "${1:?usage: scripts/train_smollm2_heads.sh AGENTSPEC [FOLDER] [OPTION…]}")
agentspec=$(realpath -s "$agentspec")
folder=$(realpath -m "${2:-smollm2-heads}")
shift $(($# > 1 ? 2 : 1))
cd "$(dirname "$0")/.."

texts=()
for file in agentspec/*.py agentspec/chat/*.py agentspec/engine/*.py agentspec/server/*.py \
    examples/*.py docs/*.md README.md; do
    texts+=(--text "$file")
done
[ -z "${SMOLLM2_SESSIONS:-}" ] || texts+=(--sessions "$SMOLLM2_SESSIONS")

for kind in medusa eagle exit; do
    if [ -f "$folder/$kind/config.json" ] && [ ! -d "$folder/$kind/unfinished" ]; then
        echo "$folder/$kind is there already"
        continue
    fi
    own=()
    [ "$kind" != exit ] || own=(--layer 15)
    "$agentspec" train-heads smollm2-135m --kind "$kind" --out "$folder/$kind" \
        "${texts[@]}" "${own[@]}" "$@"
done

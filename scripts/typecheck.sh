#!/usr/bin/env bash
# Runs mypy over everything.
# usage: scripts/typecheck.sh PYTHON
#
# mypy follows folders, not setup.py, so it would not see adapters/ as agentspec.adapters. It is
# shown a folder of links in which the package looks as it does when it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
tree=.stamps/tree

rm -rf "$tree"
mkdir -p "$tree/agentspec"
for path in agentspec/*; do
    [ "${path##*/}" = __pycache__ ] || ln -s "$PWD/$path" "$tree/$path"
done
ln -s "$PWD/adapters" "$tree/agentspec/adapters"
ln -s "$PWD/prompts" "$tree/agentspec/prompts"

shopt -s nullglob
MYPYPATH=$tree "$python" -m mypy --cache-dir .mypy_cache/tree \
    "$tree/agentspec" tests examples/*.py scripts/*.py |
    sed -e "s#^$tree/agentspec/\(adapters\|prompts\)/#\1/#" -e "s#^$tree/##"

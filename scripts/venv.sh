#!/usr/bin/env bash
# Creates a virtual environment, or keeps the one that is there when it can be used.
# usage: scripts/venv.sh PYTHON FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
venv=$2
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    if ! "$venv/bin/python" -c "$new_enough"; then
        echo "error: $venv holds $("$venv/bin/python" -V 2>&1), agentspec needs 3.11 or newer;" \
            "remove $venv, or name another: make VENV=.venv311 …" >&2
        exit 1
    fi
elif ! command -v "$python" >/dev/null; then
    echo "error: there is no $python here; install Python 3.11 or newer," \
        "or name one: make PYTHON=/path/to/python3 …" >&2
    exit 1
elif ! "$python" -c "$new_enough"; then
    echo "error: $python is $("$python" -V 2>&1), agentspec needs 3.11 or newer;" \
        "name another: make PYTHON=python3.12 …" >&2
    exit 1
else
    echo "creating $venv with $("$python" -V 2>&1)"
    # Cleared: what is there, if anything, has no Python that runs.
    "$python" -m venv --clear "$venv" || {
        echo "error: $python could not create $venv; on Debian and Ubuntu:" \
            "sudo apt install python3-venv" >&2
        exit 1
    }
fi

# A set-up that was interrupted may have left the environment without pip.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip --upgrade >/dev/null
# --group came with pip 25.1.
"$venv/bin/python" -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (25, 1))' ||
    "$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1"

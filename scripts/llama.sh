#!/usr/bin/env bash
# Installs the pinned llama-cpp-python into a virtual environment, compiling it if need be.
# usage: scripts/llama.sh PYTHON_OF_THE_ENVIRONMENT LOG
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
log=$2

wanted=$(sed -n 's/^llama-cpp-python==//p' constraints.txt)
if [ -z "$wanted" ]; then
    echo "error: constraints.txt does not pin llama-cpp-python" >&2
    exit 1
fi

# Imported too: a library that was built against another machine's libc does not load.
check='import importlib.metadata as m, sys; import llama_cpp; sys.exit(m.version("llama_cpp_python") != sys.argv[1])'
if "$python" -c "$check" "$wanted" >/dev/null 2>&1; then
    exit 0
fi

if "$python" -m pip cache list --format=abspath llama_cpp_python 2>/dev/null | grep -q -- "-$wanted-"; then
    echo "llama-cpp-python $wanted: pip has kept the wheel of an earlier build, a few seconds"
    if [ -n "${CMAKE_ARGS:-}" ]; then
        echo "  it was built with the CMAKE_ARGS of that time; to build again with yours, first run:"
        echo "  $python -m pip cache remove llama_cpp_python"
    fi
else
    echo "llama-cpp-python $wanted: compiling llama.cpp once, about 7-13 minutes on two cores;"
    echo "  pip keeps the wheel, later environments take seconds. Log: $log"
fi

mkdir -p "$(dirname "$log")"
# Job control gives pip a process group, so that an interruption reaches the compilers below it.
set -m
# LLAVA is image input, which nothing here uses: it is almost half of the compile time.
CMAKE_ARGS="-DLLAVA_BUILD=OFF ${CMAKE_ARGS:-}" \
    "$python" -m pip install --verbose -c constraints.txt "llama-cpp-python==$wanted" \
    </dev/null >"$log" 2>&1 &
pip=$!

beat() {
    local start=$SECONDS pause
    # Ends with pip, also when this script was killed outright.
    while kill -0 "$pip" 2>/dev/null; do
        for ((pause = 0; pause < 30; pause++)); do
            sleep 1
            kill -0 "$pip" 2>/dev/null || return 0
        done
        printf '  still at it: %d:%02d min %s\n' $(((SECONDS - start) / 60)) \
            $(((SECONDS - start) % 60)) "$(grep -o '\[[0-9]*/[0-9]*\]' "$log" | tail -n 1 || true)"
    done
}
beat &
beat=$!
set +m

# An interrupted build leaves nothing behind but the log; the next run starts it again.
# INT rather than TERM: pip then removes its temporary folders.
trap 'kill -INT -- "-$pip" "-$beat" 2>/dev/null && wait "$pip" || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if ! wait "$pip"; then
    tail -n 30 "$log" >&2
    echo "error: llama-cpp-python $wanted could not be installed; the end of $log is above." >&2
    echo "  It needs a C and a C++ compiler (Debian, Ubuntu: sudo apt install build-essential;" >&2
    echo "  Fedora: sudo dnf install gcc-c++; macOS: xcode-select --install)." >&2
    exit 1
fi
if ! "$python" -c "$check" "$wanted"; then
    echo "error: llama-cpp-python $wanted was installed but does not load (above); to build it" >&2
    echo "  again: $python -m pip cache remove llama_cpp_python, then the same command" >&2
    exit 1
fi

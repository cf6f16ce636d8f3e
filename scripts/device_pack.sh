#!/usr/bin/env bash
# Gathers what scripts/device_check.py cannot find on a machine without a network.
# usage: scripts/device_pack.sh PYTHON [MODEL_FOLDER]
#
# Writes .device/ (which git ignores): llama.tar.gz, the sources of the pinned llama-cpp-python that
# a CUDA build needs and its binding; wheels/, pydantic for Python 3.12 on x86-64; model/, a small
# real model's folder where one is given. Everything must fit into 60 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:?usage: scripts/device_pack.sh PYTHON [MODEL_FOLDER]}
model=${2:-}
out=.device
mkdir -p "$out/wheels"

wanted=$(sed -n 's/^llama-cpp-python==//p' constraints.txt)
if [ ! -f "$out/llama.tar.gz" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    echo "llama-cpp-python $wanted: its sources"
    "$python" -m pip download --quiet --no-deps --no-binary=llama-cpp-python \
        "llama-cpp-python==$wanted" --dest "$work"
    tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
    source=$(echo "$work"/llama_cpp_python-*/)
    tree=$work/tree
    mkdir -p "$tree/llama.cpp/ggml/src" "$tree/llama_cpp"
    (
        cd "$source/vendor/llama.cpp"
        cp -r CMakeLists.txt LICENSE cmake include src common vendor "$tree/llama.cpp/"
        cd ggml
        cp -r CMakeLists.txt cmake include "$tree/llama.cpp/ggml/"
        cd src
        # of the backends only those of the CPU and of CUDA
        find . -maxdepth 1 -type f -exec cp {} "$tree/llama.cpp/ggml/src/" \;
        cp -r ggml-cpu ggml-cuda "$tree/llama.cpp/ggml/src/"
    )
    cp "$source"/llama_cpp/{llama_cpp,_ctypes_extensions,_ggml}.py "$tree/llama_cpp/"
    # the binding alone: its high-level classes want packages that are not there
    echo "__version__ = \"$wanted\"" >"$tree/llama_cpp/__init__.py"
    tar -czf "$out/llama.part" -C "$tree" llama.cpp llama_cpp
    mv "$out/llama.part" "$out/llama.tar.gz"
fi

if ! ls "$out"/wheels/pydantic-*.whl >/dev/null 2>&1; then
    echo "pydantic: wheels for Python 3.12"
    "$python" -m pip download --quiet --only-binary=:all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --dest "$out/wheels" pydantic platformdirs
fi

if [ -n "$model" ]; then
    [ -f "$model/config.json" ] || { echo "error: $model is no model folder" >&2; exit 1; }
    rm -rf "$out/model"
    mkdir "$out/model"
    cp "$model"/*.json "$model"/*.safetensors "$out/model/"
    find "$model" -maxdepth 1 -name 'merges.txt' -exec cp {} "$out/model/" \;
fi

size=$(du -sm "$out" | cut -f1)
echo "$out: $size MB"
if [ "$size" -gt 60 ]; then
    echo "error: more than 60 MB; carry a smaller model" >&2
    exit 1
fi

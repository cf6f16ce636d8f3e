"""Medusa heads from pickles: tensors come over, and whatever else is in a file does not run."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentspec.backends import torch_convert
from agentspec.errors import ModelFileError, ModelNotFoundError, PairMismatchError

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tests.eagle_checkpoints import write_eagle  # noqa: E402
from tests.head_files import as_vllm, medusa_tensors, write_published  # noqa: E402

pytestmark = pytest.mark.program


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that reads pickles, run here: to start another takes seconds."""
    from safetensors.torch import save_file

    from agentspec.backends import _unpickle

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        try:
            save_file(_unpickle.tensors_of(command[-2]), command[-1])
        except Exception as error:
            return subprocess.CompletedProcess(command, 1, _unpickle.reason(error).encode())
        return subprocess.CompletedProcess(command, 0, b"guarded")

    monkeypatch.setattr("agentspec.backends.torch_convert.subprocess.run", run)


PROGRAM = Path(torch_convert.__file__).with_name("_unpickle.py")


def test_published_heads_come_over_bit_for_bit(tmp_path: Path) -> None:
    from safetensors import safe_open

    tensors = medusa_tensors(heads=2)
    tensors["1.0.linear.weight"] = tensors["1.0.linear.weight"].half()
    tensors["0.0.linear.weight"] = tensors["0.0.linear.weight"].bfloat16().t()
    # the authors' code repeats a block: its weights are one tensor under several names
    tensors["1.0.linear.bias"] = tensors["0.0.linear.bias"]
    folder = write_published(tmp_path / "medusa", tensors)
    done = torch_convert.convert_medusa(folder)
    assert done.path == folder / "medusa_lm_head.safetensors"
    assert (done.heads, done.base) == (2, "org/tiny")
    with safe_open(done.path, framework="pt") as opened:
        told = opened.metadata()
        assert told["base_model_name_or_path"] == "org/tiny"
        assert told["medusa_num_heads"] == "2"
        assert set(opened.keys()) == set(tensors)
        for name, tensor in tensors.items():
            found = opened.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor)
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json", "medusa_lm_head.pt", "medusa_lm_head.safetensors",
    ]  # fmt: skip


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("prefix", ["", "medusa_heads.", "medusa_head."])
def test_other_layouts_and_names(tmp_path: Path, prefix: str) -> None:
    tensors = {prefix + name: tensor for name, tensor in as_vllm(medusa_tensors()).items()}
    folder = write_published(tmp_path / "medusa", tensors)
    out = tmp_path / "new" / "heads.safetensors"
    done = torch_convert.convert_medusa(folder / "medusa_lm_head.pt", out, base="mine")
    assert (done.path, done.heads, done.base) == (out, 3, "mine")


@pytest.mark.usefixtures("quick")
def test_converted_heads_are_loaded_for_their_target(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from agentspec.backends.torch import TorchBackend, TorchSettings
    from agentspec.backends.torch_medusa import MedusaHeads
    from tests.torch_models import write_tiny

    folder = write_published(tmp_path / "medusa", medusa_tensors())
    path = torch_convert.convert_medusa(folder).path
    target = TorchBackend(
        write_tiny(tmp_path / "tiny"), TorchSettings(n_ctx=64, n_threads=1, device="cpu")
    )
    try:
        assert MedusaHeads(path, target).count == 3
    finally:
        target.close()


class Runs:
    """Calls a function when it is unpickled."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._call, self._arguments = call, arguments

    def __reduce__(self) -> Any:
        return self._call, self._arguments


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_hostile_pickle_does_not_run(tmp_path: Path, how: str) -> None:
    mark = tmp_path / "ran"
    hostile: Any = Runs(os.system, f"touch {mark}")
    folder = write_published(tmp_path / "medusa", medusa_tensors(heads=1))
    file = folder / "medusa_lm_head.pt"
    if how == "pickle":
        file.write_bytes(pickle.dumps(hostile))
    else:
        torch.save({**medusa_tensors(heads=1), "0.0.linear.bias": hostile}, file)
    with pytest.raises(ModelFileError, match="other things than tensors") as caught:
        torch_convert.convert_medusa(folder)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "medusa_lm_head.pt"]


def run_in_guard(tmp_path: Path, line: str) -> subprocess.CompletedProcess[str]:
    """What that process does with a line that a file would have got it to run."""
    program = (
        "import sys, os, socket, subprocess; sys.path.insert(0, sys.argv[1])\n"
        "import _unpickle\n"
        "apart = _unpickle.without_network()\n"
        "_unpickle.guard(sys.argv[2])\n"
        f"print(apart, flush=True)\n{line}\nprint('done')\n"
    )
    command = [sys.executable, "-I", "-c", program, str(PROGRAM.parent), str(tmp_path / "out")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_process_that_reads_pickles_may_do_little(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for line in (
        f"os.system('touch {other}')",
        f"subprocess.run(['touch', {str(other)!r}])",
        f"open({str(other)!r}, 'w')",
        f"os.open({str(other)!r}, os.O_CREAT | os.O_WRONLY)",
        f"os.remove({str(PROGRAM)!r})",
        "socket.create_connection(('127.0.0.1', 9))",
        "socket.getaddrinfo('localhost', 80)",
    ):
        done = run_in_guard(tmp_path, line)
        assert done.returncode, line
        assert "PermissionError" in done.stderr, line
        assert "done" not in done.stdout
    assert not other.exists()
    assert PROGRAM.exists()
    done = run_in_guard(tmp_path, "open(sys.argv[2], 'wb').write(b'x'); open(sys.argv[1] + '/x')")
    assert "FileNotFoundError" in done.stderr
    assert (tmp_path / "out").read_bytes() == b"x"


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_where_the_system_allows_it_there_is_no_network_at_all(tmp_path: Path) -> None:
    program = (
        "import sys, socket; sys.path.insert(0, sys.argv[1])\n"
        "import _unpickle\n"
        "print(_unpickle.without_network(), flush=True)\n"
        "socket.create_connection(('127.0.0.1', int(sys.argv[2])), timeout=5)\n"
    )
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        threading.Thread(target=lambda: _accept(server), daemon=True).start()
        command = [sys.executable, "-I", "-c", program, str(PROGRAM.parent), str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.stdout.strip() != "True":
        pytest.skip("this system lets no process leave its network")
    assert done.returncode
    assert "OSError" in done.stderr or "unreachable" in done.stderr


def _accept(server: socket.socket) -> None:
    try:
        server.accept()[0].close()
    except OSError:
        return


@pytest.mark.usefixtures("quick")
def test_what_is_no_file_of_heads_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        torch_convert.convert_medusa(tmp_path / "none")
    good = medusa_tensors(heads=1)
    wrong: list[tuple[Any, str]] = [
        ({**good, "model.layers.0": torch.zeros(1)}, "model.layers.0"),
        ({"0.0.linear.weight": 3}, "is no tensor"),
        ([torch.zeros(1)], "no tensors by name"),
        ({}, "no tensors by name"),
        ({"token_map": torch.zeros(2, dtype=torch.long)}, "no Medusa heads"),
        ({"0.0.linear.weight": torch.zeros(2, 2).to_sparse()}, "not dense"),
    ]
    for number, (content, message) in enumerate(wrong):
        folder = write_published(tmp_path / str(number), content)
        with pytest.raises(ModelFileError, match=message):
            torch_convert.convert_medusa(folder)
        assert not (folder / "medusa_lm_head.safetensors").exists()
    broken = write_published(tmp_path / "broken", good)
    (broken / "medusa_lm_head.pt").write_bytes(b"PK\x03\x04" + b"\xff" * 50)
    with pytest.raises(ModelFileError, match="was not converted"):
        torch_convert.convert_medusa(broken)
    (broken / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match="--base"):
        torch_convert.convert_medusa(broken)
    (broken / "config.json").write_text("[")
    with pytest.raises(ModelFileError, match=r"config\.json"):
        torch_convert.convert_medusa(broken)


def test_a_file_that_takes_for_ever(tmp_path: Path) -> None:
    folder = write_published(tmp_path / "medusa", medusa_tensors())
    with pytest.raises(ModelFileError, match="not read within"):
        torch_convert.convert_medusa(folder, seconds=0.01)


def test_the_command(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from agentspec.cli import main

    folder = write_published(tmp_path / "medusa", medusa_tensors())
    done = CliRunner().invoke(main, ["models", "convert-medusa", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["path"] == str(folder / "medusa_lm_head.safetensors")
    assert (told["heads"], told["base"]) == (3, "org/tiny")
    done = CliRunner().invoke(main, ["models", "convert-medusa", str(tmp_path / "none")])
    assert done.exit_code != 0
    assert "no Medusa heads at" in done.output


# layers of EAGLE


def published_eagle(folder: Path, version: int = 1, **more: Any) -> dict[str, Any]:
    """A folder as it is published, its weights a pickle; the weights."""
    from safetensors.torch import load_file

    write_eagle(folder, version, **more)
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    return tensors


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("version", "layout"), [(1, "safeai"), (1, "vllm"), (3, "safeai")])
def test_eagle_comes_over_and_is_loaded(tmp_path: Path, version: int, layout: str) -> None:
    pytest.importorskip("transformers")
    from agentspec.backends.torch import TorchBackend, TorchSettings
    from agentspec.backends.torch_eagle_files import read_eagle
    from agentspec.backends.torch_heads import is_eagle
    from tests.torch_models import write_tiny

    folder, out = tmp_path / "eagle", tmp_path / "out"
    tensors = published_eagle(folder, version, layout=layout)
    target = TorchBackend(
        write_tiny(tmp_path / "tiny"), TorchSettings(n_ctx=64, n_threads=1, device="cpu")
    )
    try:
        # it is known without a look at the pickle, and the message speaks of its own converter
        assert is_eagle(folder)
        with pytest.raises(ModelFileError, match=f"models convert-eagle {folder}$"):
            read_eagle(folder, target)
        done = torch_convert.convert_eagle(folder, out)
        assert (done.path, done.heads, done.base) == (out, 1, "")
        assert is_eagle(out)
        found = read_eagle(out, target)
        assert found.version == version
        for name, tensor in tensors.items():
            own = name.removeprefix("model.").replace("midlayer.", "layers.0.")
            if own in found.weights:
                assert torch.equal(found.weights[own], tensor)
        assert torch_convert.convert_eagle(folder).path == folder
        read_eagle(folder, target)
        torch_convert.convert_eagle(folder, base="org/other")
        with pytest.raises(PairMismatchError, match="trained for org/other"):
            read_eagle(folder, target)
    finally:
        target.close()


@pytest.mark.usefixtures("quick")
def test_what_is_no_eagle_checkpoint_is_said(tmp_path: Path) -> None:
    from agentspec.backends.torch_heads import is_eagle, read_heads

    with pytest.raises(ModelNotFoundError, match="no EAGLE checkpoint at"):
        torch_convert.convert_eagle(tmp_path / "none")
    for number, (content, message) in enumerate(
        [
            ({"fc.weight": torch.zeros(2), "0.0.linear.weight": torch.zeros(1)}, "0.0.linear"),
            ({"lm_head.weight": torch.zeros(2)}, "no fc.weight"),
            ({"fc.weight": Runs(os.system, "true")}, "other things than tensors"),
        ]
    ):
        folder = tmp_path / str(number)
        published_eagle(folder)
        torch.save(content, folder / "pytorch_model.bin")
        with pytest.raises(ModelFileError, match=message):
            torch_convert.convert_eagle(folder)
        assert not (folder / "model.safetensors").exists()
    (folder / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        torch_convert.convert_eagle(folder)
    # and Medusa heads, in a pickle too, are none of it
    medusa = write_published(tmp_path / "medusa", medusa_tensors())
    assert not is_eagle(medusa)
    with pytest.raises(ModelFileError, match="convert-medusa"):
        read_heads(medusa)


def test_the_command_for_eagle(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from agentspec.cli import main

    published_eagle(tmp_path / "eagle", 3)
    done = CliRunner().invoke(main, ["models", "convert-eagle", str(tmp_path / "eagle"), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["path"], told["layers"]) == (str(tmp_path / "eagle"), 1)
    assert (tmp_path / "eagle" / "model.safetensors").exists()

"""`agentspec models convert-medusa` and `convert-eagle`: published pickles as safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import click

_BASE = click.option("--base", help="The target they are for, where config.json does not name it.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("convert-medusa", short_help="Turn Medusa heads from a pickle into safetensors.")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", required=False, type=click.Path(path_type=Path, dir_okay=False))
@_BASE
@_JSON
def convert_medusa(source: Path, out: Path | None, base: str | None, as_json: bool) -> None:
    """Turn the medusa_lm_head.pt at SOURCE, a file or its folder, into safetensors.

    The pickle is read for its tensors only, by a process of its own without network.
    """
    from agentspec.backends.torch_convert import convert_medusa

    done = convert_medusa(source, out, base=base)
    if as_json:
        told = {"path": str(done.path), "heads": done.heads, "base": done.base}
        click.echo(json.dumps({**told, "isolated": done.isolated}))
        return
    click.echo(f"{done.heads} heads for {done.base}", err=True)
    click.echo(str(done.path))


@click.command("convert-eagle", short_help="Turn layers of EAGLE from a pickle into safetensors.")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", required=False, type=click.Path(path_type=Path, file_okay=False))
@_BASE
@_JSON
def convert_eagle(source: Path, out: Path | None, base: str | None, as_json: bool) -> None:
    """Turn the pytorch_model.bin of the EAGLE folder SOURCE into safetensors, there or in OUT.

    The pickle is read for its tensors only, by a process of its own without network.
    """
    from agentspec.backends.torch_convert import convert_eagle

    done = convert_eagle(source, out, base=base)
    if as_json:
        told = {"path": str(done.path), "layers": done.heads, "base": done.base}
        click.echo(json.dumps({**told, "isolated": done.isolated}))
        return
    click.echo(f"EAGLE of {done.heads} layer{'s' * (done.heads != 1)}", err=True)
    click.echo(str(done.path))

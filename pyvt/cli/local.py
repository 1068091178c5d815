"""``pyvt list`` and ``pyvt rm``: the models that were pulled."""

import json
from dataclasses import asdict

import click

from pyvt import hub
from pyvt.hub.storage import size_text


@click.command("list")
@click.option("--json", "is_json", is_flag=True, help="print one JSON array, nothing else")
def list_command(is_json: bool) -> None:
    """Show the models that were pulled: name, size and folder."""
    models = hub.list_models()
    if is_json:
        click.echo(json.dumps([{**asdict(m), "folder": str(m.folder)} for m in models]))
        return
    if not models:
        click.echo("no model is here; try: pyvt pull", err=True)
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        click.echo(f"{model.name:{width}}  {size_text(model.size_bytes):>9}  {model.folder}")


@click.command("rm")
@click.argument("names", nargs=-1, required=True)
def remove_command(names: tuple[str, ...]) -> None:
    """Remove the models NAMES, as `pyvt list` shows them, from this machine."""
    for name in names:
        model = hub.remove_model(name)
        click.echo(f"removed {model.name} ({size_text(model.size_bytes)})", err=True)

"""``pyvt pull``: fetch a model by name."""

import click

from pyvt import hub


@click.command()
@click.argument("name", default=hub.DEFAULT_MODEL)
def pull(name: str) -> None:
    """Fetch the model NAME into $PYVT_HOME/models and print its path.

    NAME is an alias (smollm2-135m), a Hugging Face repository (org/repo, org/repo@revision), one
    GGUF file of it (org/repo:Q4_K_M or org/repo:FILE), or a local path, for which there is nothing
    to do. Without NAME: smollm2-135m. A file is checked by its sha256 before it gets its name; a
    model that is here already is not fetched again.
    """
    path = hub.pull(name, lambda line: click.echo(line, err=True))
    click.echo(path)

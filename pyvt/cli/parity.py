"""``pyvt parity``: results against other engines' goldens, and where two backends part."""

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pyvt.cli.model_path import model_path

GOLDENS = Path("parity") / "goldens"

goldens_option = click.option(
    "--goldens",
    type=click.Path(path_type=Path, file_okay=False),
    default=GOLDENS,
    show_default=True,
    help="folder of goldens, of a checkout",
)


@click.group()
def parity() -> None:
    """Check results against other engines; localise a difference."""


@parity.command()
@goldens_option
@click.option(
    "-m", "--model", type=click.Path(path_type=Path), help="GGUF file of the text goldens"
)
@click.option(
    "--real",
    type=click.Path(path_type=Path),
    help="folder with real checkpoints, one subfolder each",
)
@click.option("--backend", default="numpy", show_default=True, help="who computes")
@click.option("--only", help="one section: ops, models, lockstep, text or real")
@click.option("--record", type=click.Path(path_type=Path), help="file to write the results to")
def run(
    goldens: Path,
    model: Path | None,
    real: Path | None,
    backend: str,
    only: str | None,
    record: Path | None,
) -> int:
    """Compute every golden and print the counts.

    Exit code 1 where one is out of tolerance.
    """
    code: int = _testing("parity").run_parity(
        goldens,
        model=model,
        real=real,
        backend=backend,
        only=only,
        record=record,
        print=click.echo,
    )
    return code


@parity.command()
@click.argument("model")
@click.option("-p", "--prompt", default="The capital of France is", show_default=True)
@click.option("--a", default="numpy", show_default=True, help="a backend")
@click.option("--b", required=True, help="a backend, or a dump (.npz) of parity/dump_trace.py")
@click.option(
    "--act",
    type=click.Choice(("none", "q8")),
    default="none",
    show_default=True,
    help="activations before a product with packed weights: as they are, or int8",
)
@goldens_option
def trace(model: str, prompt: str, a: str, b: str, act: str, goldens: Path) -> int:
    """Run a prompt on two sides and name where they part.

    That is the first layer and op whose output leaves its tolerance. MODEL is what -m of other
    commands takes; a dump must be one of the same model, and brings its prompt.
    """
    path = str(model_path(model))
    trace_parity = _testing("trace").trace_parity
    code: int = trace_parity(path, prompt, a, b, goldens, act=act, print=click.echo)
    return code


@parity.command(context_settings={"ignore_unknown_options": True})
@click.option("--python", default="python", show_default=True, help="Python that has the oracle")
@click.argument("what", nargs=-1, type=click.UNPROCESSED)
def dump(python: str, what: tuple[str, ...]) -> int:
    """Write the goldens of a checkout again.

    The oracles are run by another Python. WHAT is a dumper (ops, models, text, tokenizer or trace)
    and its arguments; without it: ops and models. After ops and models come names of ops and of
    tiny models; none is all of them.
    """
    code: int = _testing("parity").dump_parity(python, what, print=click.echo)
    return code


def _testing(module: str) -> Any:
    """Return a module of ``pyvt.testing``; it loads every op case, so only a run pays for it."""
    return import_module(f"pyvt.testing.{module}")

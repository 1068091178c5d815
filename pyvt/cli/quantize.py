"""``pyvt quantize``: write a model as a smaller GGUF file."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from pyvt.cli.model_path import model_path
from pyvt.cli.terminal import loading
from pyvt.convert import FILE_TYPES, QuantizeReport, quantize_model

EXIT_TERMINATED = 143


@contextmanager
def _leaving_nothing() -> Iterator[None]:
    """Let SIGTERM end the block as an exception does, so that the unfinished file goes away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--type",
    "file_type",
    default="Q4_K_M",
    show_default=True,
    help=f"one of {', '.join(FILE_TYPES)}",
)
@click.option("--threads", type=click.IntRange(min=1), help="[default: all usable cores]")
@click.option("--force", "is_forced", is_flag=True, help="replace OUT where it is there")
@click.option("--json", "is_json", is_flag=True, help="print one JSON object, nothing else")
def quantize(
    model: str,
    out: Path,
    file_type: str,
    threads: int | None,
    is_forced: bool,
    is_json: bool,
) -> int:
    """Write MODEL to the GGUF file OUT in another element type.

    MODEL is a folder of safetensors, a .gguf file or a name, which is pulled where it is not on
    this machine, in f32, f16 or bf16. Norms, biases and routers are kept in f32; rows that do not
    fit a type's blocks take the next larger type. OUT appears when it is whole: a run that is
    stopped leaves nothing.
    """
    with _leaving_nothing(), loading(f"{model} to {file_type}", verb="quantizing") as progress:
        report = quantize_model(
            model_path(model),
            out,
            file_type,
            is_forced=is_forced,
            num_threads=threads,
            progress=progress,
        )
    click.echo(json.dumps(_facts(report)) if is_json else _line(report))
    return 0


def _facts(report: QuantizeReport) -> dict[str, object]:
    return {
        "path": str(report.path),
        "tensors": report.num_tensors,
        "bytes": report.nbytes,
        "source_bytes": report.source_bytes,
        "types": report.dtypes,
    }


def _line(report: QuantizeReport) -> str:
    types = ", ".join(f"{count} {name}" for name, count in report.dtypes.items())
    return (
        f"{report.path}: {report.nbytes >> 20} MiB of {report.source_bytes >> 20} MiB, "
        f"{report.num_tensors} tensors ({types})"
    )

"""``pyvt bench``: speed of ops, of whole models, and of pyvt beside other engines."""

import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pyvt.cli.bench_table import show_table
from pyvt.cli.model_path import model_path
from pyvt.errors import ConfigError

SHAPE_PREFIX = "shape:"

threads_option = click.option(
    "--threads", type=click.IntRange(1), help="threads of every engine; the cores of this process"
)
json_option = click.option("--json", "is_json", is_flag=True, help="print JSON, nothing else")


@click.group()
def bench() -> None:
    """Measure speed and memory, as shares of what the machine can do and beside other engines."""


@bench.command()
@click.argument("models", nargs=-1)
@click.option("--llama-python", help="Python that has llama-cpp-python")
@click.option("--hf-python", help="Python that has torch and transformers")
@click.option("--only", multiple=True, help="a workload, by a part of its name; may be repeated")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@click.option("--no-busy", is_flag=True, help="do not measure beside a busy neighbour")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="folder for run records"
)
@threads_option
def peers(
    models: Sequence[str],
    llama_python: str | None,
    hf_python: str | None,
    only: Sequence[str],
    repeats: int,
    no_busy: bool,
    out: Path | None,
    threads: int | None,
) -> int:
    """Run pyvt and other engines on the same MODELS in turn and print the ratios.

    A model is a .gguf file, an alias, or shape:SHAPE:FORMAT, which has random weights and is
    written once below PYVT_HOME; without MODELS it is those that have targets. transformers takes
    part where the weights are f32 or bf16 of a shape. Needs a checkout, for its scripts.
    """
    testing = _testing("bench_peers")
    report = _testing("peers_report")
    root = _checkout()
    count = threads or testing.usable_threads()
    rows: list[Sequence[str]] = []
    for model in models or testing.MODELS:
        workloads = _workloads(testing, model, only)
        if not workloads:
            continue
        path, folder, dtype = _paths(model, hf_python is not None)
        engines = testing.commands(
            path,
            threads=count,
            scripts=root / "benchmarks",
            llama_python=llama_python,
            hf_python=hf_python,
            hf_path=folder,
            hf_dtype=dtype,
        )
        samples = testing.measure(engines, workloads, repeats=repeats, is_busy_measured=not no_busy)
        cost = _testing("model_cost").ModelCost.of(path)
        run = report.PeersRun(model=model, path=path, cost=cost, threads=count, samples=samples)
        rows += run.rows()
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            name = model.removeprefix(SHAPE_PREFIX).replace(":", "-").replace("/", "-")
            record = run.record(_command(), root, dtype)
            (out / f"peers-{name}.json").write_text(record.to_json() + "\n")
    show_table(report.HEADER, rows)
    return 0


def _workloads(testing: Any, model: str, only: Sequence[str]) -> list[str]:
    """Return the workloads of a model: those that have a target, all where none has."""
    wanted = [t.workload for t in testing.TARGETS if t.model == model] or list(testing.WORKLOADS)
    return [name for name in wanted if not only or any(part in name for part in only)]


def _paths(model: str, is_folder_wanted: bool) -> tuple[Path, Path | None, str]:
    """Return the GGUF file, the folder for transformers where it can have one, and its dtype."""
    if not model.startswith(SHAPE_PREFIX):
        return model_path(model), None, "f32"
    shape = _testing("shape_models").ShapeModel.named(model)
    is_plain = shape.mix in ("f32", "bf16")
    folder = shape.safetensors() if is_folder_wanted and is_plain else None
    return shape.gguf(), folder, shape.mix if is_plain else "f32"


def _checkout() -> Path:
    root = Path(import_module("pyvt").__file__ or "").parents[1]
    if not (root / "benchmarks" / "peer_llama_cpp.py").is_file():
        raise ConfigError("[bench] peers: expected a checkout of pyvt, got an installed package")
    return root


def _command() -> str:
    return shlex.join(["pyvt", *sys.argv[1:]])


def _testing(module: str) -> Any:
    """Return a module of ``pyvt.testing``; only a run pays for its import."""
    return import_module(f"pyvt.testing.{module}")

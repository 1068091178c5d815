"""``pyvt bench``: speed of ops, of whole models, and of pyvt beside other engines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import pyvt
from pyvt import backends
from pyvt.cli.bench_http import bench_serve
from pyvt.cli.bench_output import command_line, json_option, out_option, tell, testing_module
from pyvt.cli.bench_serving import latency, throughput
from pyvt.cli.model_path import model_path
from pyvt.cli.terminal import say
from pyvt.config.device import MAX_THREADS
from pyvt.dispatch import use_backend
from pyvt.dispatch.backend import selected_backend
from pyvt.errors import ConfigError
from pyvt.tensor.blas import set_blas_threads
from pyvt.tensor.cores import num_usable_cores

SHAPE_PREFIX = "shape:"


def run_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that every measurement here has."""
    for option in (
        out_option,
        json_option,
        click.option(
            "--threads",
            type=click.IntRange(1, MAX_THREADS),
            help="threads of every engine; the cores of this process",
        ),
        click.option("--repeats", type=click.IntRange(1), default=5, show_default=True),
    ):
        command = option(command)
    return command


no_reference_option = click.option(
    "--no-reference", is_flag=True, help="leave the ratio to the reference out"
)


@click.group()
def bench() -> None:
    """Measure speed and memory, as shares of what the machine can do and beside other engines."""


@bench.command()
@click.argument("words", nargs=-1)
@click.option("--backend", default="cpu", show_default=True, help="who computes")
@no_reference_option
@run_options
def ops(
    words: Sequence[str],
    backend: str,
    repeats: int,
    no_reference: bool,
    threads: int | None,
    is_json: bool,
    out: Path | None,
) -> int:
    """Time single ops of a step of Qwen3-0.6B.

    WORDS choose the cases that hold one of them in their name, such as q4_k or paged_attention;
    without them all are run. Each is told as a share of the machine's limits, of the same run.
    """
    testing = testing_module("bench_ops")
    count = _use_threads(backend, threads)
    timings = list(
        testing.time_ops(backend, only=words, repeats=repeats, has_reference=not no_reference)
    )
    record = testing.ops_record(
        timings,
        command=command_line(),
        backend=backend,
        threads=count,
        root=Path(pyvt.__file__).parent,
    )
    tell(testing.HEADER, [t.row() for t in timings], [("ops", record)], out, is_json)
    return 0


@bench.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--backend", default="auto", show_default=True, help="who computes")
@click.option("--act", default="auto", show_default=True, help="activations: none or q8")
@no_reference_option
@run_options
def offline(
    models: Sequence[str],
    backend: str,
    act: str,
    repeats: int,
    no_reference: bool,
    threads: int | None,
    is_json: bool,
    out: Path | None,
) -> int:
    """Time prefill and decode of whole MODELS, alone and in batches.

    A model is a .gguf file or folder, an alias, or shape:SHAPE:FORMAT, which has random weights and
    is written once below PYVT_HOME.
    """
    testing = testing_module("bench_offline")
    count = threads or num_usable_cores()
    runs = [
        testing.run_offline(
            model,
            _paths(model, is_folder_wanted=False)[0],
            threads=count,
            repeats=repeats,
            has_reference=not no_reference,
            settings={"backend": backend, "act": act},
            report=say,
        )
        for model in models
    ]
    root = Path(pyvt.__file__).parent
    records = [(f"offline-{_stem(run.model)}", run.record(command_line(), root)) for run in runs]
    tell(testing.HEADER, [row for run in runs for row in run.rows()], records, out, is_json)
    return 0


@bench.command()
@click.argument("models", nargs=-1)
@click.option("--llama-python", help="Python that has llama-cpp-python")
@click.option("--hf-python", help="Python that has torch and transformers")
@click.option("--only", multiple=True, help="a workload, by a part of its name; may be repeated")
@click.option("--no-busy", is_flag=True, help="do not measure beside a busy neighbour")
@run_options
def peers(
    models: Sequence[str],
    llama_python: str | None,
    hf_python: str | None,
    only: Sequence[str],
    repeats: int,
    no_busy: bool,
    threads: int | None,
    is_json: bool,
    out: Path | None,
) -> int:
    """Run pyvt and other engines on the same MODELS in turn and print the ratios.

    A model is a .gguf file, an alias, or shape:SHAPE:FORMAT, which has random weights and is
    written once below PYVT_HOME; without MODELS it is those that have targets. transformers takes
    part where the weights are f32 or bf16 of a shape. Needs a checkout, for its scripts.
    """
    testing = testing_module("bench_peers")
    report = testing_module("peers_report")
    root = _checkout()
    count = threads or num_usable_cores()
    rows: list[Sequence[str]] = []
    records: list[tuple[str, Any]] = []
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
        samples = testing.measure(
            engines, workloads, repeats=repeats, is_busy_measured=not no_busy, report=say
        )
        cost = testing_module("model_cost").ModelCost.of(path, samples.dtype)
        run = report.PeersRun(model=model, path=path, cost=cost, threads=count, samples=samples)
        rows += run.rows()
        records.append((f"peers-{_stem(model)}", run.record(command_line(), root, dtype)))
    tell(report.HEADER, rows, records, out, is_json)
    return 0


def _stem(model: str) -> str:
    """Return a model's name as the stem of a file."""
    stem = Path(model).stem if Path(model).exists() else model.removeprefix(SHAPE_PREFIX)
    return stem.replace(":", "-").replace("/", "-").lower()


def _use_threads(backend: str, threads: int | None) -> int:
    """Give the backend's pool and BLAS the threads that were asked for; return their number."""
    backends.load(backend)
    use_backend(backend)
    if threads is not None:
        set_blas_threads(threads)
        set_own = selected_backend().set_num_threads
        if set_own is not None:
            set_own(threads)
    return threads or num_usable_cores()


def _workloads(testing: Any, model: str, only: Sequence[str]) -> list[str]:
    """Return the workloads of a model: those that have a target, all where none has."""
    for part in only:
        if not any(part in name for name in testing.WORKLOADS):
            known = ", ".join(testing.WORKLOADS)
            raise ConfigError(f"[bench] only: expected a part of one of {known}, got {part!r}")
    wanted = [t.workload for t in testing.TARGETS if t.model == model] or list(testing.WORKLOADS)
    return [name for name in wanted if not only or any(part in name for part in only)]


def _paths(model: str, is_folder_wanted: bool) -> tuple[Path, Path | None, str]:
    """Return the GGUF file, the folder for transformers where it can have one, and its dtype."""
    if not model.startswith(SHAPE_PREFIX):
        return model_path(model), None, "f32"
    shape = testing_module("shape_models").ShapeModel.named(model)
    is_plain = shape.mix in ("f32", "bf16")
    folder = shape.safetensors() if is_folder_wanted and is_plain else None
    return shape.gguf(), folder, shape.mix if is_plain else "f32"


def _checkout() -> Path:
    root = Path(pyvt.__file__).parent.parent
    if not (root / "benchmarks" / "peer_llama_cpp.py").is_file():
        raise ConfigError("[bench] peers: expected a checkout of pyvt, got an installed package")
    return root


bench.add_command(latency)
bench.add_command(throughput)
bench.add_command(bench_serve)

"""Run records of single models: their files, and what the drivers write."""

from collections.abc import Sequence
from pathlib import Path

from pyvt import hub
from pyvt.tensor.cores import num_usable_cores
from pyvt.testing.bench_peers import file_sha256
from pyvt.testing.record import Figure, RunRecord, this_commit, this_machine, write_record
from pyvt.testing.shape_models import ShapeModel

ROOT = Path(__file__).resolve().parents[1]
SHAPE_PREFIX = "shape:"


def model_file(model: str) -> Path:
    """Return the file of a model: a path, an alias, or shape:SHAPE:FORMAT, written where missing.

    Raises ConfigError for what is none of them.
    """
    return ShapeModel.named(model).gguf() if model.startswith(SHAPE_PREFIX) else hub.obtain(model)


def write_model_record(
    out: Path,
    kind: str,
    model: str,
    figures: Sequence[Figure],
    *,
    command: str,
    prompt_tokens: int,
    new_tokens: int,
) -> None:
    """Write ``<kind>-<model>.json``: figures of the native backend, one request at a time."""
    path = model_file(model)
    stem = model.removeprefix(SHAPE_PREFIX).replace(":", "-")
    name = path.stem.lower() if Path(model).exists() else stem
    record = RunRecord(
        command=f"{command} {path.name if Path(model).exists() else model}",
        model=model,
        model_id=file_sha256(path),
        backend="cpu",
        dtype="f32",
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        concurrency=1,
        threads=num_usable_cores(),
        machine=this_machine(),
        commit=this_commit(ROOT),
        features=("pyvt",),
        figures=tuple(figures),
    )
    write_record(out, f"{kind}-{name}", record)

"""``quantize_model``: a model in floats to one GGUF file, tensor by tensor.

At most one tensor is in memory, and a few chunks of it in f32: chunks of rows are quantized by
threads (NumPy lets go of the interpreter inside its loops) and written in order.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.convert.encoders import encode_rows
from pyvt.convert.from_gguf import plan_from_gguf
from pyvt.convert.from_hf import plan_from_hf
from pyvt.convert.gguf_writer import GGUFWriter, gguf_writer
from pyvt.convert.mixes import file_type_named
from pyvt.convert.plan import Plan, PlannedTensor
from pyvt.errors import ConfigError
from pyvt.models.registry import check_model, model_config
from pyvt.tensor.cores import num_usable_cores
from pyvt.weights.gguf import GGUFSource
from pyvt.weights.resolve import ModelFiles, open_model

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int], None]

# Elements of a chunk: large beside the cost of a NumPy call, so small that the five arrays of a
# search stay in the caches.
_CHUNK_ELEMENTS = 1 << 17
_CHUNKS_A_THREAD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeReport:
    """What was written.

    Attributes:
        path: the file.
        num_tensors: its tensors.
        source_bytes: bytes of the weights before.
        nbytes: bytes of the tensors now.
        dtypes: number of tensors of each type.
    """

    path: Path
    num_tensors: int
    source_bytes: int
    nbytes: int
    dtypes: dict[str, int]


def quantize_model(
    model: str | Path,
    out: str | Path,
    file_type: str,
    *,
    is_forced: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Write a model as one GGUF file; it appears when it is whole.

    Args:
        model: folder of safetensors or a GGUF file, in f32, f16 or bf16.
        out: the file to write, ``*.gguf``.
        file_type: a name of ``convert.mixes.FILE_TYPES``, in any case.
        is_forced: whether a file of that name may be replaced.
        num_threads: None for all usable cores.
        progress: called with the bytes that are written and their sum.

    Raises:
        ConfigError: an unknown type, or a name that cannot be written to.
        UnsupportedError: weights that are quantized already, or what GGUF has no name for.
        CheckpointError: the model is damaged or incomplete.
        OutputError: no room on the disk, or the file cannot be written.
    """
    wanted = file_type_named(file_type)
    path = _checked_path(Path(model), Path(out), is_forced)
    files = open_model(model)
    try:
        plan = _plan(files, wanted.name)
        with (
            gguf_writer(path, plan.pairs, [tensor.row for tensor in plan.tensors]) as writer,
            ThreadPoolExecutor(num_threads or num_usable_cores()) as pool,
        ):
            _write_all(plan, writer, pool, files, progress)
        source_bytes = sum(files.source.info(name).nbytes for name in files.source.names())
    finally:
        files.close()
    names = [tensor.row.dtype.name for tensor in plan.tensors]
    return QuantizeReport(
        path=path,
        num_tensors=len(plan.tensors),
        source_bytes=source_bytes,
        nbytes=plan.nbytes,
        dtypes={name: names.count(name) for name in dict.fromkeys(names)},
    )


def _plan(files: ModelFiles, file_type: str) -> Plan:
    config = model_config(files)
    wanted = file_type_named(file_type)
    if isinstance(files.source, GGUFSource):
        plan = plan_from_gguf(files.source, config, wanted)
    else:
        plan = plan_from_hf(files, config, wanted)
    check_model(files, config)
    return plan


def _checked_path(model: Path, out: Path, is_forced: bool) -> Path:
    """Return the path to write. Raises ConfigError with what is wrong about it."""
    fault = None
    if out.suffix != ".gguf":
        fault = "a name that ends in .gguf", "another one"
    elif out.is_dir():
        fault = "a file", "a folder; give the name of the file as well"
    elif not out.parent.is_dir():
        fault = "a folder that is there", f"no folder {str(out.parent)!r}; make it first"
    elif out.exists() and out.resolve() == model.resolve():
        fault = "another file than the model", "the model itself"
    elif out.exists() and not is_forced:
        fault = "a new name", "a file that is there; --force replaces it"
    if fault is not None:
        expected, got = fault
        raise ConfigError(f"[quantize] {str(out)!r}: expected {expected}, got {got}", field="out")
    return out


def _write_all(
    plan: Plan,
    writer: GGUFWriter,
    pool: ThreadPoolExecutor,
    files: ModelFiles,
    progress: Progress | None,
) -> None:
    done = 0
    # Leaving early drops the chunks that wait, so that Ctrl-C ends the threads at once.
    try:
        for tensor in plan.tensors:
            row = writer.begin()
            assert row is tensor.row, "the table has the order of the plan"
            for data in _encoded(tensor, pool):
                writer.write(data)
                done += data.nbytes
                if progress is not None:
                    progress(done, plan.nbytes)
            files.source.release()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _encoded(tensor: PlannedTensor, pool: ThreadPoolExecutor) -> Iterator[Array]:
    """Yield the bytes of a tensor's chunks, in order, a few of them made ahead."""
    waiting: deque[Future[Array]] = deque()
    most = _CHUNKS_A_THREAD * pool._max_workers
    row = tensor.row
    for fetch in tensor.fetches:
        for rows in _chunks(fetch(), row.shape[-1] if row.shape else 1):
            waiting.append(pool.submit(encode_rows, rows, row.dtype, row.name))
            if len(waiting) == most:
                yield waiting.popleft().result().reshape(-1)
    while waiting:
        yield waiting.popleft().result().reshape(-1)


def _chunks(array: Array, num_columns: int) -> Iterator[Array]:
    """Yield runs of the rows of an array; a fused part that is strided is copied run by run."""
    step = max(1, _CHUNK_ELEMENTS // num_columns)
    for matrix in array.reshape(-1, *array.shape[-2:]) if array.ndim > 2 else (array,):
        rows = matrix.reshape(-1, num_columns)
        for start in range(0, len(rows), step):
            yield rows[start : start + step]

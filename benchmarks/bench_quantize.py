"""The error of ``pyvt quantize`` beside llama.cpp's own quantiser, on the same tensors.

    python -m benchmarks.bench_quantize PEER_PYTHON [MODEL.gguf] [--types Q8_0,Q4_K_M]

PEER_PYTHON has llama-cpp-python. MODEL is in f32, f16 or bf16; without one, a small model is made
whose tensors have the tails of several distributions. Printed for each element type of each file
type: mean squared errors as a ratio, ours over theirs, of all tensors and of the worst one, and how
many tensors have the same bytes; then seconds of both and their ratio. A type that the two files do
not share is an error: the mixes are the same.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.convert import FILE_TYPES, quantize_model
from pyvt.tensor.cores import num_usable_cores
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.checkpoints import write_gguf
from pyvt.testing.shape_models import ShapeModel
from pyvt.weights.gguf import GGUFFile, read_gguf

PEER = Path(__file__).with_name("peer_llama_quantize.py")
Array = np.ndarray[Any, Any]


def tailed_model(folder: Path) -> Path:
    """Write a small model in f32 of values with light and heavy tails, and rows of many sizes."""
    shape = ShapeModel.named("shape:tiny:f32").gguf()
    file = read_gguf(shape)
    rng = np.random.default_rng(0)
    draws = (
        lambda size: rng.standard_normal(size),
        lambda size: rng.laplace(size=size),
        lambda size: rng.standard_t(4, size=size),
        lambda size: rng.uniform(-1, 1, size=size),
    )
    tensors: dict[str, Array] = {}
    for i, row in enumerate(file.tensors.values()):
        values = 0.03 * draws[i % len(draws)](row.shape)
        if len(row.shape) > 1:
            values *= rng.lognormal(sigma=0.5, size=(row.shape[0], 1))
        tensors[row.name] = values.astype(np.float32)
    spans = {key: file.metadata[key] for key in file.metadata}
    return write_gguf(folder / "tails.gguf", spans, tensors)


def values_of(file: GGUFFile, name: str) -> Array:
    """Return the values of a tensor in f32."""
    row = file.tensors[name]
    tensor = file.mapped.tensor(name, row.dtype, row.shape, row.offset)
    if isinstance(tensor, QuantTensor):
        return ops.dequantize(tensor)
    return tensor.astype(np.float32)


def bytes_of(file: GGUFFile, name: str) -> bytes:
    """Return the bytes of a tensor."""
    row = file.tensors[name]
    return bytes(file.mapped.buffer(row.offset, row.offset + row.nbytes))


def compare(source: GGUFFile, ours: GGUFFile, theirs: GGUFFile) -> dict[str, list[Any]]:
    """Return for each element type the errors of both and whether bytes agree, tensor by tensor."""
    found: dict[str, list[Any]] = defaultdict(list)
    for name, row in ours.tensors.items():
        other = theirs.tensors[name]
        if row.dtype is not other.dtype:
            sys.exit(f"{name}: {row.dtype} here, {other.dtype} there")
        if not row.dtype.is_block:
            continue
        true = values_of(source, name)
        errors = [
            np.mean((values_of(f, name) - true) ** 2, dtype=np.float64) for f in (ours, theirs)
        ]
        is_same = bytes_of(ours, name) == bytes_of(theirs, name)
        found[row.dtype.name].append((*errors, true.size, is_same))
    return found


def main() -> None:
    """Quantise with both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", help="a Python that has llama-cpp-python")
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--types", default="Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q4_0")
    args = parser.parse_args()
    num_threads = num_usable_cores()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or tailed_model(Path(folder))
        ours, theirs = Path(folder) / "ours.gguf", Path(folder) / "theirs.gguf"
        print(f"{'file':<8}{'type':<6}{'tensors':>8}{'same':>6}{'mse ratio':>11}{'worst':>8}")
        for name in args.types.split(","):
            start = time.perf_counter()
            quantize_model(model, ours, name, is_forced=True)
            own_s = time.perf_counter() - start
            command = [args.peer, str(PEER), str(model), str(theirs)]
            command += [str(FILE_TYPES[name].gguf_id), str(num_threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{args.peer}: {done.stderr.strip()[-400:]}")
            peer_s = float(done.stdout.split()[-1])
            rows = compare(read_gguf(model), read_gguf(ours), read_gguf(theirs))
            for dtype, tensors in rows.items():
                own, peer, sizes, same = (np.array(column) for column in zip(*tensors, strict=True))
                ratio = (own * sizes).sum() / (peer * sizes).sum()
                worst = (own / peer).max()
                print(
                    f"{name:<8}{dtype:<6}{len(own):>8}{int(same.sum()):>6}{ratio:>11.4f}"
                    f"{worst:>8.4f}"
                )
            print(f"{name:<8}seconds: {own_s:.1f} here, {peer_s:.1f} there, {own_s / peer_s:.2f}x")


if __name__ == "__main__":
    main()

"""The plan of a GGUF file from another one: the same tensors and metadata, other element types.

Nothing is renamed and nothing is moved: tensors and metadata pairs are taken as they are stored.
"""

from functools import partial
from typing import Any

import numpy as np

from pyvt.config.model import ModelConfig
from pyvt.convert.gguf_writer import TableRow, encoded_pair
from pyvt.convert.metadata import QUANTIZATION_VERSION
from pyvt.convert.mixes import FileType, tensor_dtype
from pyvt.convert.plan import Plan, PlannedTensor
from pyvt.errors import UnsupportedError
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.gguf import GGUFFile, GGUFSource, GGUFTensor

Array = np.ndarray[Any, Any]

_OF_A_SPLIT = "split."


def plan_from_gguf(source: GGUFSource, config: ModelConfig, file_type: FileType) -> Plan:
    """Return what to write for an open GGUF model. Raises UnsupportedError where it is packed."""
    first = source.files[0]
    pairs = {
        key: bytes(first.mapped.buffer(start, stop))
        for key, (start, stop) in first.spans.items()
        if not key.startswith(_OF_A_SPLIT) and key != "general.alignment"
    }
    for key, value in (
        ("general.file_type", file_type.gguf_id),
        ("general.quantization_version", QUANTIZATION_VERSION),
    ):
        pairs[key] = encoded_pair(key, value)
    tensors = []
    for file in source.files:
        for tensor in file.tensors.values():
            if tensor.dtype.is_block:
                raise UnsupportedError(
                    f"[quantize] tensor {tensor.name!r} in {str(file.path)!r}: expected weights in "
                    f"f32, f16 or bf16, got {tensor.dtype}; start from a file before it was "
                    "quantized, or from the safetensors"
                )
            dtype = tensor_dtype(
                file_type,
                tensor.name,
                tensor.shape,
                num_layers=config.num_layers,
                is_tied=config.tie_word_embeddings,
            )
            row = TableRow(tensor.name, dtype, tensor.shape)
            tensors.append(PlannedTensor(row, (partial(_fetch, file, tensor),)))
    return Plan(pairs, tuple(tensors))


def _fetch(file: GGUFFile, tensor: GGUFTensor) -> Array:
    stored = file.mapped.tensor(tensor.name, tensor.dtype, tensor.shape, tensor.offset)
    assert not isinstance(stored, QuantTensor), f"{tensor.name}: its dtype has been checked"
    return stored

"""The plan of a GGUF file from a checkpoint of Hugging Face.

Names come from ``weights.gguf_names``, order changes from ``transforms``. Experts that lie one by
one are stacked into one tensor.
"""

import re
from functools import partial
from typing import Any

import numpy as np

from pyvt.config.model import FAMILIES, ModelConfig
from pyvt.convert.gguf_writer import TableRow, encoded_pair
from pyvt.convert.metadata import QUANTIZATION_VERSION, ROPE_FREQS, model_metadata, rope_divisors
from pyvt.convert.mixes import FileType, tensor_dtype
from pyvt.convert.plan import Fetch, Plan, PlannedTensor
from pyvt.convert.tokenizer_metadata import tokenizer_metadata
from pyvt.convert.transforms import StoredForm, stored_forms
from pyvt.errors import CheckpointError, UnsupportedError
from pyvt.tensor.dtype import F32, FLOATS
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.gguf_names import gguf_name
from pyvt.weights.resolve import ModelFiles
from pyvt.weights.source import TensorInfo, WeightSource

Array = np.ndarray[Any, Any]
# A part of a tensor: where it comes from, its shape and what to fetch it with.
Part = tuple[TensorInfo, tuple[int, ...], Fetch]

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")


def plan_from_hf(files: ModelFiles, config: ModelConfig, file_type: FileType) -> Plan:
    """Return what to write for an open checkpoint.

    Raises:
        CheckpointError: an expert is missing, or there is no tokenizer.
        UnsupportedError: a tensor, a tokenizer or a setting that GGUF has no name for, or weights
            that are quantized already.
    """
    architecture = FAMILIES[config.family].gguf
    metadata = {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": files.path.resolve().name,
        "general.file_type": file_type.gguf_id,
        "general.quantization_version": QUANTIZATION_VERSION,
        **model_metadata(config, architecture),
        **tokenizer_metadata(files, config),
    }
    tensors = []
    divisors = rope_divisors(config)
    if divisors is not None:
        tensors.append(
            PlannedTensor(TableRow(ROPE_FREQS, F32, divisors.shape), (lambda: divisors,))
        )
    for canonical, parts in _by_tensor(files.source, config).items():
        name = gguf_name(architecture, canonical, config.num_layers)
        if name is None:
            raise UnsupportedError(
                f"[quantize] tensor {canonical!r}: expected a name of {architecture} files, got "
                "one that GGUF has no name for"
            )
        shape = _shape_of(canonical, parts)
        dtype = tensor_dtype(
            file_type,
            name,
            shape,
            num_layers=config.num_layers,
            is_tied=config.tie_word_embeddings,
        )
        fetches = tuple(fetch for _, _, fetch in parts)
        tensors.append(PlannedTensor(TableRow(name, dtype, shape), fetches))
    return Plan({key: encoded_pair(key, value) for key, value in metadata.items()}, tuple(tensors))


def _by_tensor(source: WeightSource, config: ModelConfig) -> dict[str, list[Part]]:
    """Return the parts of each tensor of the new file, by canonical name, in order."""
    found: dict[str, dict[int, Part]] = {}
    architecture = FAMILIES[config.family].gguf
    for stored in source.names():
        if _is_left_out(stored, config):
            continue
        info = source.info(stored)
        if info.dtype not in FLOATS:
            raise UnsupportedError(
                f"[quantize] tensor {stored!r} in {str(info.path)!r}: expected weights in f32, f16 "
                f"or bf16, got {info.dtype}; start from the checkpoint before it was quantized"
            )
        for form in stored_forms(architecture, stored, info.shape, config):
            fetch = partial(_fetch, source, stored, form)
            match = _EXPERT.fullmatch(form.name)
            if match is None:
                found[form.name] = {0: (info, form.shape, fetch)}
            else:
                part = (info, (1, *form.shape), fetch)
                found.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = part
    return {name: [parts[i] for i in sorted(parts)] for name, parts in found.items()}


def _is_left_out(stored: str, config: ModelConfig) -> bool:
    """Return whether a tensor is the embedding once more, or a part of a head without layers."""
    if stored.startswith("mtp."):
        return not config.num_mtp_layers
    return config.tie_word_embeddings and stored == "lm_head.weight"


def _fetch(source: WeightSource, name: str, form: StoredForm) -> Array:
    tensor = source.get(name)
    assert not isinstance(tensor, QuantTensor), f"{name}: its dtype has been checked"
    return form.change(tensor)


def _shape_of(name: str, parts: list[Part]) -> tuple[int, ...]:
    """Return the shape of a tensor, experts counted; each part is as the first one."""
    info, first, _ = parts[0]
    if any(shape != first for _, shape, _ in parts):
        shapes = sorted({shape for _, shape, _ in parts})
        raise CheckpointError(
            f"[quantize] {name} in {str(info.path)!r}: expected experts of one shape, got {shapes}",
            path=info.path,
            tensor=name,
        )
    return first if len(parts) == 1 else (len(parts), *first[1:])

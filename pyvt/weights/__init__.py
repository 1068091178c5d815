"""From files to named tensors: readers of safetensors and GGUF, names, and the loader."""

from pyvt.weights.resolve import ModelFiles, open_model
from pyvt.weights.source import Tensor, TensorInfo, WeightSource
from pyvt.weights.verify import Finding, verify_model

__all__ = [
    "Finding",
    "ModelFiles",
    "Tensor",
    "TensorInfo",
    "WeightSource",
    "open_model",
    "verify_model",
]

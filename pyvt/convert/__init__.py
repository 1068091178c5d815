"""Conversion: a model in floats to one GGUF file of another element type."""

from pyvt.convert.mixes import FILE_TYPES
from pyvt.convert.quantize import QuantizeReport, quantize_model

__all__ = ["FILE_TYPES", "QuantizeReport", "quantize_model"]

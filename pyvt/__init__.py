"""pyvt: a small, exact and fast LLM inference engine.

Public names are imported when they are first used, so that ``import pyvt`` stays light.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "LLM": "pyvt.llm",
    "AsyncLLM": "pyvt.engine.async_llm",
    "EngineCore": "pyvt.engine.core",
    "SamplingParams": "pyvt.sampling_params",
    "StructuredOutputsParams": "pyvt.sampling_params",
    "EngineConfig": "pyvt.config",
    "RequestOutput": "pyvt.outputs",
    "use_backend": "pyvt.dispatch",
}

__all__ = [
    "AsyncLLM",
    "EngineConfig",
    "EngineCore",
    "LLM",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
    "use_backend",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'pyvt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

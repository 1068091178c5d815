"""Every oracle of ops, by op name."""

from importlib.metadata import version

import torch
import transformers

from parity.oracles import (
    activation,
    attention,
    causal_conv,
    elementwise,
    embedding,
    gated_delta,
    kv_cache,
    linear,
    logprobs,
    moe,
    norm,
    packed,
    penalties,
    quant_gguf,
    rope,
    sampling,
)
from parity.oracles.oracle import Oracle

FAMILIES = (
    activation,
    attention,
    causal_conv,
    elementwise,
    embedding,
    gated_delta,
    kv_cache,
    linear,
    logprobs,
    moe,
    norm,
    packed,
    penalties,
    quant_gguf,
    rope,
    sampling,
)
ORACLES: dict[str, Oracle] = {
    name: oracle for family in FAMILIES for name, oracle in family.ORACLES.items()
}


def versions() -> dict[str, str]:
    """Return the versions that a manifest names."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "gguf": version("gguf"),
    }

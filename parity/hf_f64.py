"""Transformers' model code with its casts to f32 turned into casts to f64.

Transformers computes norms, rotary angles and softmax in f32 even in a model of f64, so that its
output has rounding noise of its own. A module loaded from here is the same source text in which
every explicit f32 is f64; a manifest that used one says so with ``SUFFIX``.
"""

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

SUFFIX = "with every cast to f32 made one to f64"

_F32 = re.compile(r"torch\.float(32)?\b")
_HUB_KERNEL = re.compile(r"^@use_kernel\w*\(.*\)\n", re.MULTILINE)


@cache
def _in_f64(name: str) -> ModuleType:
    """Return a private copy of a module of transformers in f64."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"transformers has no {name}"
    assert spec.origin is not None, f"{name} has no source file"
    text = Path(spec.origin).read_text()
    text = _F32.sub("torch.float64", text).replace(".float()", ".double()")
    module = ModuleType(f"{name}_f64")
    module.__package__ = name.rpartition(".")[0]
    module.__file__ = spec.origin
    # Dataclasses and transformers' own decorators look modules up by name.
    sys.modules[module.__name__] = module
    exec(compile(_HUB_KERNEL.sub("", text), spec.origin, "exec"), module.__dict__)
    return module


def modeling(family: str) -> ModuleType:
    """Return a private copy of ``transformers.models.<family>.modeling_<family>`` in f64."""
    return _in_f64(f"transformers.models.{family}.modeling_{family}")


def reset_rope(model: Any) -> None:
    """Compute the rotary frequencies of a model of ``modeling`` anew, in f64.

    Making a model fills them from transformers' own functions, in f32.
    """
    rotary = model.model.rotary_emb
    functions = _in_f64("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    function = functions.get(rotary.rope_type, rotary.compute_default_rope_parameters)
    rotary.inv_freq, rotary.attention_scaling = function(model.config)

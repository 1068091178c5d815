"""``pyvt parity trace``: the first layer and op where two ways of computing a prompt part.

Two backends are compared op by op: backend ``a`` runs the model, and each of its calls is repeated
by ``b`` on the same inputs, so an error is found where it arises and not where it has grown. The
bounds of a product are for rows of about 1; a row with larger values is judged after both sides
are divided by its largest, which changes nothing else of a linear op.
Against an oracle's dump (an ``.npz`` of ``parity/dump_trace.py``), the residual stream after each
layer and the logits are compared; there the error that has grown is judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from pyvt import backends
from pyvt.dispatch import Candidate, Op, known_backends, tapped, use_backend
from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.errors import CheckpointError
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.models.registry import load_model
from pyvt.tensor.dtype import F32, DType, dtype_of
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.testing.model_runs import all_hidden
from pyvt.testing.op_cases import ALL_CASES
from pyvt.testing.tolerance import Difference, compare
from pyvt.tokenizer import gguf_tokenizer, hf_tokenizer
from pyvt.weights.resolve import ModelFiles, open_model

Array = np.ndarray[Any, Any]
Print = Callable[[str], None]

_OP_CLASSES = {case.op: case.op_class for case in ALL_CASES}
_RESIDUAL_CLASS = "model_self"
_PRODUCTS = ("linear", "quant_linear", "packed_linear")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A place where two sides differ by more than the tolerance."""

    where: str
    difference: Difference

    def __str__(self) -> str:
        return f"{self.where}: {self.difference.reason}"


@dataclass(slots=True)
class Shadow:
    """A tap that repeats every call on another backend and keeps the first difference."""

    backend: str
    names: dict[int, str]
    place: str = "model.embed_tokens"
    num_compared: int = 0
    num_without_kernel: int = 0
    first: Part | None = None

    def __call__(self, op: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
        self.place = next(
            (self.names[p] for p in map(_pointer, args) if p in self.names), self.place
        )
        other = op.of_backend(self.backend)
        if other is None or self.first is not None:
            self.num_without_kernel += other is None
            op.run(candidate, args)
            return
        repeated = _copies(args)
        op.run(candidate, args)
        op.run(other, repeated)
        self.num_compared += 1
        outputs = zip(args[: op.num_outputs], repeated[: op.num_outputs], strict=True)
        for want, got in ((w, g) for w, g in outputs if w is not None):
            row = dtype_of(want).name if want.dtype.kind in "fV" else "f32"
            if op.name in _PRODUCTS:
                size = _row_sizes(args[1])
                want, got = want / size, got / size
            difference = compare(got, want, _OP_CLASSES[op.name], row)
            if not difference.is_within:
                self.first = Part(where=f"{self.place} {op.name}", difference=difference)
                return


def _pointer(value: Any) -> int:
    array = value.data if isinstance(value, PackedTensor) else getattr(value, "blocks", value)
    return int(array.__array_interface__["data"][0]) if isinstance(array, np.ndarray) else -1


def _row_sizes(x: Array) -> Array:
    """Return the largest magnitude of each row of a product's input, at least 1, ``[..., 1]``."""
    largest = np.abs(x.astype(np.float32)).max(axis=-1, keepdims=True, initial=1)
    return np.where(np.isfinite(largest), largest, np.float32(1))


def _copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with every writable array copied; aliases stay aliases."""
    copies: dict[int, Any] = {}
    for arg in args:
        if isinstance(arg, np.ndarray) and arg.flags.writeable:
            copies.setdefault(id(arg), arg.copy())
    return tuple(copies.get(id(arg), arg) for arg in args)


def _names_of(model: DecoderForCausalLM) -> dict[int, str]:
    """Return the path of the module that each parameter's memory belongs to."""
    names: dict[int, str] = {}
    for name, parameter, _ in model.named_slots():
        for part in parameter.parts:
            names.setdefault(_pointer(part), name.rpartition(".")[0])
    return names


def shadow_run(
    model: DecoderForCausalLM, ids: list[int], a: str, b: str, kv_dtype: DType | None = None
) -> tuple[Shadow, Array]:
    """Run the prompt on ``a`` with ``b`` as its shadow; return what was found and the logits."""
    use_backend(a)
    shadow = Shadow(backend=b, names=_names_of(model))
    with tapped(shadow):
        logits = model.compute_logits(_hidden(model, ids, kv_dtype))
    return shadow, logits


def dump_differences(
    model: DecoderForCausalLM, ids: list[int], dump: dict[str, Array], backend: str
) -> list[tuple[str, Difference]]:
    """Return the difference from an oracle's dump after each layer, and of the logits."""
    use_backend(backend)
    names = _names_of(model)
    residuals: list[Array] = []

    def keep(op: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
        op.run(candidate, args)
        place = names.get(_pointer(args[3]), "") if op.name == "fused_add_rms_norm" else ""
        if place.endswith(("input_layernorm", "model.norm")):
            residuals.append(args[1].copy())

    with tapped(keep):
        logits = model.compute_logits(_hidden(model, ids))
    num_layers = sum(name.startswith("layer.") for name in dump)
    if (num_layers, dump["logits"].shape) != (len(residuals), logits.shape):
        raise CheckpointError(
            f"[trace] dump: expected one of the same model, {len(residuals)} layers and logits "
            f"{logits.shape}, got {num_layers} and {dump['logits'].shape}"
        )
    found = [
        (f"model.layers.{i}", compare(got, dump[f"layer.{i}"], _RESIDUAL_CLASS, "f32"))
        for i, got in enumerate(residuals)
    ]
    return [*found, ("logits", compare(logits, dump["logits"], _RESIDUAL_CLASS, "f32"))]


def _hidden(model: DecoderForCausalLM, ids: list[int], kv_dtype: DType | None = None) -> Array:
    return all_hidden(model, [(np.array(ids), np.arange(len(ids)))], kv_dtype=kv_dtype)[0]


def read_dump(path: Path) -> dict[str, Array]:
    """Return the arrays of an oracle's dump. Raises CheckpointError where it is none."""
    if not is_zipfile(path):
        raise CheckpointError(
            f"[trace] dump {str(path)!r}: expected an .npz of parity/dump_trace.py", path=path
        )
    with np.load(path) as stored:
        dump = {name: stored[name] for name in stored.files}
    if not {"prompt_ids", "logits", "layer.0"} <= dump.keys():
        raise CheckpointError(
            f"[trace] dump {str(path)!r}: expected prompt_ids, layer.0 … and logits; "
            "write it with parity/dump_trace.py",
            path=path,
        )
    return dump


def _dump_path(name: str, goldens: Path | None) -> Path | None:
    """Return the path that a side names, None where it names a backend."""
    path = Path(name)
    if path.suffix != ".npz":
        return None
    return path if path.exists() or goldens is None else goldens / path


def _prompt_ids(files: ModelFiles, prompt: str) -> list[int]:
    if files.gguf_metadata is not None:
        return gguf_tokenizer(files.gguf_metadata).encode(prompt)
    if files.tokenizer_json is None:
        raise CheckpointError(f"[trace] {str(files.path)!r}: expected a tokenizer.json")
    return hf_tokenizer(files.tokenizer_json, None).encode(prompt)


def trace_parity(
    model: str,
    prompt: str,
    a: str,
    b: str,
    goldens: Path | None = None,
    *,
    act: str = "none",
    print: Print,
) -> int:
    """Compare backend ``a`` with ``b`` on a prompt and print the first difference.

    Args:
        model: path of the model.
        prompt: text; ignored against a dump, which has its own prompt.
        a: a backend.
        b: a backend, or the path of an oracle's dump.
        goldens: folder that a relative dump may lie in.
        act: ``none`` or ``q8``, for products with packed weights.
        print: takes each line.

    Returns:
        0 where nothing differs, else 1.

    Raises ConfigError for a backend that cannot be had, CheckpointError for a damaged dump.
    """
    path = _dump_path(b, goldens)
    sides = (a,) if path else (a, b)
    for name in sides:
        if name not in known_backends():
            backends.load(name)
    files = open_model(Path(model))
    dump = read_dump(path) if path else {}
    ids = dump["prompt_ids"].tolist() if path else _prompt_ids(files, prompt)
    # Weights are packed by the backend that is selected, and the reference reads its tiles too.
    packer = next((name for name in sides if name != REFERENCE_BACKEND), REFERENCE_BACKEND)
    use_backend(packer)
    is_wide = act == "none" and packer == REFERENCE_BACKEND
    expand = "always" if is_wide else "never"
    loaded = load_model(files, dtype=F32, expand=expand, act=act, max_positions=len(ids))
    files.close()
    if path:
        return _report_dump(dump_differences(loaded.model, ids, dump, a), a, path, print)
    return _report_shadow(shadow_run(loaded.model, ids, a, b)[0], a, b, len(ids), print)


def _report_shadow(shadow: Shadow, a: str, b: str, num_tokens: int, print: Print) -> int:
    print(
        f"trace {a} against {b}: {num_tokens} tokens, {shadow.num_compared} calls repeated, "
        f"{shadow.num_without_kernel} without a kernel in {b}"
    )
    print(f"first difference at {shadow.first}" if shadow.first else "no difference")
    return 1 if shadow.first else 0


def _report_dump(
    found: list[tuple[str, Difference]], backend: str, path: Path, print: Print
) -> int:
    for where, difference in found:
        print(
            f"{where}: max error {difference.max_error:.2e}, "
            f"{difference.share_of_bound:.2f} of the bound"
        )
    first = next((item for item in found if not item[1].is_within), None)
    print(f"trace {backend} against {path.name}: " + (f"first at {first[0]}" if first else "PASS"))
    return 1 if first else 0

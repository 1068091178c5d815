"""QuantizedSource: the tensors of a quantized checkpoint, each module's codes and scales as one."""

from collections.abc import Iterable, Iterator

from pyvt.errors import CheckpointError
from pyvt.weights.hf_names import fused_experts_names
from pyvt.weights.quantized.format import Layout, PackedFormat, Parts, Scheme
from pyvt.weights.quantized.fp8 import block_fp8_layout, fp8_layout, read_block_fp8, read_fp8
from pyvt.weights.quantized.int4 import (
    awq_layout,
    gptq_layout,
    pack_layout,
    read_awq,
    read_gptq,
    read_pack,
)
from pyvt.weights.quantized.nvfp4 import (
    compressed_layout,
    modelopt_layout,
    read_compressed,
    read_modelopt,
)
from pyvt.weights.source import Tensor, TensorInfo, WeightSource, unknown_tensor

# The first that fits a module's tensors is its form.
FORMATS = (
    PackedFormat(
        needs={".qweight": "i32", ".qzeros": "i32", ".scales": None},
        methods=("gptq",),
        layout=gptq_layout,
        read=read_gptq,
    ),
    PackedFormat(
        needs={".qweight": "i32", ".qzeros": "i32", ".scales": None},
        methods=("awq",),
        layout=awq_layout,
        read=read_awq,
    ),
    PackedFormat(
        needs={".weight_packed": "u8", ".weight_scale": "fp8_e4m3", ".weight_global_scale": None},
        layout=compressed_layout,
        read=read_compressed,
    ),
    PackedFormat(
        needs={".weight_packed": "i32", ".weight_scale": None, ".weight_shape": None},
        layout=pack_layout,
        read=read_pack,
    ),
    PackedFormat(
        needs={".weight": "u8", ".weight_scale": "fp8_e4m3", ".weight_scale_2": None},
        layout=modelopt_layout,
        read=read_modelopt,
    ),
    PackedFormat(
        needs={".weight": "fp8_e4m3", ".weight_scale_inv": None},
        layout=block_fp8_layout,
        read=read_block_fp8,
    ),
    PackedFormat(
        needs={".weight": "fp8_e4m3", ".weight_scale": None},
        layout=fp8_layout,
        read=read_fp8,
    ),
)
# Ends of names that say that a module is packed; ``.weight`` alone is a plain weight.
PARTS = (
    *(".qweight", ".qzeros", ".scales", ".g_idx"),
    *(".weight_packed", ".weight_shape", ".weight_zero_point", ".weight_g_idx"),
    *(".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale"),
)
# Scales of activations and of a KV cache.
UNUSED = (
    *(".input_scale", ".input_global_scale", ".input_zero_point", ".output_scale"),
    *(".k_scale", ".v_scale", ".q_scale", ".prob_scale"),
)
# Experts in one tensor have names without ``.weight``, and a scale's name is theirs and this.
_OF_EXPERTS = "_scale_inv"


class QuantizedSource:
    """A ``WeightSource`` over another one; modules that are not packed pass as they are.

    Attributes:
        stored: the tensors as they lie in the files.
        unused: names of scales that weight-only products do not need.
    """

    def __init__(self, source: WeightSource, scheme: Scheme) -> None:
        """Group the tensors. Raises CheckpointError for a module whose tensors fit no form."""
        self.stored = source
        self._scheme = scheme
        self._packed: dict[str, tuple[PackedFormat, Parts]] = {}
        self._plain: dict[str, None] = {}
        self.unused: list[str] = []
        modules: dict[str, Parts] = {}
        for name in source.names():
            if name.endswith(UNUSED):
                self.unused.append(name)
            elif found := list(_parts_of(name)):
                for weight, part, half in found:
                    parts = modules.setdefault(weight, Parts(source, weight, half=half))
                    parts.names[part] = name
            else:
                self._plain[name] = None
        for name in [name for name in self._plain if name in modules]:
            modules[name].names[".weight"] = name
            del self._plain[name]
        for weight, parts in modules.items():
            self._packed[weight] = (self._format_of(parts), parts)

    def names(self) -> Iterable[str]:
        """Return the canonical names, packed weights behind the others."""
        return (*self._plain, *self._packed)

    def info(self, name: str) -> TensorInfo:
        """Return what headers say; of a packed weight, shape, format and bytes as it is kept."""
        if name not in self._packed:
            return self.stored.info(self._known(name))
        layout, parts = self._layout(name), self._packed[name][1]
        path = self.stored.info(next(iter(parts.names.values()))).path
        return TensorInfo(name, layout.dtype, layout.shape, layout.nbytes, path)

    def get(self, name: str) -> Tensor:
        """Return a tensor; a packed weight is a copy in its blocks."""
        if name not in self._packed:
            return self.stored.get(self._known(name))
        packed, parts = self._packed[name]
        return packed.read(parts, self._scheme, self._layout(name))

    def release(self) -> None:
        """Take the pages of all tensors out of memory."""
        self.stored.release()

    def close(self) -> None:
        """Let go of the mapped files."""
        self.stored.close()

    def _known(self, name: str) -> str:
        if name not in self._plain:
            path = self.stored.info(next(iter(self.stored.names()))).path
            raise unknown_tensor(path, name, self.names())
        return name

    def _layout(self, name: str) -> Layout:
        packed, parts = self._packed[name]
        return packed.layout(parts, self._scheme)

    def _format_of(self, parts: Parts) -> PackedFormat:
        for packed in FORMATS:
            if packed.fits(parts, self._scheme):
                return packed
        info = self.stored.info(next(iter(parts.names.values())))
        raise CheckpointError(
            f"[weights] {parts.name} in {str(info.path)!r}: expected the tensors of a known form "
            f"of {self._scheme.method}, got {', '.join(sorted(parts.names))}",
            path=info.path,
            tensor=parts.name,
        )


def _parts_of(name: str) -> Iterator[tuple[str, str, int | None]]:
    """Yield the weights that a tensor is a part of, the end of its name and which half it is."""
    for part in PARTS:
        if name.endswith(part):
            yield name.removesuffix(part) + ".weight", part, None
            return
    if name.endswith(_OF_EXPERTS):
        weight = name.removesuffix(_OF_EXPERTS) + ".weight"
        pair = fused_experts_names(weight)
        for half, each in enumerate(pair or (weight,)):
            yield each, ".weight_scale_inv", None if pair is None else half

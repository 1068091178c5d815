"""The linear-attention layers of hybrid models: their shape, and which layers they are.

Dims: H hidden size, Hk key heads, Hv value heads, Dk and Dv their sizes, Kc conv kernel, C conv
channels ``2·Hk·Dk + Hv·Dv``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyvt.config.keys import Keys
from pyvt.errors import ConfigError

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"
SPLIT_PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
FUSED_PROJECTIONS = ("in_proj_qkvz", "in_proj_ba")
_INTERVAL = 4
_MAX_KERNEL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttentionConfig:
    """The shape of a gated delta net, and how a checkpoint stores its weights.

    Attributes:
        num_key_heads: Hk.
        num_value_heads: Hv, a multiple of Hk.
        key_head_dim: Dk.
        value_head_dim: Dv.
        conv_kernel: Kc, tokens that a step of the convolution sees.
        head_map: which key head a value head reads: ``grouped`` h ÷ (Hv/Hk), as in Hugging Face
            checkpoints, or ``tiled`` h mod Hk, as in GGUF files of Qwen3.5.
        projections: names of the input projections, in the order q, k, v, z, b, a of their rows;
            those with ``qkvz`` and ``ba`` in the name hold the parts of one key head side by side.
        has_log_decay: whether the decay is stored as ``A_log``; else as ``A = −exp(A_log)``.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    head_map: str = "grouped"
    projections: tuple[str, ...] = SPLIT_PROJECTIONS
    has_log_decay: bool = True

    def __post_init__(self) -> None:
        if self.num_value_heads % self.num_key_heads:
            raise ConfigError(
                f"[model] linear_num_value_heads: expected a multiple of linear_num_key_heads="
                f"{self.num_key_heads}, got {self.num_value_heads}",
                field="linear_num_value_heads",
            )
        if not 2 <= self.conv_kernel <= _MAX_KERNEL:
            raise ConfigError(
                f"[model] linear_conv_kernel_dim: expected 2 to {_MAX_KERNEL}, "
                f"got {self.conv_kernel}",
                field="linear_conv_kernel_dim",
            )

    @property
    def key_size(self) -> int:
        """Elements of all key heads of a token, Hk·Dk."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Elements of all value heads of a token, Hv·Dv."""
        return self.num_value_heads * self.value_head_dim

    @property
    def num_channels(self) -> int:
        """C, what goes through the convolution."""
        return 2 * self.key_size + self.value_size

    @property
    def conv_shape(self) -> tuple[int, int]:
        """The convolution's state of one request, ``(Kc − 1, C)``."""
        return self.conv_kernel - 1, self.num_channels

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """The delta rule's state of one request, ``(Hv, Dk, Dv)``."""
        return self.num_value_heads, self.key_head_dim, self.value_head_dim

    def projection_size(self, name: str) -> int:
        """Return the rows of an input projection."""
        sizes = {
            "in_proj_qkv": self.num_channels,
            "in_proj_z": self.value_size,
            "in_proj_b": self.num_value_heads,
            "in_proj_a": self.num_value_heads,
            "in_proj_qkvz": self.num_channels + self.value_size,
            "in_proj_ba": 2 * self.num_value_heads,
        }
        return sizes[name]


def linear_attention_from_hf(keys: Keys, projections: tuple[str, ...]) -> LinearAttentionConfig:
    """Return the linear attention of a config.json; keys that equal the defaults may be absent."""
    return LinearAttentionConfig(
        num_key_heads=keys.size("linear_num_key_heads", 16),
        num_value_heads=keys.size("linear_num_value_heads", 32),
        key_head_dim=keys.size("linear_key_head_dim", 128),
        value_head_dim=keys.size("linear_value_head_dim", 128),
        conv_kernel=keys.size("linear_conv_kernel_dim", 4),
        projections=projections,
    )


def linear_attention_from_gguf(
    keys: Keys, shapes: Mapping[str, tuple[int, ...]], head_map: str
) -> LinearAttentionConfig:
    """Return the linear attention of GGUF metadata.

    Which projections are fused is told by the names of the tensors; what else there is of them, or
    is missing, the loader finds.
    """
    num_value_heads = keys.size("ssm.time_step_rank")
    inner_size = keys.size("ssm.inner_size")
    if inner_size % num_value_heads:
        raise keys.error("ssm.inner_size", f"a multiple of {num_value_heads} heads", inner_size)
    stored = {name.split(".")[-2] for name in shapes if ".linear_attn.in_proj_" in name}
    qkvz, ba = FUSED_PROJECTIONS
    first = (qkvz,) if qkvz in stored else SPLIT_PROJECTIONS[:2]
    second = (ba,) if ba in stored else SPLIT_PROJECTIONS[2:]
    return LinearAttentionConfig(
        num_key_heads=keys.size("ssm.group_count"),
        num_value_heads=num_value_heads,
        key_head_dim=keys.size("ssm.state_size"),
        value_head_dim=inner_size // num_value_heads,
        conv_kernel=keys.size("ssm.conv_kernel"),
        head_map=head_map,
        projections=(*first, *second),
        has_log_decay=False,
    )


def linear_layers_from_hf(keys: Keys, num_layers: int) -> tuple[int, ...]:
    """Return the layers with linear attention: by ``layer_types``, else by the interval."""
    kinds = keys.items("layer_types")
    if not kinds:
        return _by_interval(keys, num_layers)
    if len(kinds) != num_layers:
        raise keys.error("layer_types", f"{num_layers} entries", kinds)
    unknown = [kind for kind in kinds if kind not in (FULL_ATTENTION, LINEAR_ATTENTION)]
    if unknown:
        raise keys.error("layer_types", f"only {LINEAR_ATTENTION} and {FULL_ATTENTION}", unknown[0])
    return tuple(i for i, kind in enumerate(kinds) if kind == LINEAR_ATTENTION)


def linear_layers_from_gguf(keys: Keys, num_layers: int, num_blocks: int) -> tuple[int, ...]:
    """Return the layers with linear attention: by ``recurrent_layers``, else by the interval.

    ``num_blocks`` counts the draft layers too, which have attention.
    """
    flags = keys.items("attention.recurrent_layers")
    if not flags:
        return _by_interval(keys, num_layers)
    if len(flags) != num_blocks or any(flag not in (False, True) for flag in flags):
        raise keys.error("attention.recurrent_layers", f"{num_blocks} true or false", flags)
    return tuple(i for i in range(num_layers) if flags[i])


def _by_interval(keys: Keys, num_layers: int) -> tuple[int, ...]:
    interval = keys.size("full_attention_interval", _INTERVAL)
    return tuple(i for i in range(num_layers) if (i + 1) % interval)

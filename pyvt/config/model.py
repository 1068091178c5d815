"""ModelConfig: what a model is, from config.json or from GGUF metadata.

Both readers take plain dicts and open no files. Sizes are never guessed: a missing size is an
error that names its key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyvt.config.hybrid import (
    FULL_ATTENTION,
    FUSED_PROJECTIONS,
    SPLIT_PROJECTIONS,
    LinearAttentionConfig,
    linear_attention_from_gguf,
    linear_attention_from_hf,
    linear_layers_from_gguf,
    linear_layers_from_hf,
)
from pyvt.config.keys import Keys, unknown_name
from pyvt.config.moe import MoEConfig, moe_from_gguf, moe_from_hf
from pyvt.config.rope import RopeConfig, rope_from_gguf, rope_from_hf
from pyvt.errors import ConfigError, UnsupportedError

_ATTENTION_KINDS = (FULL_ATTENTION, "sliding_attention")
_MAX_WINDOW_LAYERS = 28
_MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a family of architectures fixes, and the defaults of keys that its files leave out.

    Attributes:
        name: the family: ``model_type`` of config.json.
        gguf: the architecture of its GGUF files.
        architectures: its names in ``architectures`` of config.json; the first is its row in
            ``models.registry.MODELS``.
        head_dim: head size where the file gives none; None is hidden size over heads.
        qk_norm: whether query and key heads are normed before RoPE.
        has_mlp_bias: whether the family knows the key ``mlp_bias``.
        has_window: whether the family knows sliding windows.
        norm_offset: what Hugging Face checkpoints leave out of the weights of norms.
        rotary_share: part of a head that turns where the file does not say, None for always all.
        has_output_gate: whether attention is gated unless the file says otherwise.
        projections: input projections of its linear attention, empty without such layers.
        head_map: order of the value heads of linear attention in GGUF files.
        has_one_window: whether they are for all layers then.
        has_experts: whether the family is a mixture of experts.
        is_renormalized: whether the weights of experts add up to 1 whatever the file says.
        norm_topk_prob: whether they do where the file does not say.
    """

    name: str
    gguf: str
    architectures: tuple[str, ...]
    head_dim: int | None = None
    qk_norm: bool = False
    has_mlp_bias: bool = False
    has_window: bool = False
    norm_offset: float = 0.0
    rotary_share: float | None = None
    has_output_gate: bool = False
    projections: tuple[str, ...] = ()
    head_map: str = "grouped"
    has_one_window: bool = False
    has_experts: bool = False
    is_renormalized: bool = False
    norm_topk_prob: bool = False

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers have linear attention."""
        return bool(self.projections)


_QWEN3_5 = Family(
    name="qwen3_5",
    gguf="qwen35",
    architectures=("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
    head_dim=256,
    qk_norm=True,
    norm_offset=1.0,
    rotary_share=0.25,
    has_output_gate=True,
    projections=SPLIT_PROJECTIONS,
    head_map="tiled",
)
FAMILIES = {
    family.name: family
    for family in (
        Family(name="llama", gguf="llama", architectures=("LlamaForCausalLM",), has_mlp_bias=True),
        Family(
            name="qwen3",
            gguf="qwen3",
            architectures=("Qwen3ForCausalLM",),
            head_dim=128,
            qk_norm=True,
            has_window=True,
        ),
        Family(
            name="qwen3_moe",
            gguf="qwen3moe",
            architectures=("Qwen3MoeForCausalLM",),
            qk_norm=True,
            has_window=True,
            has_one_window=True,
            has_experts=True,
        ),
        _QWEN3_5,
        replace(
            _QWEN3_5,
            name="qwen3_5_moe",
            gguf="qwen35moe",
            architectures=("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
            has_experts=True,
            is_renormalized=True,
        ),
        replace(
            _QWEN3_5,
            name="qwen3_next",
            gguf="qwen3next",
            architectures=("Qwen3NextForCausalLM",),
            projections=FUSED_PROJECTIONS,
            head_map="grouped",
            has_experts=True,
            norm_topk_prob=True,
        ),
    )
}
_BY_GGUF = {family.gguf: family for family in FAMILIES.values()}
_BY_ARCHITECTURE = {name: family for family in FAMILIES.values() for name in family.architectures}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """The sampling settings that generation_config.json asks for; None where it says nothing."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder and the constants of its forward pass.

    Attributes:
        family: a key of ``FAMILIES``.
        architecture: a key of ``models.registry.MODELS``.
        intermediate_size: width of plain MLPs; that of an expert where no layer has one.
        head_dim: D; need not be ``hidden_size / num_heads``.
        max_position_embeddings: context length that the file states.
        attention_bias: whether q, k, v and o have biases.
        mlp_bias: whether gate, up and down have biases.
        sliding_windows: for each layer the window of its attention, None for all keys.
        norm_offset: what is added to the stored weights of all norms but that of linear attention.
        has_output_gate: whether a sigmoid of further rows of ``q_proj`` gates attention.
        linear_attention: the shape of layers with linear attention, None where there are none.
        linear_layers: which layers they are; the others have attention.
        num_mtp_layers: layers of the head that drafts tokens (multi-token prediction); 0 leaves
            the head of a checkpoint out.
        moe: the experts of sparse layers, None where all layers have a plain MLP.
        eos_token_ids: ids that end a generation, from every config file; the tokenizer adds more.
        checkpoint_dtype: name of the dtype that config.json states, None where it does not.
    """

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_windows: tuple[int | None, ...] = ()
    norm_offset: float = 0.0
    has_output_gate: bool = False
    linear_attention: LinearAttentionConfig | None = None
    linear_layers: tuple[int, ...] = ()
    num_mtp_layers: int = 0
    moe: MoEConfig | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    checkpoint_dtype: str | None = None
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"[model] num_key_value_heads: expected a divisor of num_attention_heads="
                f"{self.num_heads}, got {self.num_kv_heads}",
                field="num_key_value_heads",
            )
        if self.rope.rotary_dim > self.head_dim:
            raise ConfigError(
                f"[model] rotary_dim: expected at most head_dim={self.head_dim}, "
                f"got {self.rope.rotary_dim}",
                field="rotary_dim",
            )
        if len(self.sliding_windows) != self.num_layers:
            raise ConfigError(
                f"[model] layer_types: expected {self.num_layers} entries, "
                f"got {len(self.sliding_windows)}",
                field="layer_types",
            )
        if self.num_layers <= len(self.linear_layers):
            raise ConfigError(
                f"[model] layer_types: expected a layer with {FULL_ATTENTION}, got none",
                field="layer_types",
            )

    def window_of(self, layer_idx: int) -> int | None:
        """Return the window of a layer's attention; layers of a draft head have none."""
        return self.sliding_windows[layer_idx] if layer_idx < self.num_layers else None

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> "ModelConfig":
        """Read config.json and generation_config.json, given as dicts.

        Raises ConfigError for a missing or impossible value, UnsupportedError for an architecture,
        activation, RoPE type or quantization that pyvt does not have.
        """
        return _from_hf(config, generation_config)

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        rope_freqs: Sequence[float] | None = None,
    ) -> "ModelConfig":
        """Read GGUF metadata; ``shapes`` are those of the file's tensors by canonical name.

        ``rope_freqs`` is the content of the tensor ``rope_freqs.weight``, None where the file has
        none. Raises as ``from_hf``.
        """
        return _from_gguf(metadata, shapes, rope_freqs)


def _from_hf(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None) -> ModelConfig:
    wrapper = Keys("config.json", config)
    text = wrapper.block("text_config") or config
    keys = Keys("config.json", text)
    both = Keys("config.json", config, text)
    family = _hf_family(text, config)
    _refuse_unsupported(family, keys)
    hidden_size, num_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    head_dim = keys.get("head_dim") or family.head_dim
    if head_dim is None and hidden_size % num_heads:
        raise keys.error(
            "num_attention_heads", f"a divisor of hidden_size={hidden_size}", num_heads
        )
    head_dim = keys.even_size("head_dim", head_dim or hidden_size // num_heads)
    num_layers = keys.size("num_hidden_layers", limit=_MAX_LAYERS)
    max_positions = keys.size("max_position_embeddings", 2048 if family.name == "llama" else 32768)
    linear_layers = linear_layers_from_hf(keys, num_layers) if family.is_hybrid else ()
    moe = (
        moe_from_hf(
            keys,
            num_layers,
            is_renormalized=family.is_renormalized,
            norm_topk_prob=family.norm_topk_prob,
        )
        if family.has_experts
        else None
    )
    generation = Keys("generation_config.json", generation_config)
    eos = (*generation.ids("eos_token_id"), *wrapper.ids("eos_token_id"), *keys.ids("eos_token_id"))
    bos = (*both.ids("bos_token_id"), *generation.ids("bos_token_id"))
    return ModelConfig(
        family=family.name,
        architecture=family.architectures[0],
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.size("intermediate_size", _expert_width(moe)),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.size("num_key_value_heads", num_heads),
        head_dim=head_dim,
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        max_position_embeddings=max_positions,
        rope=rope_from_hf(text, head_dim, max_positions, family.rotary_share),
        tie_word_embeddings=both.boolean("tie_word_embeddings"),
        attention_bias=keys.boolean("attention_bias"),
        mlp_bias=family.has_mlp_bias and keys.boolean("mlp_bias"),
        qk_norm=family.qk_norm,
        sliding_windows=_hf_windows(family, keys, num_layers),
        norm_offset=family.norm_offset,
        has_output_gate=family.has_output_gate and keys.boolean("attn_output_gate", True),
        linear_attention=linear_attention_from_hf(keys, family.projections)
        if family.is_hybrid
        else None,
        linear_layers=linear_layers,
        num_mtp_layers=keys.count("mtp_num_hidden_layers", 0, _MAX_LAYERS),
        moe=moe,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        bos_token_id=bos[0] if bos else None,
        checkpoint_dtype=both.get("dtype") or both.get("torch_dtype"),
        sampling_defaults=_sampling_defaults(generation),
    )


def _expert_width(moe: MoEConfig | None) -> int | None:
    """Return the width of an expert where no layer has a plain MLP, else None."""
    return None if moe is None or moe.dense_layers else moe.moe_intermediate_size


def _hf_family(text: Mapping[str, Any], config: Mapping[str, Any]) -> Family:
    model_type = str(text.get("model_type") or "")
    family = FAMILIES.get(model_type.removesuffix("_text"))
    if family is not None:
        return family
    architecture = next(iter(Keys("config.json", config).items("architectures")), None)
    family = _BY_ARCHITECTURE.get(str(architecture))
    if family is None:
        known = ", ".join(f"{f.name} ({f.architectures[0]})" for f in FAMILIES.values())
        raise UnsupportedError(
            f"[config.json] model_type: expected one of {known}, "
            f"got {model_type or None!r} with architecture {architecture!r}"
        )
    return family


def _refuse_unsupported(family: Family, keys: Keys) -> None:
    activation = keys.text("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedError(unknown_name("config.json", "hidden_act", activation, ("silu",)))
    kinds = set(map(str, keys.items("layer_types")))
    if not family.has_window and not family.is_hybrid and kinds - {FULL_ATTENTION}:
        raise keys.error("layer_types", "full_attention in every layer", keys.get("layer_types"))
    gate = keys.text("output_gate_type", "silu")
    if gate not in ("silu", "swish"):
        raise UnsupportedError(
            unknown_name("config.json", "output_gate_type", gate, ("silu", "swish"))
        )


def _hf_windows(family: Family, keys: Keys, num_layers: int) -> tuple[int | None, ...]:
    if not family.has_window:
        return (None,) * num_layers
    kinds = keys.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, (list, tuple)) or len(kinds) != num_layers:
            raise keys.error("layer_types", f"{num_layers} entries", kinds)
        unknown = [kind for kind in kinds if kind not in _ATTENTION_KINDS]
        if unknown:
            raise keys.error("layer_types", f"only {' and '.join(_ATTENTION_KINDS)}", unknown[0])
    if not keys.boolean("use_sliding_window"):
        return (None,) * num_layers
    if keys.get("sliding_window") is None:
        return (None,) * num_layers
    window = keys.size("sliding_window")
    first = 0
    if not family.has_one_window:
        first = keys.count("max_window_layers", _MAX_WINDOW_LAYERS)
    is_sliding = (
        [i >= first for i in range(num_layers)]
        if kinds is None
        else [kind == "sliding_attention" for kind in kinds]
    )
    return tuple(window if sliding else None for sliding in is_sliding)


def _sampling_defaults(keys: Keys) -> SamplingDefaults:
    if keys.get("do_sample") is False:
        return SamplingDefaults(temperature=0.0)
    top_k = keys.get("top_k")
    return SamplingDefaults(
        temperature=keys.optional_number("temperature"),
        top_k=None if top_k is None else keys.integer("top_k"),
        top_p=keys.optional_number("top_p"),
        min_p=keys.optional_number("min_p"),
        repetition_penalty=keys.optional_number("repetition_penalty"),
    )


def _from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_freqs: Sequence[float] | None,
) -> ModelConfig:
    general = Keys("GGUF metadata", metadata)
    name = general.text("general.architecture")
    family = _BY_GGUF.get(name)
    if family is None:
        raise UnsupportedError(
            unknown_name("GGUF metadata", "general.architecture", name, list(_BY_GGUF))
        )
    keys = Keys("GGUF metadata", metadata, prefix=f"{name}.")
    if keys.count("expert_count", 0) and not family.has_experts:
        raise UnsupportedError(
            str(keys.error("expert_count", "0 for a dense model", keys.get("expert_count")))
        )
    num_blocks = keys.size("block_count", limit=_MAX_LAYERS)
    num_layers = num_blocks - _gguf_mtp_layers(family, keys, num_blocks)
    moe = moe_from_gguf(keys, shapes, num_layers) if family.has_experts else None
    hidden_size = keys.size("embedding_length")
    num_heads = keys.layer_size("attention.head_count")
    head_dim = keys.even_size("attention.key_length", hidden_size // num_heads)
    value_dim = keys.size("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise keys.error("attention.value_length", f"{head_dim} as key_length", value_dim)
    max_positions = keys.size("context_length")
    window = keys.count("attention.sliding_window", 0)
    if window and window < max_positions:
        raise UnsupportedError(str(keys.error("attention.sliding_window", "none", window)))
    eos = [
        i for kind in ("eos", "eot", "eom") for i in general.ids(f"tokenizer.ggml.{kind}_token_id")
    ]
    bos = general.ids("tokenizer.ggml.bos_token_id")
    return ModelConfig(
        family=family.name,
        architecture=family.architectures[0],
        vocab_size=_gguf_vocab_size(keys, shapes),
        hidden_size=hidden_size,
        intermediate_size=keys.layer_size("feed_forward_length", _expert_width(moe)),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.layer_size(
            "attention.head_count_kv", num_heads, has_zeros=family.is_hybrid
        ),
        head_dim=head_dim,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=max_positions,
        rope=rope_from_gguf(keys, head_dim, max_positions, rope_freqs, family.rotary_share),
        tie_word_embeddings="lm_head.weight" not in shapes,
        attention_bias=any(name.endswith(".self_attn.q_proj.bias") for name in shapes),
        mlp_bias=family.has_mlp_bias and "model.layers.0.mlp.gate_proj.bias" in shapes,
        qk_norm=family.qk_norm,
        sliding_windows=(None,) * num_layers,
        **_gguf_hybrid(family, keys, shapes, num_layers, num_blocks),
        moe=moe,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        bos_token_id=bos[0] if bos else None,
    )


def _gguf_hybrid(
    family: Family,
    keys: Keys,
    shapes: Mapping[str, tuple[int, ...]],
    num_layers: int,
    num_blocks: int,
) -> dict[str, Any]:
    """Return the fields of ``ModelConfig`` that only hybrids have."""
    if not family.is_hybrid:
        return {}
    return {
        "has_output_gate": family.has_output_gate,
        "linear_attention": linear_attention_from_gguf(keys, shapes, family.head_map),
        "linear_layers": linear_layers_from_gguf(keys, num_layers, num_blocks),
        "num_mtp_layers": num_blocks - num_layers,
    }


def _gguf_mtp_layers(family: Family, keys: Keys, num_blocks: int) -> int:
    """Return the draft layers, which the blocks of a file count too."""
    num_mtp_layers = keys.count("nextn_predict_layers", 0)
    if num_mtp_layers and not family.is_hybrid:
        raise UnsupportedError(
            str(keys.error("nextn_predict_layers", "0 for this family", num_mtp_layers))
        )
    if num_mtp_layers >= num_blocks:
        raise keys.error(
            "nextn_predict_layers", f"fewer than block_count={num_blocks}", num_mtp_layers
        )
    return num_mtp_layers


def _gguf_vocab_size(keys: Keys, shapes: Mapping[str, tuple[int, ...]]) -> int:
    table = shapes.get("model.embed_tokens.weight")
    vocab_size = keys.size("vocab_size", table[0] if table else None)
    if table and table[0] != vocab_size:
        raise keys.error("vocab_size", f"{table[0]} as the rows of token_embd", vocab_size)
    return vocab_size

"""The mixture of experts of a model: how many, their sizes, and which layers have none."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyvt.config.keys import Keys
from pyvt.errors import ConfigError

_GATE = "model.layers.{i}.mlp.experts.gate_proj.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """The experts of each sparse layer.

    Attributes:
        num_experts: E.
        num_experts_per_tok: K, the experts that a token gets.
        moe_intermediate_size: width of an expert.
        norm_topk_prob: whether the weights of a token's experts are made to add up to 1.
        shared_expert_intermediate_size: width of the expert that every token gets, gated; None
            where there is none.
        dense_layers: layers with a plain MLP. All others are sparse, draft layers behind the last
            one too.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    shared_expert_intermediate_size: int | None = None
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_experts_per_tok > self.num_experts:
            raise ConfigError(
                f"[model] num_experts_per_tok: expected at most num_experts={self.num_experts}, "
                f"got {self.num_experts_per_tok}",
                field="num_experts_per_tok",
            )

    def is_sparse(self, layer_idx: int) -> bool:
        """Whether a layer has experts."""
        return layer_idx not in self.dense_layers


def moe_from_hf(
    keys: Keys, num_layers: int, *, is_renormalized: bool, norm_topk_prob: bool = False
) -> MoEConfig | None:
    """Return the experts of a config.json, None where no layer has any.

    ``is_renormalized`` says that weights always add up to 1; else the key ``norm_topk_prob`` does,
    or where it is absent the argument.
    """
    spelling = "num_experts" if keys.get("num_local_experts") is None else "num_local_experts"
    if keys.count(spelling) == 0:
        return None
    step = keys.size("decoder_sparse_step", 1)
    plain = keys.items("mlp_only_layers")
    if any(type(i) is not int or i < 0 for i in plain):
        raise keys.error("mlp_only_layers", "numbers of layers", list(plain))
    dense = tuple(i for i in range(num_layers) if i in plain or (i + 1) % step)
    if len(dense) == num_layers:
        return None
    has_shared = keys.get("shared_expert_intermediate_size") is not None
    return MoEConfig(
        num_experts=keys.size(spelling),
        num_experts_per_tok=keys.size("num_experts_per_tok"),
        moe_intermediate_size=keys.size("moe_intermediate_size"),
        norm_topk_prob=is_renormalized or keys.boolean("norm_topk_prob", norm_topk_prob),
        shared_expert_intermediate_size=keys.size("shared_expert_intermediate_size")
        if has_shared
        else None,
        dense_layers=dense,
    )


def moe_from_gguf(
    keys: Keys, shapes: Mapping[str, tuple[int, ...]], num_layers: int
) -> MoEConfig | None:
    """Return the experts of GGUF metadata, None where no layer has any.

    Which layers are dense is told by the names of the tensors; weights always add up to 1, since
    the files do not say.
    """
    names = [_GATE.format(i=i) for i in range(num_layers)]
    sparse = [shapes[name] for name in names if name in shapes]
    if not sparse and not keys.count("expert_count", 0):
        return None
    width = sparse[0][1] if sparse and len(sparse[0]) == 3 else None
    has_shared = keys.count("expert_shared_feed_forward_length", 0) > 0
    return MoEConfig(
        num_experts=keys.size("expert_count"),
        num_experts_per_tok=keys.size("expert_used_count"),
        moe_intermediate_size=keys.size("expert_feed_forward_length", width),
        norm_topk_prob=True,
        shared_expert_intermediate_size=keys.size("expert_shared_feed_forward_length")
        if has_shared
        else None,
        dense_layers=tuple(i for i, name in enumerate(names) if name not in shapes),
    )
